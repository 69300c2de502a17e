//! Installs what the tests need: Debian packages if we may, npm packages in `e2e/`, programs of
//! crates.io under `target/tools`. Missing ones are reported, also by the steps that need them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::process::Task;

const MINUTES_MAX: u64 = 8;

pub(crate) const VALGRIND: &str = "/usr/bin/valgrind";

/// A program some tests or benchmarks need, and its Debian packages.
struct Need {
    program: &'static str,
    packages: &'static [&'static str],
}

const NEEDS: &[Need] = &[
    // Without any font Chromium has no text to lay out.
    Need { program: "/usr/bin/chromium", packages: &["chromium", "fonts-dejavu-core"] },
    Need { program: "/usr/sbin/nginx", packages: &["nginx"] },
    // For the load generator's logs. It needs a gnuplot; the one without windows is 23 MB smaller.
    Need { program: "/usr/bin/tsung", packages: &["tsung", "gnuplot-nox"] },
    // The HTTP benchmark compares with it.
    Need { program: "/usr/bin/wrk", packages: &["wrk"] },
    // Several hosts on one: network namespaces.
    Need { program: "/usr/bin/ip", packages: &["iproute2"] },
    // Cuts the links between such hosts.
    Need { program: "/usr/sbin/nft", packages: &["nftables"] },
    // Reads man pages strictly.
    Need { program: "/usr/bin/mandoc", packages: &["mandoc"] },
    // Supabase's Python client gets a separate environment. The package's own files have the
    // version of Python in their path.
    Need { program: "/var/lib/dpkg/info/python3-venv.list", packages: &["python3-venv"] },
    // An application that answers the server's questions.
    Need { program: "/usr/bin/rackup", packages: &["ruby-rails", "ruby-webrick"] },
    // Action Cable needs a server of Ruby that passes on its sockets.
    Need { program: "/usr/bin/puma", packages: &["ruby-rails", "puma"] },
    // libFuzzer is built from source.
    Need { program: "/usr/bin/c++", packages: &["g++"] },
    // Sends the requests of docs/HTTP-API.md.
    Need { program: "/usr/bin/curl", packages: &["curl"] },
    // Types at the prompt of `simurgh drive`.
    Need { program: "/usr/bin/tmux", packages: &["tmux"] },
    // Checks the alerts and the queries of the dashboard; the service is not needed.
    Need { program: "/usr/bin/promtool", packages: &["prometheus"] },
    Need { program: VALGRIND, packages: &["valgrind"] },
    // Make and check what a release has: `cargo xtask dist`.
    Need { program: "/usr/bin/rpmbuild", packages: &["rpm"] },
    Need { program: "/usr/bin/minisign", packages: &["minisign"] },
    Need { program: "/usr/bin/umoci", packages: &["umoci"] },
    Need { program: "/usr/sbin/runc", packages: &["runc"] },
];

/// Installs the missing Debian packages. An error names what is still missing and why.
pub(crate) fn debian_packages() -> Result<()> {
    let missing: Vec<&Need> =
        NEEDS.iter().filter(|need| !Path::new(need.program).exists()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().flat_map(|need| need.packages).copied().collect();
    install(&packages)
}

pub(crate) fn debian_package(name: &str) -> Result<()> {
    install(&[name])
}

fn install(packages: &[&str]) -> Result<()> {
    let named = packages.join(", ");
    ensure!(
        Path::new("/usr/bin/apt-get").exists(),
        "{named}: not installed, and there is no apt-get"
    );
    ensure!(is_root(), "{named}: not installed, and only root may install");
    apt_get(&["update"])?;
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages);
    apt_get(&arguments)
}

pub(crate) fn has(program: &str) -> bool {
    Path::new(program).exists()
}

/// Where `package-lock.json` lists packages of npm.
const NPM: [&str; 2] = ["e2e", "examples/any_language/express"];

/// Runs `npm ci` in each of [`NPM`] whose exact lock file is not installed already.
pub(crate) fn npm_packages() -> Result<()> {
    NPM.iter().try_for_each(|directory| npm_ci(&crate::root().join(directory)))
}

fn npm_ci(directory: &Path) -> Result<()> {
    let stamp = directory.join("node_modules/.installed-lock.json");
    let lock = fs::read(directory.join("package-lock.json"))?;
    if fs::read(&stamp).is_ok_and(|installed| installed == lock) {
        return Ok(());
    }
    let task = Task::new("npm", &["ci", "--no-audit", "--no-fund"], MINUTES_MAX);
    task.directory(directory).run().or_fail("npm ci")?;
    fs::write(&stamp, lock).with_context(|| stamp.display().to_string())
}

/// Debian's own: others may be of any version.
const PYTHON: &str = "/usr/bin/python3";

/// Makes an environment with exactly the packages that a suite of `e2e/` requires, if needed, and
/// returns its Python.
pub(crate) fn python_packages(suite: &str) -> Result<PathBuf> {
    let requirements = crate::root().join("e2e").join(suite).join("requirements.txt");
    let text = fs::read(&requirements).with_context(|| requirements.display().to_string())?;
    let environment = crate::root().join("target/tools").join(suite);
    let (stamp, python) = (environment.join("installed.txt"), environment.join("bin/python"));
    if python.exists() && fs::read(&stamp).is_ok_and(|installed| installed == text) {
        return Ok(python);
    }
    let directory = environment.display().to_string();
    let make = ["-m", "venv", "--clear", &directory];
    Task::new(PYTHON, &make, MINUTES_MAX).run().or_fail("no Python environment")?;
    let listed = requirements.display().to_string();
    let install = ["-m", "pip", "install", "--no-deps", "--no-input", "--quiet", "-r", &listed];
    Task::new(&python.display().to_string(), &install, MINUTES_MAX).run().or_fail("pip install")?;
    fs::write(&stamp, text).with_context(|| stamp.display().to_string())?;
    Ok(python)
}

/// A program of crates.io, in a fixed version, so that its results do not change by themselves.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// Unoptimised, for programs built in CI that run for a second.
    pub(crate) debug: bool,
}

const TOOL_MINUTES_MAX: u64 = 20;

/// The program's path; builds it if this version is missing.
pub(crate) fn cargo_tool(tool: &Tool) -> Result<PathBuf> {
    let Tool { name, version, debug } = tool;
    let root = crate::root().join("target/tools").join(format!("{name}-{version}"));
    let program = root.join("bin").join(name);
    if !program.exists() {
        let root = root.display().to_string();
        let exactly = format!("={version}");
        let mut wanted = vec!["install", name, "--locked", "--version", &exactly, "--root", &root];
        wanted.extend(debug.then_some("--debug"));
        // Debug information is not needed.
        let task =
            Task::new("cargo", &wanted, TOOL_MINUTES_MAX).env("CARGO_PROFILE_DEV_DEBUG", "0");
        let done = task.run();
        if !done.ok() {
            let last = done.output.lines().rfind(|line| !line.trim().is_empty());
            let last = last.unwrap_or_default().trim();
            bail!("{name} cannot be installed: {}: {last}", done.reason());
        }
    }
    Ok(program)
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let task = Task::new("apt-get", arguments, MINUTES_MAX);
    let done = task.env("DEBIAN_FRONTEND", "noninteractive").run();
    done.or_fail(format_args!("apt-get {}", arguments[0])).map(drop)
}

pub(crate) fn is_root() -> bool {
    Task::new("id", &["-u"], 1).quiet().run().output.trim() == "0"
}
