//! The installed program, run: from the unpacked package, in a root with nothing else, and by dpkg.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::SocketAddr;
#[allow(clippy::disallowed_types, reason = "this process has no shards")]
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::check::{Made, Verdict};
use super::{Link, files, git, program};
use crate::provide;

/// The longest that anything here takes.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// By its path: what runs in there gets no environment, and so no way to find it.
const CHROOT: &str = "/usr/sbin/chroot";

pub(super) fn version(made: &Made<'_>) -> Result<Verdict, String> {
    let simurgh = made.path("usr/bin/simurgh");
    let (long, short) = (program(&simurgh, &["--version"])?, program(&simurgh, &["-V"])?);
    let linked = if made.release.link == Link::Static { "static" } else { "dynamic" };
    let commit = git(&["rev-parse", "--short=10", "HEAD"]).unwrap_or_default();
    let commit = commit.get(..10).unwrap_or(&commit);
    let start = format!("simurgh {} (", made.version());
    let words = ["features: mimalloc, tls; linux x86_64", linked, commit];
    let is_right = long.starts_with(&start)
        && long.lines().count() == 1
        && words.iter().all(|word| long.contains(word))
        && short == format!("simurgh {}\n", made.version());
    if is_right { Ok(Verdict::Right) } else { Err(format!("{long}{short}")) }
}

pub(super) fn config(made: &Made<'_>) -> Result<Verdict, String> {
    let (simurgh, file) = (made.path("usr/bin/simurgh"), made.path("etc/simurgh/simurgh.toml"));
    program(&simurgh, &["config", "--check", &file])?;
    let installed = files::text(Path::new(&file))?;
    if installed.lines().any(|line| !line.is_empty() && !line.starts_with('#')) {
        return Err("a line of it is no comment".to_owned());
    }
    let plain: Vec<&str> = installed
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if !rest.is_empty() && !rest.starts_with(' ') => rest,
            _ => line,
        })
        .collect();
    let all = made.work().join("all.toml");
    // systemd makes that folder when it starts the service.
    let text = plain.join("\n").replace("/var/lib/simurgh", &made.work().to_string_lossy());
    files::write(&all, text, 0o644)?;
    program(&simurgh, &["config", "--check", &all.to_string_lossy()]).map(|_| Verdict::Right)
}

/// A server that is ended when it is dropped.
struct Server {
    child: Child,
    /// Where it listens, as in `http://127.0.0.1:4000`.
    url: String,
}

impl Server {
    /// Starts it and reads from its standard output where it listens.
    fn start(command: &mut Command) -> Result<Self, String> {
        let spawned = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let mut child = spawned.map_err(|error| format!("{command:?} does not start: {error}"))?;
        let (said, hears) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || {
                let mut line = String::new();
                let _ = BufReader::new(stdout).read_line(&mut line);
                let _ = said.send(line);
            });
        }
        let mut server = Self { child, url: String::new() };
        let line = hears.recv_timeout(WAIT_MAX).unwrap_or_default();
        server.url = line.trim().strip_prefix("listening on ").unwrap_or_default().to_owned();
        if server.url.is_empty() { Err(format!("it says {line:?}")) } else { Ok(server) }
    }

    fn terminate(&self) -> Result<(), String> {
        program("kill", &["-TERM", &self.child.id().to_string()]).map(drop)
    }

    /// Its status, once it has ended.
    fn end(&mut self) -> Result<i32, String> {
        let start = Instant::now();
        while start.elapsed() < WAIT_MAX {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.code().ok_or_else(|| "a signal ended it".to_owned());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err("it does not end".to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What systemd would be told, by an abstract address.
#[allow(clippy::disallowed_types, reason = "this process has no shards")]
struct Manager {
    socket: UnixDatagram,
    name: String,
}

#[allow(clippy::disallowed_types, reason = "this process has no shards")]
impl Manager {
    fn new() -> Result<Self, String> {
        let name = format!("simurgh-dist-{}", std::process::id());
        let bind = |name: &str| {
            let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
            socket.set_read_timeout(Some(WAIT_MAX))?;
            Ok::<_, std::io::Error>(socket)
        };
        let socket = bind(&name).map_err(|error| format!("a socket named {name}: {error}"))?;
        Ok(Self { socket, name: format!("@{name}") })
    }

    /// Waits for a word; the message that it is in.
    fn hears(&self, word: &str) -> Result<String, String> {
        let mut buffer = [0; 4096];
        let start = Instant::now();
        while start.elapsed() < WAIT_MAX {
            let count = self.socket.recv(&mut buffer).map_err(|e| format!("no {word}: {e}"))?;
            let message = String::from_utf8_lossy(buffer.get(..count).unwrap_or_default());
            if message.lines().any(|line| line == word) {
                return Ok(message.into_owned());
            }
        }
        Err(format!("no {word}"))
    }
}

pub(super) fn serve(made: &Made<'_>) -> Result<Verdict, String> {
    let manager = Manager::new()?;
    let simurgh = made.path("usr/bin/simurgh");
    let mut command = Command::new(&simurgh);
    command
        .args(["serve", "--config", &made.path("etc/simurgh/simurgh.toml")])
        .args(["--listen", "127.0.0.1:0", "--drain-time", "100ms", "--log", "warn"])
        .env("NOTIFY_SOCKET", &manager.name)
        .env("WATCHDOG_USEC", "200000")
        .env_remove("SIMURGH_API_TOKEN");
    let mut server = Server::start(&mut command)?;
    let ready = manager.hears("READY=1")?;
    if !ready.contains(&format!("STATUS=listening on {}", server.url)) {
        return Err(format!("ready: {ready}"));
    }
    let healthy = program(&simurgh, &["observe", "--health", &server.url])?;
    let metrics = program(&simurgh, &["observe", "--once", &server.url])?;
    if healthy.trim() != "ok" || !metrics.contains(&format!("version {}", made.version())) {
        return Err(format!("{healthy}{metrics}"));
    }
    manager.hears("WATCHDOG=1")?;
    server.terminate()?;
    let stopping = manager.hears("STOPPING=1")?;
    if !stopping.contains("EXTEND_TIMEOUT_USEC=") {
        return Err(format!("stopping: {stopping}"));
    }
    match server.end()? {
        0 => Ok(Verdict::Right),
        code => Err(format!("it ended with {code}")),
    }
}

/// What the Dockerfile says, with chroot in the place of Docker: its files and no other, its user,
/// its command, its look at the health.
pub(super) fn image(made: &Made<'_>) -> Result<Verdict, String> {
    if made.release.link != Link::Static {
        return Ok(Verdict::NotMeant);
    }
    if !provide::is_root() {
        return Ok(Verdict::Without("root, who may chroot"));
    }
    let from = made.release.out.join("docker");
    let root = made.work().join("image");
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
    let mut server =
        Server::start(chroot(&entry).args(["--drain-time", "100ms", "--log", "warn"]))?;
    let there = |word: &String| word.replace("http://127.0.0.1:4000", &server.url);
    let health: Vec<String> = health.iter().map(there).collect();
    let looked = chroot(&health).output().map_err(|error| error.to_string())?;
    if !looked.status.success() {
        return Err(format!("{health:?}: {}", String::from_utf8_lossy(&looked.stderr)));
    }
    server.terminate()?;
    let gone = server.end()?;
    let after = chroot(&health).output().map_err(|error| error.to_string())?;
    match (gone, after.status.code()) {
        (0, Some(1)) => Ok(Verdict::Right),
        (code, health) => Err(format!("it ended with {code}, and its health then with {health:?}")),
    }
}

/// `COPY from… to`, of plain files.
fn copy(from: &Path, root: &Path, words: &str) -> Result<(), String> {
    let words: Vec<&str> = words.split_whitespace().collect();
    let (to, sources) = words.split_last().ok_or("COPY of nothing")?;
    for source in sources {
        let name = if to.ends_with('/') { format!("{to}{source}") } else { (*to).to_owned() };
        let bits = if *source == "simurgh" { 0o755 } else { 0o644 };
        let bytes = files::bytes(&from.join(source))?;
        files::write(&root.join(name.trim_start_matches('/')), bytes, bits)?;
    }
    Ok(())
}

/// The words of Docker's JSON form, `["a", "b"]`.
fn list(text: &str) -> Vec<String> {
    text.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// With a root whose only source of names is a plug-in that is not there, but for the two that the
/// binary has inside.
pub(super) fn names(made: &Made<'_>) -> Result<Verdict, String> {
    if made.release.link != Link::Static {
        return Ok(Verdict::NotMeant);
    }
    if !provide::is_root() {
        return Ok(Verdict::Without("root, who may chroot"));
    }
    let simurgh = made.path("usr/bin/simurgh");
    let mut serve = Command::new(&simurgh);
    let flags = ["serve", "--listen", "127.0.0.1:0", "--log", "warn"];
    let server = Server::start(serve.args(flags).current_dir(made.work()))?;
    let port = server.url.rsplit(':').next().unwrap_or_default();
    let root = made.work().join("names");
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
    match program(CHROOT, &[&root, "/simurgh", "observe", "--health", &unknown]) {
        Ok(_) => Err("a name is found that nobody has".to_owned()),
        Err(_) => Ok(Verdict::Right),
    }
}

/// Into a root of its own: `dpkg` as it is, with the package's scripts.
pub(super) fn dpkg(made: &Made<'_>) -> Result<Verdict, String> {
    if !provide::is_root() {
        return Ok(Verdict::Without("root, who may install"));
    }
    if !["/usr/bin/systemd-sysusers", "/usr/bin/deb-systemd-helper"]
        .iter()
        .all(|it| provide::has(it))
    {
        return Ok(Verdict::Without("systemd-sysusers"));
    }
    let root = made.work().join("root");
    for (path, text) in [("var/lib/dpkg/status", ""), ("var/lib/dpkg/info/format", "1\n")] {
        files::write(&root.join(path), text, 0o644)?;
    }
    files::directory(&root.join("var/lib/dpkg/updates"))?;
    files::directory(&root.join("etc"))?;
    files::write(&root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n", 0o644)?;
    files::write(&root.join("etc/group"), "root:x:0:\n", 0o644)?;
    let at = format!("--root={}", root.display());
    // The scripts run outside, as there is no shell in there, and are told where it is.
    let dpkg = |order: &str, what: &str| {
        let how = ["--force-script-chrootless", "--force-depends", "--force-confold"];
        program("dpkg", &[&[at.as_str()], &how[..], &[order, what]].concat())
    };
    let deb = made.release.deb().to_string_lossy().into_owned();
    dpkg("--install", &deb)?;
    let config = root.join("etc/simurgh/simurgh.toml");
    let bits = fs::metadata(&config).map_err(|error| error.to_string())?.permissions().mode();
    let user = files::text(&root.join("etc/passwd"))?;
    let wanted = root.join("etc/systemd/system/multi-user.target.wants/simurgh.service");
    if bits & 0o777 != 0o640 || !user.contains("\nsimurgh:") || !wanted.is_symlink() {
        return Err(format!("installed: mode {bits:o}, {user}, enabled: {}", wanted.is_symlink()));
    }
    let changed = files::text(&config)? + "drain_time = \"30s\"\n";
    fs::write(&config, &changed).map_err(|error| error.to_string())?;
    dpkg("--install", &deb)?;
    if files::text(&config)? != changed {
        return Err("an upgrade took what was changed in the configuration".to_owned());
    }
    dpkg("--remove", "simurgh")?;
    if root.join("usr/bin/simurgh").exists() || !config.exists() {
        return Err("removed: the program stays, or the configuration goes".to_owned());
    }
    dpkg("--purge", "simurgh")?;
    let left: Vec<String> =
        files::below(&root)?.into_iter().filter(|path| path.contains("simurgh")).collect();
    if left.is_empty() { Ok(Verdict::Right) } else { Err(format!("purged, and there is {left:?}")) }
}
