//! Checks the finished files from outside. A failed check fails the release; one whose program is
//! missing on this machine is reported.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::{
    DEBIAN_ARCH, Link, Parts, Release, archive, build, deb, dependencies, program, rpm, trial,
};
use crate::files;
use crate::outcome::{Outcome, Skipped};
use crate::process::Task;
use crate::provide;

/// An error that is [`Skipped`] names a program or right that is missing.
type Check = fn(&Package<'_>) -> Result<()>;

pub(super) struct Package<'a> {
    pub(super) release: &'a Release,
    parts: &'a Parts<'a>,
    pub(super) tree: PathBuf,
}

const CHECKS: &[(&str, Check)] = &[
    ("the package has its name, version and configuration", fields),
    ("its files are root's, and nobody else may write them", owners),
    ("its sums are right", sums),
    ("lintian", lintian),
    ("systemd takes the unit", unit),
    ("man pages are sound", pages),
    ("shells take the completions", completions),
    ("bash completes a command and a flag", bash_completes),
    ("symbols belong to the binary", symbols),
    ("the C library is where it should be", linked),
    ("the binary names its crates", crates),
    ("the rpm has the files of the Debian package", rpm_files),
    ("Helm, Kubernetes, CycloneDX and actionlint take their files", outer_files),
    ("a signature is valid until a byte changes", signature),
    ("the installed program says which it is", trial::version),
    ("the installed configuration is right, with and without its comments", trial::config),
    ("the installed server serves and drains", trial::serve),
    ("dpkg installs, upgrades, removes and purges it", trial::dpkg),
    ("rpm installs, upgrades and removes it", trial::rpm),
    ("runc starts the image with a read-only root, as nobody", trial::image),
];

/// Of a static program.
const STATIC_CHECKS: &[(&str, Check)] = &[("names of /etc/hosts are found", trial::names)];

/// Of a release that is shipped.
const SHIPPED_CHECKS: &[(&str, Check)] = &[("the binary names no path of this machine", paths)];

pub(super) fn run(release: &Release, parts: &Parts<'_>) -> Result<Outcome> {
    let tree = parts.work.join("installed");
    program("dpkg-deb", &["--extract", &release.deb().to_string_lossy(), &tree.to_string_lossy()])?;
    let package = Package { release, parts, tree };
    let mut outcome = Outcome::default();
    let (mut failed, mut without) = (Vec::new(), Vec::new());
    let of_static = if release.link == Link::Static { STATIC_CHECKS } else { &[] };
    let of_shipped = if release.profile == "dist" { SHIPPED_CHECKS } else { &[] };
    for (name, check) in CHECKS.iter().chain(of_static).chain(of_shipped) {
        match check(&package) {
            Ok(()) => {
                println!("ok       {name}");
                outcome.passed += 1;
            }
            Err(why) if why.is::<Skipped>() => {
                println!("SKIPPED  {name}: no {why}");
                outcome.skipped += 1;
                without.push(why.to_string());
            }
            Err(why) => {
                println!("FAILED   {name}: {why:#}");
                failed.push(*name);
            }
        }
    }
    ensure!(failed.is_empty(), "wrong: {}", failed.join("; "));
    if !without.is_empty() {
        outcome.note = format!("without {}", without.join(", "));
    }
    Ok(outcome)
}

impl Package<'_> {
    /// A file of the unpacked package, as a program's argument.
    pub(super) fn path(&self, path: &str) -> String {
        self.tree.join(path).to_string_lossy().into_owned()
    }

    pub(super) fn version(&self) -> &str {
        &self.release.version
    }

    pub(super) fn work(&self) -> &Path {
        self.parts.work
    }
}

/// An error if something is missing on this machine.
pub(super) fn need(what: &str, is_there: bool) -> Result<()> {
    if is_there { Ok(()) } else { Err(Skipped(what.to_owned()).into()) }
}

fn fields(package: &Package<'_>) -> Result<()> {
    let deb = package.release.deb().to_string_lossy().into_owned();
    let control = program("dpkg-deb", &["--field", &deb])?;
    let version = format!("Version: {}", package.release.debian_version());
    let architecture = format!("Architecture: {DEBIAN_ARCH}");
    for line in ["Package: simurgh", &version, &architecture] {
        ensure!(control.lines().any(|it| it == line), "{line:?} is not in\n{control}");
    }
    let conffiles = program("dpkg-deb", &["--info", &deb, "conffiles"])?;
    ensure!(conffiles.trim() == "/etc/simurgh/simurgh.toml", "conffiles: {conffiles}");
    let pages = &package.parts.texts.pages;
    let has_page = |name: &str| pages.iter().any(|(page, _)| page == name);
    ensure!(has_page("simurgh.1") && has_page("simurgh-serve.1"), "man pages are missing");
    Ok(())
}

fn owners(package: &Package<'_>) -> Result<()> {
    for deb in [package.release.deb(), package.release.dbgsym()] {
        let list = program("dpkg-deb", &["--contents", &deb.to_string_lossy()])?;
        for line in list.lines() {
            let mut words = line.split_whitespace();
            let (mode, owner) = (words.next().unwrap_or_default(), words.next());
            let is_right = match mode.chars().next() {
                Some('d') => mode == "drwxr-xr-x",
                Some('l') => true,
                _ => mode == if line.contains("/usr/bin/") { "-rwxr-xr-x" } else { "-rw-r--r--" },
            };
            ensure!(is_right && owner == Some("root/root"), "{line}");
        }
    }
    Ok(())
}

fn sums(package: &Package<'_>) -> Result<()> {
    let deb = package.release.deb();
    let control = package.work().join("control");
    program("dpkg-deb", &["--control", &deb.to_string_lossy(), &control.to_string_lossy()])?;
    let listed = control.join("md5sums");
    let lines = files::text(&listed)?.lines().count();
    // All except the configuration.
    ensure!(lines + 1 == files::below(&package.tree)?.len(), "{lines} sums");
    let check = "cd \"$1\" && md5sum --check --strict --quiet \"$2\"";
    let (tree, listed) = (package.tree.to_string_lossy(), listed.to_string_lossy());
    program("sh", &["-c", check, "sh", &tree, &listed]).map(drop)
}

fn lintian(package: &Package<'_>) -> Result<()> {
    need("lintian", provide::has("/usr/bin/lintian"))?;
    for deb in [package.release.deb(), package.release.dbgsym()] {
        let deb = deb.to_string_lossy();
        let found =
            program("lintian", &["--fail-on", "error,warning", "--allow-root", "--no-cfg", &deb])?;
        let is_fault = |line: &str| line.starts_with("E:") || line.starts_with("W:");
        ensure!(!found.lines().any(is_fault), "{found}");
    }
    Ok(())
}

fn unit(package: &Package<'_>) -> Result<()> {
    need("systemd-analyze", provide::has("/usr/bin/systemd-analyze"))?;
    // It checks that the started program exists.
    let text = files::text(&package.tree.join("usr/lib/systemd/system/simurgh.service"))?;
    let here = text.replace("/usr/bin/simurgh", &package.path("usr/bin/simurgh"));
    let unit = package.work().join("unit/simurgh.service");
    files::write(&unit, here, 0o644)?;
    let output = program("systemd-analyze", &["verify", "--man=no", &unit.to_string_lossy()])?;
    let about_it: Vec<&str> = output.lines().filter(|line| line.contains("simurgh")).collect();
    ensure!(about_it.is_empty(), "{}", about_it.join("\n"));
    // systemd's exposure from 0 to 10; what remains is the network, which the service needs.
    let limit = ["security", "--offline=yes", "--threshold=20", "--no-pager"];
    program("systemd-analyze", &[&limit[..], &[&*unit.to_string_lossy()]].concat()).map(drop)
}

fn pages(package: &Package<'_>) -> Result<()> {
    let (groff, mandoc) = (provide::has("/usr/bin/man"), provide::has("/usr/bin/mandoc"));
    for (name, page) in &package.parts.texts.pages {
        let file = package.work().join("man").join(name);
        let file = file.to_string_lossy();
        let has_both = page.contains(".SH NAME") && page.contains(".SH SYNOPSIS");
        ensure!(has_both, "{name} has no name or synopsis");
        if groff {
            // The command that lintian uses; warnings go to standard error, the page is discarded.
            let format = "LC_ALL=C.UTF-8 MANROFFSEQ='' MANWIDTH=80 \
                          man --warnings -E UTF-8 -l -Tutf8 -Z \"$1\" 2>&1 >/dev/null";
            let output = program("sh", &["-c", format, "sh", &file])?;
            ensure!(output.trim().is_empty(), "{name}: {output}");
        }
        if mandoc {
            program("mandoc", &["-T", "lint", "-W", "error", &file])?;
        }
    }
    need("man and no mandoc", groff || mandoc)
}

const COMPLETIONS: [(&str, &str, &str); 3] = [
    ("bash", "/usr/bin/bash", "usr/share/bash-completion/completions/simurgh"),
    ("zsh", "/usr/bin/zsh", "usr/share/zsh/vendor-completions/_simurgh"),
    ("fish", "/usr/bin/fish", "usr/share/fish/vendor_completions.d/simurgh.fish"),
];

fn completions(package: &Package<'_>) -> Result<()> {
    let mut without = None;
    for (shell, path, script) in COMPLETIONS {
        if provide::has(path) {
            program(shell, &["-n", &package.path(script)])?;
        } else {
            without = Some(shell);
        }
    }
    without.map_or(Ok(()), |shell| need(shell, false))
}

/// Completes like bash on Tab: the function gets the words, and leaves its proposals.
const COMPLETE: &str = "\
source \"$1\"
COMP_WORDS=($2); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_simurgh simurgh \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"
echo \"${COMPREPLY[@]}\"";

fn bash_completes(package: &Package<'_>) -> Result<()> {
    let (_, _, script) = COMPLETIONS[0];
    for (typed, proposed) in [
        ("simurgh obs", "observe"),
        ("simurgh serve --hib", "--hibernate-after"),
        ("simurgh load ch", "check"),
        ("simurgh completions z", "zsh"),
    ] {
        let got = program("bash", &["-c", COMPLETE, "bash", &package.path(script), typed])?;
        let got = got.trim();
        ensure!(got == proposed, "{typed:?} is completed as {got:?}, not {proposed:?}");
    }
    Ok(())
}

fn symbols(package: &Package<'_>) -> Result<()> {
    let built = package.parts.built;
    ensure!(build::build_id(&built.debug)? == built.build_id, "the build ids differ");
    let (binary, debug) = (package.path("usr/bin/simurgh"), built.debug.to_string_lossy());
    let sections = program("readelf", &["--sections", "--wide", &binary])?;
    ensure!(sections.contains(".gnu_debuglink"), "the binary does not name its symbols");
    let own = program("nm", &[&binary])?;
    ensure!(!own.contains(" T "), "the binary has symbols of its own");
    // A function of ours must be found with its line.
    let names = program("nm", &["--defined-only", &debug])?;
    let is_ours = |line: &&str| line.to_lowercase().contains(" t ") && line.contains("simurgh_cli");
    let ours = names.lines().find(is_ours);
    let address =
        ours.and_then(|line| line.split_whitespace().next()).context("no name of ours")?;
    let place = program("addr2line", &["-e", &debug, address])?;
    ensure!(place.contains(".rs:"), "its place is {place}");
    Ok(())
}

fn paths(package: &Package<'_>) -> Result<()> {
    let root = crate::root().to_string_lossy().into_owned();
    for file in [&package.parts.built.binary, &package.parts.built.debug] {
        let bytes = files::bytes(file)?;
        let is_named = bytes.windows(root.len()).any(|window| window == root.as_bytes());
        ensure!(!is_named, "{} names {root}", file.display());
    }
    Ok(())
}

fn linked(package: &Package<'_>) -> Result<()> {
    let headers = program(
        "readelf",
        &["--program-headers", "--dynamic", "--wide", &package.path("usr/bin/simurgh")],
    )?;
    let is_static = !headers.contains("INTERP") && !headers.contains("(NEEDED)");
    ensure!(is_static == (package.release.link == Link::Static), "{headers}");
    Ok(())
}

fn crates(package: &Package<'_>) -> Result<()> {
    let binary = package.tree.join("usr/bin/simurgh");
    dependencies::check_section(&binary, package.parts.crates)
}

/// The same paths with the same bytes, except for Debian's own.
fn rpm_files(package: &Package<'_>) -> Result<()> {
    need("rpmbuild", provide::has(rpm::RPMBUILD))?;
    let file = package.release.rpm().to_string_lossy().into_owned();
    let mut paths = files::below(&package.tree)?;
    paths.retain(|path| !deb::OF_DEBIAN.contains(&path.as_str()));
    let sums = Task::new("sha256sum", &paths, 1).directory(&package.tree).quiet().run();
    let sums = sums.or_fail("sha256sum")?;
    let wanted: Vec<String> = sums
        .lines()
        .filter_map(|line| line.split_once("  "))
        .map(|(sum, path)| format!("/{path} {sum}"))
        .collect();
    let format = "[%{FILENAMES} %{FILEDIGESTS}\n]";
    let listed = program("rpm", &["--query", "--package", "--queryformat", format, &file])?;
    // Directories have no sum.
    let found: Vec<&str> = listed.lines().filter(|line| !line.ends_with(' ')).collect();
    ensure!(found == wanted, "the rpm has {found:?}, not {wanted:?}");
    let named = program("rpm", &["--query", "--package", "--list", &file])?;
    ensure!(wanted.iter().all(|line| named.lines().any(|path| line.starts_with(path))), "{named}");
    Ok(())
}

/// Files that others read are checked by their own code, which is in Go.
fn outer_files(package: &Package<'_>) -> Result<()> {
    const MINUTES_MAX: u64 = 10;
    need("go", Task::new("go", &["version"], 1).quiet().run().ok())?;
    let task = Task::new("go", &["test", "-count=1", "./..."], MINUTES_MAX)
        .directory(&crate::root().join("packaging/check"))
        .env("SIMURGH_CHART", package.release.chart())
        .env("SIMURGH_SBOM", package.release.sbom())
        .env("SIMURGH_BINARY", package.path("usr/bin/simurgh"));
    task.run().or_fail("go test").map(drop)
}

/// With a key that is thrown away.
fn signature(package: &Package<'_>) -> Result<()> {
    need("minisign", provide::has("/usr/bin/minisign"))?;
    let directory = package.work().join("signature");
    let (key, public) = (directory.join("key"), directory.join("key.pub"));
    let sums = directory.join("SHA256SUMS");
    files::write(&sums, files::bytes(&package.release.sums())?, 0o644)?;
    let (public, sums_text) = (public.to_string_lossy(), sums.to_string_lossy());
    program("minisign", &["-G", "-W", "-p", &public, "-s", &key.to_string_lossy()])?;
    archive::sign(&sums, &key)?;
    let verify = ["-V", "-p", &public, "-m", &sums_text];
    program("minisign", &verify)?;
    files::write(&sums, files::text(&sums)?.replacen(' ', "  ", 1), 0o644)?;
    ensure!(program("minisign", &verify).is_err(), "a changed file has a valid signature");
    Ok(())
}
