//! Installs what the tests need and the machine lacks: Debian packages when we may, npm packages in
//! `e2e/`, programs of crates.io under `target/tools`. What cannot be had is named, and the steps
//! that need it say so.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::Task;

const MINUTES_MAX: u64 = 8;

/// A program some tests or benchmarks need, and the Debian packages that bring it.
struct Need {
    program: &'static str,
    packages: &'static [&'static str],
}

const NEEDS: &[Need] = &[
    // Without any font Chromium has no text to lay out.
    Need { program: "/usr/bin/chromium", packages: &["chromium", "fonts-dejavu-core"] },
    Need { program: "/usr/sbin/nginx", packages: &["nginx"] },
    // Its scripts have to take the load generator's logs. It wants a gnuplot; the one without
    // windows brings 23 MB less.
    Need { program: "/usr/bin/tsung", packages: &["tsung", "gnuplot-nox"] },
    // What the HTTP benchmark is held against.
    Need { program: "/usr/bin/wrk", packages: &["wrk"] },
    // Several hosts on one: network namespaces.
    Need { program: "/usr/bin/ip", packages: &["iproute2"] },
    // Cuts the ways between such hosts.
    Need { program: "/usr/sbin/nft", packages: &["nftables"] },
    // Reads man pages strictly.
    Need { program: "/usr/bin/mandoc", packages: &["mandoc"] },
    // Supabase's Python client gets an environment of its own. What the package brings has the
    // version of Python in its path.
    Need { program: "/var/lib/dpkg/info/python3-venv.list", packages: &["python3-venv"] },
    // libFuzzer is built of its source.
    Need { program: "/usr/bin/c++", packages: &["g++"] },
    // The prompt of `simurgh drive` is typed at.
    Need { program: "/usr/bin/tmux", packages: &["tmux"] },
    // Counts instructions.
    Need { program: crate::bench::instructions::VALGRIND, packages: &["valgrind"] },
];

/// Installs the missing Debian packages. An error names what is still missing and why.
pub(crate) fn debian_packages() -> Result<(), String> {
    let missing: Vec<&Need> =
        NEEDS.iter().filter(|need| !Path::new(need.program).exists()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().flat_map(|need| need.packages).copied().collect();
    install(&packages)
}

/// Installs one Debian package. An error says why it cannot be.
pub(crate) fn debian_package(name: &str) -> Result<(), String> {
    install(&[name])
}

fn install(packages: &[&str]) -> Result<(), String> {
    let named = packages.join(", ");
    if !Path::new("/usr/bin/apt-get").exists() {
        return Err(format!("{named}: not installed, and there is no apt-get"));
    }
    if !is_root() {
        return Err(format!("{named}: not installed, and only root may install"));
    }
    apt_get(&["update"])?;
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages);
    apt_get(&arguments)
}

/// Whether `program` (a path) is there now.
pub(crate) fn has(program: &str) -> bool {
    Path::new(program).exists()
}

/// Runs `npm ci` in `e2e/`, unless this very lock file is installed already.
pub(crate) fn npm_packages() -> Result<(), String> {
    let e2e = crate::root().join("e2e");
    let stamp = e2e.join("node_modules/.installed-lock.json");
    let lock = fs::read(e2e.join("package-lock.json")).map_err(|error| error.to_string())?;
    if fs::read(&stamp).is_ok_and(|installed| installed == lock) {
        return Ok(());
    }
    let done =
        Task::new("npm", &["ci", "--no-audit", "--no-fund"], MINUTES_MAX).directory(&e2e).run();
    if !done.ok() {
        return Err(format!("npm ci: {}", done.reason()));
    }
    fs::write(&stamp, lock).map_err(|error| format!("{}: {error}", stamp.display()))
}

/// Debian's own: others may be of any version.
const PYTHON: &str = "/usr/bin/python3";

/// Makes an environment of exactly what a requirements file lists, unless it is there, and gives
/// its Python.
pub(crate) fn python_packages(requirements: &Path) -> Result<PathBuf, String> {
    let text =
        fs::read(requirements).map_err(|error| format!("{}: {error}", requirements.display()))?;
    let environment = crate::root().join("target/tools/supabase-py");
    let (stamp, python) = (environment.join("installed.txt"), environment.join("bin/python"));
    if python.exists() && fs::read(&stamp).is_ok_and(|installed| installed == text) {
        return Ok(python);
    }
    let directory = environment.display().to_string();
    let made = Task::new(PYTHON, &["-m", "venv", "--clear", &directory], MINUTES_MAX).run();
    if !made.ok() {
        return Err(format!("no Python environment: {}", made.reason()));
    }
    let listed = requirements.display().to_string();
    let install = ["-m", "pip", "install", "--no-deps", "--no-input", "--quiet", "-r", &listed];
    let installed = Task::new(&python.display().to_string(), &install, MINUTES_MAX).run();
    if !installed.ok() {
        return Err(format!("pip install: {}", installed.reason()));
    }
    fs::write(&stamp, text).map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(python)
}

/// A program of crates.io, always of this version: what it says must not change by itself.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// Unoptimised, for what is built in CI and runs for a second.
    pub(crate) debug: bool,
}

/// How long building a program may take.
const TOOL_MINUTES_MAX: u64 = 20;

/// Where the program is; built if this version is not there.
pub(crate) fn cargo_tool(tool: &Tool) -> Result<PathBuf, String> {
    let Tool { name, version, debug } = tool;
    let root = crate::root().join("target/tools").join(format!("{name}-{version}"));
    let program = root.join("bin").join(name);
    if !program.exists() {
        let root = root.display().to_string();
        let exactly = format!("={version}");
        let mut wanted = vec!["install", name, "--locked", "--version", &exactly, "--root", &root];
        wanted.extend(debug.then_some("--debug"));
        // Nobody debugs it.
        let task =
            Task::new("cargo", &wanted, TOOL_MINUTES_MAX).env("CARGO_PROFILE_DEV_DEBUG", "0");
        let done = task.run();
        if !done.ok() {
            let said = done.output.lines().rfind(|line| !line.trim().is_empty());
            let said = said.unwrap_or_default().trim();
            return Err(format!("{name} cannot be installed: {}: {said}", done.reason()));
        }
    }
    Ok(program)
}

fn apt_get(arguments: &[&str]) -> Result<(), String> {
    let done =
        Task::new("apt-get", arguments, MINUTES_MAX).env("DEBIAN_FRONTEND", "noninteractive").run();
    if done.ok() { Ok(()) } else { Err(format!("apt-get {}: {}", arguments[0], done.reason())) }
}

/// Whether we may do what only root may.
pub(crate) fn is_root() -> bool {
    Task::new("id", &["-u"], 1).quiet().run().output.trim() == "0"
}
