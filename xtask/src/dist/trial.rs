//! Runs the installed program: unpacked, in a root without other files, and by dpkg.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use simurgh_bench_kit::process::{Process, Signal};

use super::check::{Package, need};
use super::{ARCH, Link, git, image, program};
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
    let features = format!("features: mimalloc, tls; linux {ARCH}");
    let words = [&features, linked, commit];
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

/// A container, which is removed whatever happens.
struct Container {
    bundle: PathBuf,
    /// Where runc keeps its state, apart from that of others.
    state: PathBuf,
}

impl Container {
    fn runc(&self, order: &[&str]) -> Command {
        let mut command = Command::new(RUNC);
        command.arg("--root").arg(&self.state).args(order).arg(CONTAINER);
        command
    }

    fn run(&self) -> Command {
        self.runc(&["run", "--bundle", &self.bundle.to_string_lossy()])
    }

    /// Runs a program of the image in it.
    fn output(&self, words: &[&str]) -> Result<Output> {
        Ok(self.runc(&["exec"]).args(words).output()?)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.runc(&["delete", "--force"]).output();
    }
}

const RUNC: &str = "/usr/sbin/runc";
const UMOCI: &str = "/usr/bin/umoci";
/// Its name, which is unique in its directory of states.
const CONTAINER: &str = "simurgh";

/// Unpacks the image by the tool of the standard, and runs it with its own user and command.
pub(super) fn image(package: &Package<'_>) -> Result<()> {
    need("root, who may run containers", provide::is_root())?;
    need("runc and umoci", provide::has(RUNC) && provide::has(UMOCI))?;
    let work = package.work().join("container");
    let (layout, bundle) = (work.join("layout"), work.join("bundle"));
    files::directory(&layout)?;
    let archive = package.release.image().to_string_lossy().into_owned();
    program("tar", &["--extract", "--file", &archive, "--directory", &layout.to_string_lossy()])?;
    let tagged = format!("{}:{}", layout.display(), package.release.tag());
    program(UMOCI, &["unpack", "--image", &tagged, &bundle.to_string_lossy()])?;
    let file = bundle.join("config.json");
    let mut config: Value = serde_json::from_slice(&files::bytes(&file)?)?;
    config["process"]["terminal"] = false.into();
    config["root"]["readonly"] = true.into();
    config["process"]["capabilities"] = json!({});
    config["process"]["env"] = json!(["SIMURGH_LOG=warn"]);
    may_run_containers(&work, config.clone())?;
    files::write(&file, config.to_string(), 0o644)?;
    let container = Container { bundle, state: work.join("state") };
    // It has a network of its own, so its ports are free.
    let server = Server::start(&mut container.run())?;
    let settings = image::settings()?;
    let test = settings["Healthcheck"]["Test"].as_array().context("no health check")?;
    let test: Vec<&str> = test.iter().skip(1).filter_map(Value::as_str).collect();
    let health = container.output(&test)?;
    ensure!(health.status.success(), "{}", String::from_utf8_lossy(&health.stderr));
    let observer = ["/usr/bin/simurgh", "observe", "--once", "http://127.0.0.1:4001"];
    let metrics = String::from_utf8(container.output(&observer)?.stdout)?;
    ensure!(metrics.contains(&format!("version {}", package.version())), "{metrics}");
    let state: Value = serde_json::from_slice(&container.runc(&["state"]).output()?.stdout)?;
    let process = PathBuf::from(format!("/proc/{}", state["pid"]));
    let (status, mounts) =
        (files::text(&process.join("status"))?, files::text(&process.join("mounts"))?);
    let is_read_only = mounts.lines().any(|line| line.contains(" / ") && line.contains(" ro,"));
    ensure!(is_read_only && status.contains("\nUid:\t65532\t65532\t"), "{mounts}{status}");
    let stopped = container.runc(&["kill"]).arg("TERM").status()?;
    let ended = server.end()?;
    ensure!(stopped.success() && ended.success(), "it ended with {ended}");
    Ok(())
}

/// Whether `true` of this machine runs in a container like that of the image.
fn may_run_containers(work: &Path, mut config: Value) -> Result<()> {
    let bundle = work.join("probe");
    files::directory(&bundle.join("rootfs"))?;
    config["process"]["args"] = json!(["/usr/bin/true"]);
    let mounts = config["mounts"].as_array_mut().context("no mounts")?;
    let bind = ["rbind", "ro"];
    for path in ["/usr", "/lib", "/lib64"].iter().filter(|path| provide::has(path)) {
        mounts.push(json!({ "destination": path, "source": path, "options": bind }));
    }
    files::write(&bundle.join("config.json"), config.to_string(), 0o644)?;
    let probe = Container { bundle, state: work.join("probe-state") };
    let done = probe.run().output()?;
    let why = String::from_utf8_lossy(&done.stderr);
    need(&format!("containers on this machine ({})", why.trim()), done.status.success())
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

/// Installs into a copy of this machine's files that is gone afterwards.
pub(super) fn rpm(package: &Package<'_>) -> Result<()> {
    need("rpm", provide::has("/usr/bin/rpm") && provide::has(super::rpm::RPMBUILD))?;
    need("root, who may install", provide::is_root())?;
    need("systemd-sysusers", provide::has("/usr/bin/systemd-sysusers"))?;
    let work = package.work().join("rpm-trial");
    files::directory(&work)?;
    let script = crate::root().join("packaging/check/rpm.sh");
    let (script, work) = (script.to_string_lossy(), work.to_string_lossy());
    let probe = program("unshare", &["--mount", "sh", &script, "--probe", &work]);
    need("right to mount overlays", probe.is_ok())?;
    let file = package.release.rpm().to_string_lossy().into_owned();
    program("unshare", &["--mount", "sh", &script, &file, &work]).map(drop)
}
