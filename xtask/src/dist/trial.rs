//! Runs the installed program: unpacked, in a root without other files, and by dpkg.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use simurgh_bench_kit::process::{Process, Signal};

use super::check::{Package, need};
use super::{Link, git, program};
use crate::files;
use crate::provide;

const WAIT_MAX: Duration = Duration::from_secs(20);

/// By its path: programs in there get no environment, and so no search path.
const CHROOT: &str = "/usr/sbin/chroot";

pub(super) fn version(package: &Package<'_>) -> Result<()> {
    let simurgh = package.path("usr/bin/simurgh");
    let (long, short) = (program(&simurgh, &["--version"])?, program(&simurgh, &["-V"])?);
    let linked = if package.release.link == Link::Static { "static" } else { "dynamic" };
    let commit = git(&["rev-parse", "--short=10", "HEAD"]).unwrap_or_default();
    let commit = commit.get(..10).unwrap_or(&commit);
    let start = format!("simurgh {} (", package.version());
    let words = ["features: mimalloc, tls; linux x86_64", linked, commit];
    let is_right = long.starts_with(&start)
        && long.lines().count() == 1
        && words.iter().all(|word| long.contains(word))
        && short == format!("simurgh {}\n", package.version());
    ensure!(is_right, "{long}{short}");
    Ok(())
}

pub(super) fn config(package: &Package<'_>) -> Result<()> {
    let (simurgh, file) =
        (package.path("usr/bin/simurgh"), package.path("etc/simurgh/simurgh.toml"));
    program(&simurgh, &["config", "--check", &file])?;
    let installed = files::text(Path::new(&file))?;
    let is_comment = |line: &str| line.is_empty() || line.starts_with('#');
    ensure!(installed.lines().all(is_comment), "a line of it is no comment");
    let plain: Vec<&str> = installed
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if !rest.is_empty() && !rest.starts_with(' ') => rest,
            _ => line,
        })
        .collect();
    let all = package.work().join("all.toml");
    // systemd makes that folder when it starts the service.
    let text = plain.join("\n").replace("/var/lib/simurgh", &package.work().to_string_lossy());
    files::write(&all, text, 0o644)?;
    program(&simurgh, &["config", "--check", &all.to_string_lossy()]).map(drop)
}

struct Server {
    process: Process,
    /// Its address, such as `http://127.0.0.1:4000`.
    url: String,
}

impl Server {
    /// Starts it, and waits until it prints its address.
    fn start(command: &mut Command) -> Result<Self> {
        let mut process = Process::with_output(command)?;
        let url = process.line("listening on ", WAIT_MAX)?;
        Ok(Self { process, url })
    }

    fn terminate(&self) -> Result<()> {
        self.process.signal(Signal::TERM)
    }

    /// Its exit status, once it has ended.
    fn end(self) -> Result<ExitStatus> {
        self.process.finish(WAIT_MAX).map(|(status, _)| status)
    }
}

/// With the installed configuration. A test of the program checks what it tells systemd.
pub(super) fn serve(package: &Package<'_>) -> Result<()> {
    let simurgh = package.path("usr/bin/simurgh");
    let mut command = Command::new(&simurgh);
    command
        .args(["serve", "--config", &package.path("etc/simurgh/simurgh.toml")])
        .args(["--listen", "127.0.0.1:0", "--drain-time", "100ms", "--log", "warn"])
        .env_remove("SIMURGH_API_TOKEN");
    let server = Server::start(&mut command)?;
    let healthy = program(&simurgh, &["observe", "--health", &server.url])?;
    let metrics = program(&simurgh, &["observe", "--once", &server.url])?;
    let is_it = metrics.contains(&format!("version {}", package.version()));
    ensure!(healthy.trim() == "ok" && is_it, "{healthy}{metrics}");
    server.terminate()?;
    let status = server.end()?;
    ensure!(status.success(), "it ended with {status}");
    Ok(())
}

/// Follows the Dockerfile, with chroot in place of Docker: files, user, command, health check.
pub(super) fn image(package: &Package<'_>) -> Result<()> {
    need("root, who may chroot", provide::is_root())?;
    let from = package.release.out.join("docker");
    let root = package.work().join("image");
    let dockerfile = files::text(&from.join("Dockerfile"))?.replace("\\\n", " ");
    let mut user = String::new();
    let (mut entry, mut health) = (Vec::new(), Vec::new());
    for line in dockerfile.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "COPY" => copy(&from, &root, rest)?,
            "USER" => user = rest.to_owned(),
            "ENTRYPOINT" | "CMD" => entry.extend(list(rest)),
            "HEALTHCHECK" => health = list(rest.split_once("CMD").map_or("", |(_, list)| list)),
            _ => {}
        }
    }
    let free = |word: String| word.replace("0.0.0.0:4000", "127.0.0.1:0").replace(":4001", ":0");
    let entry: Vec<String> = entry.into_iter().map(free).collect();
    let chroot = |words: &[String]| {
        let mut command = Command::new(CHROOT);
        command.arg(format!("--userspec={user}")).arg(&root).args(words);
        command.env_clear();
        command
    };
    let server = Server::start(chroot(&entry).args(["--drain-time", "100ms", "--log", "warn"]))?;
    let there = |word: &String| word.replace("http://127.0.0.1:4000", &server.url);
    let health: Vec<String> = health.iter().map(there).collect();
    let looked = chroot(&health).output()?;
    ensure!(looked.status.success(), "{health:?}: {}", String::from_utf8_lossy(&looked.stderr));
    server.terminate()?;
    let status = server.end()?;
    let after = chroot(&health).output()?.status.code();
    let is_right = status.success() && after == Some(1);
    ensure!(is_right, "it ended with {status}, and its health then with {after:?}");
    Ok(())
}

/// `COPY from… to`, of plain files.
fn copy(from: &Path, root: &Path, words: &str) -> Result<()> {
    let words: Vec<&str> = words.split_whitespace().collect();
    let (to, sources) = words.split_last().context("COPY of nothing")?;
    for source in sources {
        let name = if to.ends_with('/') { format!("{to}{source}") } else { (*to).to_owned() };
        let bits = if *source == "simurgh" { 0o755 } else { 0o644 };
        let bytes = files::bytes(&from.join(source))?;
        files::write(&root.join(name.trim_start_matches('/')), bytes, bits)?;
    }
    Ok(())
}

fn list(text: &str) -> Vec<String> {
    text.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Resolves names in a root whose sources of them are a missing plug-in and the two in the binary.
pub(super) fn names(package: &Package<'_>) -> Result<()> {
    need("root, who may chroot", provide::is_root())?;
    let simurgh = package.path("usr/bin/simurgh");
    let mut serve = Command::new(&simurgh);
    let flags = ["serve", "--listen", "127.0.0.1:0", "--log", "warn"];
    let server = Server::start(serve.args(flags).current_dir(package.work()))?;
    let port = server.url.rsplit(':').next().unwrap_or_default();
    let root = package.work().join("names");
    files::write(&root.join("simurgh"), files::bytes(Path::new(&simurgh))?, 0o755)?;
    let hosts = "127.0.0.1 localhost\n127.0.0.1 somewhere.example else\n";
    files::write(&root.join("etc/hosts"), hosts, 0o644)?;
    files::write(&root.join("etc/nsswitch.conf"), "hosts: myhostname\n", 0o644)?;
    let root = root.to_string_lossy();
    for name in ["localhost", "else"] {
        let url = format!("http://{name}:{port}");
        program(CHROOT, &[&root, "/simurgh", "observe", "--health", &url])?;
    }
    let unknown = format!("http://nowhere.example:{port}");
    let found = program(CHROOT, &[&root, "/simurgh", "observe", "--health", &unknown]);
    ensure!(found.is_err(), "a name is found that nobody has");
    Ok(())
}

/// Installs into a separate root: Debian's `dpkg` with the package's scripts.
pub(super) fn dpkg(package: &Package<'_>) -> Result<()> {
    need("root, who may install", provide::is_root())?;
    let programs = ["/usr/bin/systemd-sysusers", "/usr/bin/deb-systemd-helper"];
    need("systemd-sysusers", programs.iter().all(|it| provide::has(it)))?;
    let root = package.work().join("root");
    for (path, text) in [("var/lib/dpkg/status", ""), ("var/lib/dpkg/info/format", "1\n")] {
        files::write(&root.join(path), text, 0o644)?;
    }
    files::directory(&root.join("var/lib/dpkg/updates"))?;
    files::directory(&root.join("etc"))?;
    files::write(&root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n", 0o644)?;
    files::write(&root.join("etc/group"), "root:x:0:\n", 0o644)?;
    let at = format!("--root={}", root.display());
    // The scripts run outside, as there is no shell in there, and get the root's path.
    let dpkg = |order: &str, what: &str| {
        let how = ["--force-script-chrootless", "--force-depends", "--force-confold"];
        program("dpkg", &[&[at.as_str()], &how[..], &[order, what]].concat())
    };
    let deb = package.release.deb().to_string_lossy().into_owned();
    dpkg("--install", &deb)?;
    let config = root.join("etc/simurgh/simurgh.toml");
    let bits = fs::metadata(&config)?.permissions().mode();
    let user = files::text(&root.join("etc/passwd"))?;
    let wanted = root.join("etc/systemd/system/multi-user.target.wants/simurgh.service");
    let is_enabled = wanted.is_symlink();
    let is_right = bits & 0o777 == 0o640 && user.contains("\nsimurgh:") && is_enabled;
    ensure!(is_right, "installed: mode {bits:o}, {user}, enabled: {is_enabled}");
    let changed = files::text(&config)? + "drain_time = \"30s\"\n";
    fs::write(&config, &changed)?;
    dpkg("--install", &deb)?;
    let kept = files::text(&config)?;
    ensure!(kept == changed, "an upgrade took what was changed in the configuration");
    dpkg("--remove", "simurgh")?;
    let is_right = !root.join("usr/bin/simurgh").exists() && config.exists();
    ensure!(is_right, "removed: the program stays, or the configuration goes");
    dpkg("--purge", "simurgh")?;
    let left: Vec<String> =
        files::below(&root)?.into_iter().filter(|path| path.contains("simurgh")).collect();
    ensure!(left.is_empty(), "purged, and there is {left:?}");
    Ok(())
}
