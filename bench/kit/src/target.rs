//! Servers under test: how they are started, found, asked for their counters, and ended.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::children;

/// The core a server is pinned to, with all its threads.
pub const SERVER_CORE: usize = 0;
/// The core the clients run on.
pub const CLIENT_CORE: usize = 1;
const LISTEN: &str = "127.77.0.1:0";
/// What Simurgh serves unless a row has settings of its own: the built-in chat keeps the last
/// broadcasts of its rooms, which would be part of every figure.
const CHAT: &str = include_str!("../../chat.toml");

/// One kind of server. All speak the same bytes to the client; see `frames`.
#[derive(Clone)]
pub struct Target {
    /// Its column in the table.
    pub name: &'static str,
    program: PathBuf,
    arguments: Vec<OsString>,
    settings: Settings,
    /// Bytes of address space; `None`: as many as this process may have.
    address_space: Option<u64>,
}

/// What a server reads its settings from.
#[derive(Clone)]
enum Settings {
    /// It has none.
    No,
    /// A file of [`CHAT`], which is there while it starts.
    Chat,
    File(PathBuf),
}

impl Target {
    /// The bare floor: this binary again.
    pub fn floor() -> Result<Self> {
        let program = std::env::current_exe().context("own path")?;
        let arguments = words(&["floor", "--listen", LISTEN]);
        Ok(Self::of("floor", program, arguments, Settings::No))
    }

    /// The bare loop that sends what the file says.
    pub fn presence_floor(pattern: &Path) -> Result<Self> {
        let program = std::env::current_exe().context("own path")?;
        let mut arguments = words(&["presence-floor", "--listen", LISTEN, "--pattern"]);
        arguments.push(pattern.as_os_str().to_owned());
        Ok(Self::of("presence-floor", program, arguments, Settings::No))
    }

    fn of(
        name: &'static str,
        program: PathBuf,
        arguments: Vec<OsString>,
        settings: Settings,
    ) -> Self {
        Self { name, program, arguments, settings, address_space: None }
    }

    /// `simurgh serve` with so many shards, that closes nobody for being silent. It has the chat
    /// without history.
    pub fn simurgh(program: &Path, shards: u32) -> Result<Self> {
        Self::serve(program, shards, "off")
    }

    /// The same with an idle timeout, as the flag takes it.
    pub fn serve(program: &Path, shards: u32, idle_timeout: &str) -> Result<Self> {
        ensure!(
            program.is_file(),
            "{} is not there: build it (cargo build --release -p simurgh-cli) or name it with \
             --server-bin",
            program.display()
        );
        let mut arguments = words(&["serve", "--listen", LISTEN, "--shards", &shards.to_string()]);
        arguments.extend(words(&["--idle-timeout", idle_timeout, "--check-origin", "off"]));
        arguments.extend(words(&["--api-token", "bench"]));
        Ok(Self::of("simurgh", program.to_owned(), arguments, Settings::Chat))
    }

    /// The same with settings from a file.
    pub fn with_settings(mut self, file: &Path) -> Self {
        self.settings = Settings::File(file.to_owned());
        self
    }

    /// The same with so many bytes of address space, as by `prlimit --as`.
    pub fn within(mut self, address_space: u64) -> Self {
        self.address_space = Some(address_space);
        self
    }

    /// Starts it pinned to the server's core and waits until it listens. Its log goes to `log`.
    pub fn start(&self, log: &Path) -> Result<Running> {
        match &self.settings {
            Settings::No => self.start_with(None, log),
            Settings::File(file) => self.start_with(Some(file), log),
            Settings::Chat => {
                let file = log.with_extension("chat.toml");
                fs::write(&file, CHAT).with_context(|| file.display().to_string())?;
                let running = self.start_with(Some(&file), log);
                // Read by now, if it ever will be.
                fs::remove_file(&file)?;
                running
            }
        }
    }

    fn start_with(&self, settings: Option<&Path>, log: &Path) -> Result<Running> {
        let config = settings.map(|file| [OsStr::new("--config"), file.as_os_str()]);
        let mut child = children::command(&self.program, Some(SERVER_CORE), self.address_space)?
            .args(&self.arguments)
            .args(config.into_iter().flatten())
            .stdout(Stdio::piped())
            .stderr(File::options().create(true).append(true).open(log)?)
            .spawn()
            .with_context(|| format!("start {}", self.program.display()))?;
        let stdout = child.stdout.take();
        let mut running = Running { child, address: SocketAddrV4::new([0, 0, 0, 0].into(), 0) };
        let (found, address) = mpsc::channel();
        let stdout = stdout.context("the server has no output")?;
        // Reads on after the address, so that the server never blocks on a full pipe.
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(rest) = line.strip_prefix("listening on http://") {
                    // Nobody waits for a second address.
                    let _ = found.send(rest.trim().to_owned());
                }
            }
        });
        let text = address
            .recv_timeout(Duration::from_secs(20))
            .with_context(|| format!("{} did not say where it listens", self.name))?;
        running.address = text.parse().with_context(|| format!("address {text:?}"))?;
        Ok(running)
    }
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// A server that runs; killed when dropped.
pub struct Running {
    child: Child,
    /// Where it listens.
    pub address: SocketAddrV4,
}

impl Running {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ending(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// The lines of `/metrics`, comments left out. An error where there is no such page.
    pub fn metrics(&self) -> Result<Vec<String>> {
        let mut stream = TcpStream::connect_timeout(&self.address.into(), Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let host = self.address;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.take(4 << 20).read_to_string(&mut text)?;
        if !text.starts_with("HTTP/1.1 200") {
            bail!("/metrics: {}", text.lines().next().unwrap_or("no answer"));
        }
        Ok(text.lines().filter(|line| line.starts_with("simurgh_")).map(str::to_owned).collect())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if it has ended already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value of one metric line, labels included in `name`.
pub fn metric(lines: &[String], name: &str) -> Option<f64> {
    lines.iter().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// The sum of a metric over all its labels; `None`: there is no such line.
pub fn metric_sum(lines: &[String], name: &str) -> Option<f64> {
    let of_it = lines.iter().filter_map(|line| line.strip_prefix(name));
    let values = of_it.filter_map(|rest| rest.strip_prefix('{')?.split_once("} ")?.1.parse().ok());
    values.reduce(|sum: f64, value: f64| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chat_is_the_built_in_one_without_history() {
        let lines = |text: &str| -> Vec<String> {
            let channel = text.lines().skip_while(|line| *line != "[[channel]]");
            let lines = channel.filter(|line| !line.is_empty() && !line.starts_with('#'));
            lines.map(str::to_owned).collect()
        };
        let built_in = lines(include_str!("../../../crates/tools/simurgh-cli/src/chat.toml"));
        let (history, rest): (Vec<_>, Vec<_>) =
            built_in.into_iter().partition(|line| line.starts_with("history = "));
        assert!(rest.len() > 5, "{rest:?}");
        assert_eq!((lines(CHAT), history.len()), (rest, 1));
    }

    #[test]
    fn metrics_are_found_by_their_whole_name() {
        let lines = [
            "simurgh_shard_turn_max_seconds_total 9".to_owned(),
            "simurgh_shard_turn_max_seconds{shard=\"0\"} 0.00125".to_owned(),
        ];
        assert_eq!(metric(&lines, "simurgh_shard_turn_max_seconds{shard=\"0\"}"), Some(0.00125));
        assert_eq!(metric(&lines, "simurgh_shard_turn_max_seconds"), None);
        let lines = ["a{shard=\"0\"} 1", "a{shard=\"1\"} 2", "ab{shard=\"0\"} 4"];
        let lines = lines.map(str::to_owned);
        assert_eq!(metric_sum(&lines, "a"), Some(3.0));
        assert_eq!(metric_sum(&lines, "b"), None);
    }
}
