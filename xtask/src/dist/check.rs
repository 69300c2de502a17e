//! What lies there in the end, looked at from outside. A check that fails fails the release; one
//! whose program is not on this machine is named.

use std::path::{Path, PathBuf};

use super::{Parts, Release, build, files, program, trial};
use crate::outcome::Outcome;
use crate::process::Task;
use crate::provide;

/// What a check came to that did not fail.
pub(super) enum Verdict {
    Right,
    /// Not looked at, for want of a program or right.
    Without(&'static str),
    /// There is nothing to be looked at in a release of this kind.
    NotMeant,
}

type Check = fn(&Made<'_>) -> Result<Verdict, String>;

/// What is looked at.
pub(super) struct Made<'a> {
    pub(super) release: &'a Release,
    parts: &'a Parts<'a>,
    /// The package, unpacked.
    pub(super) tree: PathBuf,
}

const CHECKS: &[(&str, Check)] = &[
    ("the package has every file, and no other", contents),
    ("its files are root's, and nobody else may write them", owners),
    ("its sums are right", sums),
    ("lintian", lintian),
    ("systemd takes the unit", unit),
    ("man pages are sound", pages),
    ("shells take the completions", completions),
    ("bash completes a command and a flag", bash_completes),
    ("symbols belong to the binary", symbols),
    ("the binary names no path of this machine", paths),
    ("the C library is where it should be", linked),
    ("the installed program says which it is", trial::version),
    ("the installed configuration is right, with and without its comments", trial::config),
    ("the installed server serves, tells systemd, and drains", trial::serve),
    ("as Docker's image it serves with nothing else there, as nobody", trial::image),
    ("names of /etc/hosts are found", trial::names),
    ("dpkg installs, upgrades, removes and purges it", trial::dpkg),
    ("SHA256SUMS are right", checksums),
];

pub(super) fn run(release: &Release, parts: &Parts<'_>) -> Result<Outcome, String> {
    let tree = parts.work.join("installed");
    program("dpkg-deb", &["--extract", &release.deb().to_string_lossy(), &tree.to_string_lossy()])?;
    let made = Made { release, parts, tree };
    let mut outcome = Outcome::default();
    let (mut failed, mut without) = (Vec::new(), Vec::new());
    for (name, check) in CHECKS {
        match check(&made) {
            Ok(Verdict::Right) => {
                println!("ok       {name}");
                outcome.passed += 1;
            }
            Ok(Verdict::Without(what)) => {
                println!("SKIPPED  {name}: no {what}");
                outcome.skipped += 1;
                without.push(what);
            }
            Ok(Verdict::NotMeant) => {}
            Err(why) => {
                println!("FAILED   {name}: {why}");
                failed.push(*name);
            }
        }
    }
    if !failed.is_empty() {
        return Err(format!("wrong: {}", failed.join("; ")));
    }
    if !without.is_empty() {
        outcome.note = format!("without {}", without.join(", "));
    }
    Ok(outcome)
}

impl Made<'_> {
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

/// Everything but man pages of single commands, of which there is one for each.
const FILES: &[&str] = &[
    "etc/simurgh/simurgh.toml",
    "usr/bin/simurgh",
    "usr/lib/systemd/system/simurgh.service",
    "usr/lib/sysusers.d/simurgh.conf",
    "usr/share/bash-completion/completions/simurgh",
    "usr/share/doc/simurgh/THIRD-PARTY.txt.gz",
    "usr/share/doc/simurgh/changelog.Debian.gz",
    "usr/share/doc/simurgh/changelog.gz",
    "usr/share/doc/simurgh/copyright",
    "usr/share/doc/simurgh/examples/grafana.json",
    "usr/share/doc/simurgh/examples/sysctl.conf",
    "usr/share/fish/vendor_completions.d/simurgh.fish",
    "usr/share/lintian/overrides/simurgh",
    "usr/share/man/man1/simurgh.1.gz",
    "usr/share/zsh/vendor-completions/_simurgh",
];

fn contents(made: &Made<'_>) -> Result<Verdict, String> {
    let all = files::below(&made.tree)?;
    let is_command = |path: &&String| path.starts_with("usr/share/man/man1/simurgh-");
    let commands: Vec<&String> = all.iter().filter(is_command).collect();
    for name in [
        "config",
        "drive",
        "load",
        "load-check",
        "observe",
        "road",
        "serve",
        "token",
        "token-sign",
        "tune",
    ] {
        let page = format!("usr/share/man/man1/simurgh-{name}.1.gz");
        if !commands.contains(&&page) {
            return Err(format!("there is no {page}"));
        }
    }
    let others: Vec<&String> = all.iter().filter(|path| !is_command(path)).collect();
    if others != FILES.iter().collect::<Vec<_>>() {
        return Err(format!("there are {others:#?}"));
    }
    let deb = made.release.deb().to_string_lossy().into_owned();
    let control = program("dpkg-deb", &["--field", &deb])?;
    let version = format!("Version: {}", made.release.debian_version());
    for line in ["Package: simurgh", &version, "Architecture: amd64"] {
        if !control.lines().any(|it| it == line) {
            return Err(format!("{line:?} is not in\n{control}"));
        }
    }
    let conffiles = program("dpkg-deb", &["--info", &deb, "conffiles"])?;
    if conffiles.trim() != "/etc/simurgh/simurgh.toml" {
        return Err(format!("conffiles: {conffiles}"));
    }
    Ok(Verdict::Right)
}

fn owners(made: &Made<'_>) -> Result<Verdict, String> {
    for deb in [made.release.deb(), made.release.dbgsym()] {
        let list = program("dpkg-deb", &["--contents", &deb.to_string_lossy()])?;
        for line in list.lines() {
            let mut words = line.split_whitespace();
            let (mode, owner) = (words.next().unwrap_or_default(), words.next());
            let is_right = match mode.chars().next() {
                Some('d') => mode == "drwxr-xr-x",
                Some('l') => true,
                _ => mode == if line.contains("/usr/bin/") { "-rwxr-xr-x" } else { "-rw-r--r--" },
            };
            if !is_right || owner != Some("root/root") {
                return Err(line.to_owned());
            }
        }
    }
    Ok(Verdict::Right)
}

fn sums(made: &Made<'_>) -> Result<Verdict, String> {
    let deb = made.release.deb();
    let control = made.work().join("control");
    program("dpkg-deb", &["--control", &deb.to_string_lossy(), &control.to_string_lossy()])?;
    let listed = control.join("md5sums");
    let lines = files::text(&listed)?.lines().count();
    if lines + 1 != files::below(&made.tree)?.len() {
        return Err(format!("{lines} sums"));
    }
    let check = "cd \"$1\" && md5sum --check --strict --quiet \"$2\"";
    let (tree, listed) = (made.tree.to_string_lossy(), listed.to_string_lossy());
    program("sh", &["-c", check, "sh", &tree, &listed]).map(|_| Verdict::Right)
}

fn lintian(made: &Made<'_>) -> Result<Verdict, String> {
    if !provide::has("/usr/bin/lintian") {
        return Ok(Verdict::Without("lintian"));
    }
    for deb in [made.release.deb(), made.release.dbgsym()] {
        let deb = deb.to_string_lossy();
        let found =
            program("lintian", &["--fail-on", "error,warning", "--allow-root", "--no-cfg", &deb])?;
        if found.lines().any(|line| line.starts_with("E:") || line.starts_with("W:")) {
            return Err(found);
        }
    }
    Ok(Verdict::Right)
}

fn unit(made: &Made<'_>) -> Result<Verdict, String> {
    if !provide::has("/usr/bin/systemd-analyze") {
        return Ok(Verdict::Without("systemd-analyze"));
    }
    // It looks whether what is started is there.
    let text = files::text(&made.tree.join("usr/lib/systemd/system/simurgh.service"))?;
    let here = text.replace("/usr/bin/simurgh", &made.path("usr/bin/simurgh"));
    let unit = made.work().join("unit/simurgh.service");
    files::write(&unit, here, 0o644)?;
    let said = program("systemd-analyze", &["verify", "--man=no", &unit.to_string_lossy()])?;
    let about_it: Vec<&str> = said.lines().filter(|line| line.contains("simurgh")).collect();
    if !about_it.is_empty() {
        return Err(about_it.join("\n"));
    }
    // Exposure from 0 to 10 as systemd counts it; what is left is the network, which it is for.
    let limit = ["security", "--offline=yes", "--threshold=20", "--no-pager"];
    program("systemd-analyze", &[&limit[..], &[&*unit.to_string_lossy()]].concat())
        .map(|_| Verdict::Right)
}

fn pages(made: &Made<'_>) -> Result<Verdict, String> {
    let (groff, mandoc) = (provide::has("/usr/bin/man"), provide::has("/usr/bin/mandoc"));
    for (name, page) in &made.parts.texts.pages {
        let file = made.work().join("man").join(name);
        let file = file.to_string_lossy();
        if !page.contains(".SH NAME") || !page.contains(".SH SYNOPSIS") {
            return Err(format!("{name} has no name or synopsis"));
        }
        if groff {
            // As lintian asks for it; warnings go to standard error, the page is of no interest.
            let format = "LC_ALL=C.UTF-8 MANROFFSEQ='' MANWIDTH=80 \
                          man --warnings -E UTF-8 -l -Tutf8 -Z \"$1\" 2>&1 >/dev/null";
            let said = program("sh", &["-c", format, "sh", &file])?;
            if !said.trim().is_empty() {
                return Err(format!("{name}: {said}"));
            }
        }
        if mandoc {
            program("mandoc", &["-T", "lint", "-W", "error", &file])?;
        }
    }
    Ok(if groff || mandoc { Verdict::Right } else { Verdict::Without("man and no mandoc") })
}

const COMPLETIONS: [(&str, &str, &str); 3] = [
    ("bash", "/usr/bin/bash", "usr/share/bash-completion/completions/simurgh"),
    ("zsh", "/usr/bin/zsh", "usr/share/zsh/vendor-completions/_simurgh"),
    ("fish", "/usr/bin/fish", "usr/share/fish/vendor_completions.d/simurgh.fish"),
];

fn completions(made: &Made<'_>) -> Result<Verdict, String> {
    let mut without = Vec::new();
    for (shell, program_path, script) in COMPLETIONS {
        if !provide::has(program_path) {
            without.push(shell);
            continue;
        }
        program(shell, &["-n", &made.path(script)])?;
    }
    match without.as_slice() {
        [] => Ok(Verdict::Right),
        ["fish"] => Ok(Verdict::Without("fish; the others do")),
        ["zsh"] => Ok(Verdict::Without("zsh; the others do")),
        _ => Ok(Verdict::Without("zsh and no fish; bash does")),
    }
}

/// As bash does it when Tab is pressed: the function gets the words, and leaves its proposals.
const COMPLETE: &str = "\
source \"$1\"
COMP_WORDS=($2); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_simurgh simurgh \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"
echo \"${COMPREPLY[@]}\"";

fn bash_completes(made: &Made<'_>) -> Result<Verdict, String> {
    let (_, _, script) = COMPLETIONS[0];
    for (typed, proposed) in [
        ("simurgh obs", "observe"),
        ("simurgh serve --hib", "--hibernate-after"),
        ("simurgh load ch", "check"),
        ("simurgh completions z", "zsh"),
    ] {
        let got = program("bash", &["-c", COMPLETE, "bash", &made.path(script), typed])?;
        if got.trim() != proposed {
            return Err(format!("{typed:?} is completed as {:?}, not {proposed:?}", got.trim()));
        }
    }
    Ok(Verdict::Right)
}

fn symbols(made: &Made<'_>) -> Result<Verdict, String> {
    let built = made.parts.built;
    if build::build_id(&built.debug)? != built.build_id {
        return Err("the build ids differ".to_owned());
    }
    let (binary, debug) = (made.path("usr/bin/simurgh"), built.debug.to_string_lossy());
    if !program("readelf", &["--sections", "--wide", &binary])?.contains(".gnu_debuglink") {
        return Err("the binary does not name its symbols".to_owned());
    }
    if program("nm", &[&binary])?.lines().any(|line| line.contains(" T ")) {
        return Err("the binary has symbols of its own".to_owned());
    }
    // A function of ours leads back to its line.
    let names = program("nm", &["--defined-only", &debug])?;
    let is_ours = |line: &&str| line.to_lowercase().contains(" t ") && line.contains("simurgh_cli");
    let ours = names.lines().find(is_ours);
    let address = ours.and_then(|line| line.split_whitespace().next()).ok_or("no name of ours")?;
    let place = program("addr2line", &["-e", &debug, address])?;
    if place.contains(".rs:") { Ok(Verdict::Right) } else { Err(format!("its place is {place}")) }
}

fn paths(made: &Made<'_>) -> Result<Verdict, String> {
    if made.release.profile != "dist" {
        return Ok(Verdict::NotMeant);
    }
    let root = crate::root().to_string_lossy().into_owned();
    for file in [&made.parts.built.binary, &made.parts.built.debug] {
        let bytes = files::bytes(file)?;
        if bytes.windows(root.len()).any(|window| window == root.as_bytes()) {
            return Err(format!("{} names {root}", file.display()));
        }
    }
    Ok(Verdict::Right)
}

fn linked(made: &Made<'_>) -> Result<Verdict, String> {
    let headers = program(
        "readelf",
        &["--program-headers", "--dynamic", "--wide", &made.path("usr/bin/simurgh")],
    )?;
    let is_static = !headers.contains("INTERP") && !headers.contains("(NEEDED)");
    if is_static != (made.release.link == super::Link::Static) {
        return Err(headers);
    }
    Ok(Verdict::Right)
}

fn checksums(made: &Made<'_>) -> Result<Verdict, String> {
    let out = made.release.out.to_string_lossy();
    let check = "cd \"$1\" && sha256sum --check --strict --quiet SHA256SUMS";
    let done = Task::new("sh", &["-c", check, "sh", &out], 1).quiet().run();
    if done.ok() { Ok(Verdict::Right) } else { Err(done.output) }
}
