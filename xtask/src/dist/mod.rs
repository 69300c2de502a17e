//! `cargo xtask dist`: everything of a release, made and checked by one command.
//!
//! ```text
//! cargo build ─► binary, symbols (`build`)
//! the binary itself ─► completions, man pages, simurgh.toml (`documents`)
//! cargo tree ─► list of crates in the binary, SBOM (`dependencies`)
//! sources of crates ─► THIRD-PARTY.txt (`licences`)
//! all of it ─► .deb, -dbgsym.deb (`deb`), .rpm (`rpm`), OCI image (`image`), tarballs, chart,
//!              SHA256SUMS and its signature (`archive`)
//! what lies there in the end ─► checks (`check`), from outside, as somebody who installs it
//! ```
//!
//! All times in the files are the commit's, so that the same commit makes the same bytes (`--twice`
//! checks it). See docs/RELEASE.md.

mod archive;
mod build;
mod check;
mod deb;
mod dependencies;
mod documents;
mod image;
mod licences;
mod rpm;
mod trial;
mod twice;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

use crate::files;
use crate::outcome::Outcome;
use crate::process::{Task, program};

#[derive(Args)]
pub(crate) struct Options {
    /// Where everything goes; what is there is removed [default: target/packages]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Any profile but dist is built as cargo builds it, dynamic: to try the rest
    #[arg(long, value_name = "PROFILE", default_value = "dist")]
    pub(crate) profile: String,
    /// How the binary has the C library
    #[arg(long, value_enum, default_value = "static")]
    pub(crate) link: Link,
    /// Makes it all once more from a clone elsewhere, and compares every byte
    #[arg(long)]
    pub(crate) twice: bool,
    /// Signs SHA256SUMS with this secret key of minisign
    #[arg(long, value_name = "KEY")]
    pub(crate) sign: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Link {
    /// Inside: runs on any Linux
    Static,
    /// Of the system it runs on, which must be as new as the one it was built on
    Dynamic,
}

/// The default output directory, beneath cargo's target directory.
const PACKAGES: &str = "packages";

pub(crate) struct Release {
    /// The version in Cargo.toml.
    version: String,
    /// The version that sorts before it while HEAD is not its tag: `0.1.0~git20261121220000.abc`.
    stamp: String,
    /// The time of the commit and of all files, in seconds since 1970.
    epoch: u64,
    link: Link,
    profile: String,
    out: PathBuf,
}

/// This machine's architecture, as Rust and rpm call it. arm64 has not been tried.
const ARCH: &str = std::env::consts::ARCH;
/// The same, as Debian and OCI call it.
const DEBIAN_ARCH: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
/// The Rust target, whose name is the directory of what is built for it.
const TARGET: &str = if cfg!(target_arch = "aarch64") {
    "aarch64-unknown-linux-gnu"
} else {
    "x86_64-unknown-linux-gnu"
};

/// Required programs; all are in Debian's build-essential or in every Debian.
const PROGRAMS: &[&str] = &["cargo", "dpkg-deb", "gzip", "ldd", "md5sum", "objcopy", "tar", "xz"];

/// Makes and checks a release; prints the files.
pub(crate) fn run(options: &Options) -> Result<()> {
    let (release, _) = make(options)?;
    if options.twice { twice::compare(&release, options) } else { Ok(()) }
}

/// Makes and checks a release from the test build.
pub(crate) fn try_out(out: PathBuf) -> Result<Outcome> {
    let profile = "dev".to_owned();
    let options =
        Options { out: Some(out), profile, link: Link::Dynamic, twice: false, sign: None };
    make(&options).map(|(_, checked)| checked)
}

fn make(options: &Options) -> Result<(Release, Outcome)> {
    for program in PROGRAMS {
        ensure!(Task::new(program, &["--version"], 1).quiet().run().ok(), "{program} is not there");
    }
    let release = Release::new(options)?;
    empty(&release.out)?;
    let crates = dependencies::list()?;
    let built = build::build(&release, &crates)?;
    let work = release.out.join("work");
    let texts = documents::make(&built, &work)?;
    let licences = licences::text(&release, &crates)?;
    let parts =
        Parts { built: &built, crates: &crates, texts: &texts, licences: &licences, work: &work };
    deb::make(&release, &parts)?;
    rpm::make(&release, &parts)?;
    image::make(&release, &parts)?;
    archive::make(&release, &parts)?;
    archive::sums(&release)?;
    let checked = check::run(&release, &parts)?;
    fs::remove_dir_all(&work)?;
    if let Some(key) = &options.sign {
        archive::sign(&release.sums(), key)?;
    }
    for (name, bytes) in files::list(&release.out)? {
        println!("{bytes:>12} bytes  {}", release.out.join(name).display());
    }
    Ok((release, checked))
}

/// Makes the directory, and removes only the files of an earlier release.
fn empty(out: &Path) -> Result<()> {
    let is_ours = ["SHA256SUMS", "work"].iter().any(|name| out.join(name).exists());
    let is_empty = fs::read_dir(out).map_or(true, |mut entries| entries.next().is_none());
    ensure!(is_ours || is_empty, "{} has other things in it: name another --out", out.display());
    let _ = fs::remove_dir_all(out);
    files::directory(out)
}

/// The parts of packages.
struct Parts<'a> {
    built: &'a build::Built,
    crates: &'a [dependencies::Dependency],
    texts: &'a documents::Documents,
    licences: &'a str,
    /// A directory for temporary files.
    work: &'a Path,
}

impl Release {
    fn new(options: &Options) -> Result<Self> {
        // All packages of the workspace have the same one.
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(text) => text,
            Err(_) => git(&["show", "--no-patch", "--format=%ct", "HEAD"])
                .context("there is no git to ask for the time: set SOURCE_DATE_EPOCH")?,
        };
        let epoch = epoch.parse().with_context(|| format!("{epoch:?} is no time (seconds)"))?;
        let is_release = options.profile == "dist";
        let out = options.out.clone().unwrap_or_else(|| target_dir().join(PACKAGES));
        Ok(Self {
            stamp: stamp(&version),
            version,
            epoch,
            link: if is_release { options.link } else { Link::Dynamic },
            profile: options.profile.clone(),
            // Other programs run in other directories.
            out: std::path::absolute(&out)?,
        })
    }

    /// The effort of `xz`: low for a release that is not shipped.
    fn effort(&self) -> &'static str {
        if self.profile == "dist" { "6" } else { "0" }
    }

    fn name(&self) -> String {
        format!("simurgh-{}-{ARCH}-linux", self.tag())
    }

    /// The commit's time in the form of RFC 3339.
    fn time(&self) -> Result<String> {
        let epoch = format!("@{}", self.epoch);
        let time = program("date", &["--utc", "--date", &epoch, "+%Y-%m-%dT%H:%M:%SZ"])?;
        Ok(time.trim().to_owned())
    }
}

/// Cargo's target directory, which this binary is in as well.
fn target_dir() -> PathBuf {
    let bin = crate::bin_dir();
    bin.parent().map_or_else(|| crate::root().join("target"), Path::to_path_buf)
}

/// The version itself if HEAD is its tag, else one before it and after those of earlier commits.
fn stamp(version: &str) -> String {
    let tag = format!("v{version}");
    let is_tag =
        git(&["tag", "--points-at", "HEAD"]).is_some_and(|tags| tags.lines().any(|t| t == tag));
    let is_dirty =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|it| !it.is_empty());
    let dirty = if is_dirty { ".dirty" } else { "" };
    let utc = [
        "show",
        "--no-patch",
        "--date=format-local:%Y%m%d%H%M%S",
        "--format=%cd.%h",
        "--abbrev=10",
        "HEAD",
    ];
    match git(&utc) {
        Some(commit) if !is_tag || is_dirty => format!("{version}~git{commit}{dirty}"),
        _ => version.to_owned(),
    }
}

/// Git's output for the repository; `None` outside of one.
fn git(arguments: &[&str]) -> Option<String> {
    let done = Task::new("git", arguments, 1).env("TZ", "UTC").quiet().run();
    done.ok().then(|| done.output.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_earlier_releases_are_emptied() {
        let dir = std::env::temp_dir().join(format!("simurgh-dist-{}", std::process::id()));
        files::write(&dir.join("letters"), "to be kept", 0o644).unwrap();
        let refused = empty(&dir);
        let is_kept = dir.join("letters").exists();
        files::write(&dir.join("SHA256SUMS"), "", 0o644).unwrap();
        let taken = empty(&dir);
        let is_gone = !dir.join("letters").exists() && dir.is_dir();
        fs::remove_dir_all(&dir).unwrap();
        assert!(refused.is_err() && is_kept);
        assert!(taken.is_ok() && is_gone);
    }

    #[test]
    fn every_profile_unwinds_and_the_shipped_one_is_optimised() {
        let manifest: toml::Table =
            files::text(&crate::root().join("Cargo.toml")).unwrap().parse().unwrap();
        let profiles = manifest["profile"].as_table().unwrap();
        assert!(["dev", "release", "dist"].iter().all(|name| profiles.contains_key(*name)));
        for (name, profile) in profiles {
            // A panic in a callback would end the server with all its clients.
            assert_eq!(
                profile.get("panic").and_then(toml::Value::as_str),
                Some("unwind"),
                "{name}"
            );
        }
        let dist = profiles["dist"].as_table().unwrap();
        assert_eq!(dist["inherits"].as_str(), Some("release"));
        assert_eq!(dist["codegen-units"].as_integer(), Some(1));
    }
}
