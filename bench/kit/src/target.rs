//! Servers under test: starting, counters and ending.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use simurgh_tls::rustls::ClientConfig;

use crate::clients::Clients;
use crate::process::{self, Process};
use crate::stats;
use crate::sys::{self, Cpu};

/// The core a server is pinned to, with all its threads.
pub const SERVER_CORE: usize = 0;
/// The core the clients run on.
pub const CLIENT_CORE: usize = 1;
const LISTEN: &str = "127.77.0.1:0";
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Longer than the server's own limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Simurgh's settings unless a row has its own: the built-in chat keeps the last broadcasts of its
/// rooms, which would be part of every figure.
pub(crate) const CHAT: &str = include_str!("../../chat.toml");

/// One kind of server. All send the same bytes to the client; see `frames`.
#[derive(Clone)]
pub struct Target {
    /// Its column in the table.
    pub name: &'static str,
    program: PathBuf,
    arguments: Vec<OsString>,
    settings: Settings,
    /// Bytes of address space; `None`: as many as this process may have.
    address_space: Option<u64>,
    /// Settings of TLS behind those of the chat, and what its clients need.
    tls: Option<(String, Arc<ClientConfig>)>,
}

#[derive(Clone)]
enum Settings {
    No,
    /// A file of [`CHAT`], which exists while the server starts.
    Chat,
    File(PathBuf),
}

impl Target {
    /// The bare server on one thread, which is this same binary, with these further flags.
    pub fn bare(flags: &[&str]) -> Result<Self> {
        let program = std::env::current_exe().context("own path")?;
        let mut arguments = words(&["bare-server", "--listen", LISTEN, "--shards", "1"]);
        arguments.extend(words(flags));
        Ok(Self::of("floor", program, arguments, Settings::No))
    }

    fn of(
        name: &'static str,
        program: PathBuf,
        arguments: Vec<OsString>,
        settings: Settings,
    ) -> Self {
        Self { name, program, arguments, settings, address_space: None, tls: None }
    }

    /// `simurgh serve` with this many shards and the chat without history, and no idle timeout.
    pub fn simurgh(program: &Path, shards: u32) -> Result<Self> {
        Self::serve(program, shards, "off")
    }

    /// `simurgh serve` with an idle timeout, as the flag takes it.
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

    /// Replaces the settings by those of a file.
    pub fn with_settings(mut self, file: &Path) -> Self {
        self.settings = Settings::File(file.to_owned());
        self
    }

    /// Lets pages of these origins connect, in place of all: a hook that gets cookies needs that.
    pub fn for_origins(mut self, origins: &str) -> Self {
        let flag = self.arguments.iter().position(|word| word == "--check-origin");
        if let Some(value) = flag.and_then(|flag| self.arguments.get_mut(flag + 1)) {
            *value = origins.into();
        }
        self
    }

    /// With TLS: this text is appended to the settings.
    pub fn with_tls(mut self, settings: String, client: Arc<ClientConfig>) -> Self {
        self.tls = Some((settings, client));
        self
    }

    /// Limits the address space to this many bytes, as `prlimit --as` does.
    pub fn within(mut self, address_space: u64) -> Self {
        self.address_space = Some(address_space);
        self
    }

    /// Starts it pinned to the server's core and waits until it listens. Its log goes to `log`.
    pub fn start(&self, log: &Path) -> Result<Server> {
        match &self.settings {
            Settings::No => self.start_with(None, log),
            Settings::File(file) => self.start_with(Some(file), log),
            Settings::Chat => {
                let file = log.with_extension("chat.toml");
                let tls = self.tls.as_ref().map_or("", |(settings, _)| settings);
                let settings = format!("{CHAT}{tls}");
                fs::write(&file, settings).with_context(|| file.display().to_string())?;
                let running = self.start_with(Some(&file), log);
                // The server has read it, since it listens or has ended.
                fs::remove_file(&file)?;
                running
            }
        }
    }

    fn start_with(&self, settings: Option<&Path>, log: &Path) -> Result<Server> {
        let config = settings.map(|file| [OsStr::new("--config"), file.as_os_str()]);
        let mut process = Process::with_output(
            process::command(&self.program, Some(SERVER_CORE), self.address_space)?
                .args(&self.arguments)
                .args(config.into_iter().flatten())
                .stderr(File::options().create(true).append(true).open(log)?),
        )?;
        let address = process.line("listening on http://", START_TIMEOUT);
        let text = address.with_context(|| format!("{}: where does it listen?", self.name))?;
        let address = text.parse().with_context(|| format!("address {text:?}"))?;
        let tls = match &self.tls {
            None => None,
            Some((_, client)) => {
                let text = process.line("listening on https://", START_TIMEOUT)?;
                let address = text.parse().with_context(|| format!("address {text:?}"))?;
                Some((address, Arc::clone(client)))
            }
        };
        Ok(Server { process, address, tls })
    }
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// A running server; killed when dropped.
pub struct Server {
    /// Its process.
    pub process: Process,
    /// The address it listens on.
    pub address: SocketAddrV4,
    tls: Option<(SocketAddrV4, Arc<ClientConfig>)>,
}

impl Server {
    /// Where clients connect, and what they need for TLS.
    pub fn entrance(&self) -> (SocketAddrV4, Option<Arc<ClientConfig>>) {
        match &self.tls {
            Some((address, client)) => (*address, Some(Arc::clone(client))),
            None => (self.address, None),
        }
    }

    /// Clients of it, none connected yet.
    pub fn clients(&self) -> Result<Clients> {
        Clients::new(self.address)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// CPU time of its threads so far.
    pub fn cpu(&self) -> Result<Cpu> {
        self.process.cpu()
    }

    /// CPU time so far of the threads whose name begins with `thread`.
    pub fn cpu_of(&self, thread: &str) -> Result<Cpu> {
        Cpu::of_threads(self.pid(), thread)
    }

    /// Nanoseconds that it has run since `since`.
    pub fn spent(&self, since: &Cpu) -> Result<u64> {
        let (ran, ended) = self.cpu()?.since(since);
        ensure!(ended == 0, "{ended} threads ended, and their time is lost");
        Ok(ran)
    }

    /// Its resident bytes.
    pub fn resident(&self) -> Result<u64> {
        sys::resident(self.pid())
    }

    /// Its resident bytes. Peaks are counted from here on.
    pub fn at_rest(&self) -> Result<u64> {
        sys::forget_peak(self.pid())?;
        self.resident()
    }

    /// The highest resident size since [`Server::at_rest`] returned `rest`, over that, in MB;
    /// `None` if the server has ended.
    pub fn peak_mb(&self, rest: u64) -> Option<f64> {
        let (_, peak) = sys::resident_quickly(self.pid()).ok()?;
        Some(stats::per(peak.saturating_sub(rest), 1_000_000))
    }

    /// The lines of `/metrics` without comments. An error without such a page.
    pub fn metrics(&self) -> Result<Vec<String>> {
        let text = self.request("GET", "/metrics", "Accept: text/plain", "")?;
        Ok(text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect())
    }

    /// A metric, labels included in its name.
    pub fn metric(&self, name: &str) -> Result<f64> {
        metric(&self.metrics()?, name).with_context(|| format!("no {name} in /metrics"))
    }

    /// A metric summed over all its labels.
    pub fn sum(&self, name: &str) -> Result<f64> {
        metric_sum(&self.metrics()?, name).with_context(|| format!("no {name} in /metrics"))
    }

    /// The answer to a back end's POST of JSON.
    pub fn post(&self, path: &str, body: &str) -> Result<Value> {
        let length = format!("Content-Type: application/json\r\nContent-Length: {}", body.len());
        json(&self.request("POST", path, &length, body)?)
    }

    /// The answer to a back end's GET.
    pub fn get(&self, path: &str) -> Result<Value> {
        json(&self.request("GET", path, "Accept: application/json", "")?)
    }

    /// Publishes messages on some topics, as a back end does; returns where each is kept, if it is.
    pub fn publish(
        &self,
        topics: impl Iterator<Item = String>,
        payload: &str,
    ) -> Result<Vec<Option<String>>> {
        let mut positions = Vec::new();
        for (count, body) in broadcasts(topics, payload) {
            let answer = self.post("/api/broadcast", &body)?;
            // Without a history the answer has only the number that was taken.
            let accepted = answer.get("accepted").or(answer.get("taken"));
            ensure!(accepted == Some(&count.into()), "of {count}: {answer}");
            let of_each = answer.get("positions").and_then(Value::as_array);
            let of_each = of_each.into_iter().flatten();
            positions.extend(of_each.map(|it| it.as_str().map(str::to_owned)));
        }
        Ok(positions)
    }

    /// The body of the answer to a request with the back end's token.
    pub fn request(&self, method: &str, path: &str, header: &str, body: &str) -> Result<String> {
        let address = self.address;
        let mut stream = TcpStream::connect_timeout(&address.into(), REQUEST_TIMEOUT)?;
        stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer bench\r\n\
             {header}\r\nConnection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.take(4 << 20).read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").context("no answer")?;
        ensure!(head.starts_with("HTTP/1.1 20"), "{path}: {head}: {body}");
        Ok(body.to_owned())
    }
}

fn json(text: &str) -> Result<Value> {
    serde_json::from_str(text).with_context(|| text.to_owned())
}

/// Requests of a back end that publishes a message on each topic, a thousand in a request: the
/// number of requests, and a body made on demand.
pub fn broadcasts(
    mut topics: impl Iterator<Item = String>,
    payload: &str,
) -> impl Iterator<Item = (usize, String)> {
    std::iter::from_fn(move || {
        let message = |topic: String| {
            format!("{{\"topic\":\"{topic}\",\"event\":\"new:msg\",\"payload\":{payload}}}")
        };
        let some: Vec<String> = topics.by_ref().take(1_000).map(message).collect();
        (!some.is_empty()).then(|| (some.len(), format!("{{\"messages\":[{}]}}", some.join(","))))
    })
}

/// The value of one metric line, labels included in `name`.
pub fn metric(lines: &[String], name: &str) -> Option<f64> {
    lines.iter().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// The sum of a metric over all its labels; `None` without such a line.
pub fn metric_sum(lines: &[String], name: &str) -> Option<f64> {
    let of_it = lines.iter().filter_map(|line| line.strip_prefix(name));
    let values = of_it.filter_map(|rest| rest.strip_prefix('{')?.split_once("} ")?.1.parse().ok());
    values.reduce(|sum: f64, value: f64| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chat_benchmark_config_is_the_built_in_chat_without_history() {
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
    fn metrics_are_found_by_their_full_name() {
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
