//! The binary, and its symbols in a separate file.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::dependencies::{self, Dependency};
use super::{Link, Release, TARGET, program, target_dir};
use crate::files;
use crate::process::Task;

/// Longest build: fat LTO of everything on two busy cores.
const MINUTES_MAX: u64 = 60;

pub(super) struct Built {
    /// Without symbols.
    pub(super) binary: PathBuf,
    /// The symbols, which debuggers find by the build id.
    pub(super) debug: PathBuf,
    /// The linker's hash of the binary, in hexadecimal.
    pub(super) build_id: String,
}

pub(super) fn build(release: &Release, crates: &[Dependency]) -> Result<Built> {
    let whole = match release.profile.as_str() {
        "dist" => build_dist(release)?,
        profile => build_plain(profile)?,
    };
    let binary = release.out.join("work/bin/simurgh");
    let debug = release.out.join("work/bin/simurgh.debug");
    files::directory(&release.out.join("work/bin"))?;
    let (from, to, symbols) =
        (whole.to_string_lossy(), binary.to_string_lossy(), debug.to_string_lossy());
    program("objcopy", &["--only-keep-debug", "--compress-debug-sections", &from, &symbols])?;
    let link = format!("--add-gnu-debuglink={symbols}");
    let listed = release.out.join("work/bin/crates");
    files::write(&listed, dependencies::section(crates), 0o644)?;
    let section = format!("--add-section={}={}", dependencies::SECTION, listed.display());
    let strip = ["--strip-all", "--remove-section=.comment", &link, &section, &from, &to];
    program("objcopy", &strip)?;
    let build_id = build_id(&binary)?;
    Ok(Built { binary, debug, build_id })
}

/// The same flags whatever the environment says, and no path of this machine in the binary.
fn build_dist(release: &Release) -> Result<PathBuf> {
    let target = target_dir();
    let remapped = remapped(&target)?;
    let mut flags: Vec<String> =
        remapped.iter().map(|(from, to)| format!("--remap-path-prefix={from}={to}")).collect();
    flags.push("-Clink-arg=-Wl,--build-id=sha1".to_owned());
    if release.link == Link::Static {
        flags.push("-Ctarget-feature=+crt-static".to_owned());
    }
    let for_c: Vec<String> =
        remapped.iter().map(|(from, to)| format!("-ffile-prefix-map={from}={to}")).collect();
    let arguments =
        ["build", "--locked", "--package", "simurgh-cli", "--profile", "dist", "--target", TARGET];
    let done = Task::new("cargo", &arguments, MINUTES_MAX)
        // This variable overrides all other sources of flags, and with a target given it does not
        // affect build scripts and macros, which cannot be static.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .env(&format!("CFLAGS_{}", TARGET.replace('-', "_")), for_c.join(" "))
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_TARGET_DIR", &target)
        .env("SOURCE_DATE_EPOCH", release.epoch.to_string())
        .run();
    done.or_fail("cargo build")?;
    Ok(target.join(TARGET).join("dist/simurgh"))
}

/// Builds what the tests build anyway.
fn build_plain(profile: &str) -> Result<PathBuf> {
    let arguments = ["build", "--workspace", "--bins", "--examples", "--profile", profile];
    let target = target_dir();
    let task = Task::new("cargo", &arguments, MINUTES_MAX).env("CARGO_TARGET_DIR", &target);
    task.run().or_fail("cargo build")?;
    let directory = if profile == "dev" { "debug" } else { profile };
    Ok(target.join(directory).join("simurgh"))
}

/// Directories that must not be named in the binary, and replacements. The last match counts.
fn remapped(target: &Path) -> Result<Vec<(String, &'static str)>> {
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let cargo = env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
    let sysroot = PathBuf::from(program("rustc", &["--print", "sysroot"])?.trim());
    let known = [
        (Some(sysroot), "/rust"),
        (cargo, "/cargo"),
        (Some(crate::root()), "/simurgh"),
        (Some(target.to_path_buf()), "/target"),
    ];
    let named = known.into_iter().filter_map(|(path, to)| Some((path?, to)));
    Ok(named
        .map(|(path, to)| (fs::canonicalize(&path).unwrap_or(path), to))
        .map(|(path, to)| (path.to_string_lossy().into_owned(), to))
        .collect())
}

/// Reads the note that the linker left.
pub(super) fn build_id(file: &Path) -> Result<String> {
    let notes = program("readelf", &["--notes", "--wide", &file.to_string_lossy()])?;
    let mut ids = notes.lines().filter_map(|line| line.split_once("Build ID: "));
    ids.next()
        .map(|(_, id)| id.trim())
        .filter(|id| id.len() == 40 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .map(str::to_owned)
        .with_context(|| format!("{} has no build id", file.display()))
}
