//! A node: a process of `simurgh serve`.

use std::borrow::Borrow;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::engine::{WAIT, until};

const TOKEN: &str = "a-token-of-no-importance";
/// A node is considered gone after this time without a beat: the allowed minimum.
pub(crate) const DOWN: Duration = Duration::from_secs(6);
/// The age of a link at which it detects missing nodes.
pub(crate) const SETTLES: Duration = Duration::from_secs(10);

/// The default channels.
const ROOMS: &str = "[[channel]]\ntopic = \"room:*\"\npresence = { key = \"$user\" }\n\
     [[channel.event]]\nname = \"say\"\nbroadcast = \"all\"\n";

pub(crate) struct Plan {
    pub(crate) name: String,
    /// HOST:PORT of each server.
    pub(crate) engines: Vec<String>,
    pub(crate) prefix: &'static str,
    /// How long it waits for the engine; with `None` it listens at once.
    pub(crate) required: Option<&'static str>,
    /// More keys above all tables.
    pub(crate) top: &'static str,
    /// More keys of the table `[cluster]`.
    pub(crate) keys: String,
    pub(crate) channels: String,
    pub(crate) host: String,
    /// The command that runs it, if any.
    pub(crate) by: Vec<String>,
    pub(crate) env: Vec<(&'static str, OsString)>,
}

impl Plan {
    pub(crate) fn new(name: &str, engine: &str) -> Self {
        Self {
            name: name.to_owned(),
            engines: vec![engine.to_owned()],
            prefix: "faults",
            required: Some("25s"),
            top: "",
            keys: String::new(),
            channels: ROOMS.to_owned(),
            host: "127.0.0.1".to_owned(),
            by: vec![],
            env: vec![],
        }
    }

    fn file(&self) -> String {
        let Self { name, engines, prefix, top, keys, channels, host, .. } = self;
        let servers: Vec<String> = engines.iter().map(|it| format!("nats://{it}")).collect();
        let required = self.required.map(|it| format!("required = \"{it}\"\n")).unwrap_or_default();
        format!(
            "listen = [\"{host}:0\"]\nadmin_listen = \"{host}:0\"\nshards = 2\n{top}\n\
             [cluster]\nengine = \"nats\"\nservers = {servers:?}\nname = \"{name}\"\n\
             prefix = \"{prefix}\"\n{required}presence_down = \"{DOWN:?}\"\n{keys}\n\
             {channels}"
        )
    }

    pub(crate) fn start(&self) -> Node {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("simurgh.toml"), self.file()).unwrap();
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let words = self.by.iter().map(PathBuf::from);
        let mut words = words.chain([PathBuf::from(env!("CARGO_BIN_EXE_simurgh"))]);
        let mut child = Command::new(words.next().unwrap())
            .args(words)
            .arg("serve")
            .current_dir(directory.path())
            .env("SIMURGH_API_TOKEN", TOKEN)
            .env_remove("NOTIFY_SOCKET")
            .env_remove("RUST_LOG")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let name = self.name.clone();
        let (address, admin) = (String::new(), String::new());
        let mut node = Node { name, address, admin, child, stdout, directory };
        let mut line = String::new();
        node.stdout.read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on http://");
        node.address = address.unwrap_or_else(|| panic!("not ready:\n{}", node.log())).to_owned();
        node.admin = until("it says where metrics are", || {
            let log = node.log();
            let line = log.lines().find(|it| it.contains("metrics and the observer"))?;
            Some(line.split_once("address=")?.1.to_owned())
        });
        node
    }
}

pub(crate) struct Node {
    pub(crate) name: String,
    /// HOST:PORT
    pub(crate) address: String,
    /// The address of `/metrics`.
    admin: String,
    child: Child,
    /// Kept open, so that the node can print.
    stdout: BufReader<ChildStdout>,
    directory: TempDir,
}

impl Node {
    /// Waits until they have found each other.
    pub(crate) fn three(engine: &str) -> Vec<Self> {
        let nodes: Vec<Self> =
            ["one", "two", "three"].map(|name| Plan::new(name, engine).start()).into();
        know_each_other(&nodes);
        nodes
    }

    /// Returns status and body.
    pub(crate) fn ask(&self, line: &str, body: &str) -> (u16, String) {
        self.try_ask(line, body).unwrap_or_else(|error| panic!("{line}: {error}\n{}", self.log()))
    }

    fn try_ask(&self, line: &str, body: &str) -> std::io::Result<(u16, String)> {
        let (status, _, body) = self.whole_answer(line, body)?;
        Ok((status, body))
    }

    /// Returns status, head in lower case, and body.
    pub(crate) fn whole_answer(
        &self,
        line: &str,
        body: &str,
    ) -> std::io::Result<(u16, String, String)> {
        let is_metrics = line.ends_with(" /metrics");
        let address = if is_metrics { &self.admin } else { &self.address };
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(90)))?;
        let bytes = body.len();
        let head = format!(
            "{line} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\
             content-length: {bytes}\r\nconnection: close\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap_or(0);
        Ok((status, head.to_lowercase(), body.to_owned()))
    }

    /// The state of the cluster in `/healthz`; `up` if it has none.
    pub(crate) fn health(&self) -> String {
        let (status, body) = self.ask("GET /healthz", "");
        assert_eq!(status, 200, "{body}");
        match serde_json::from_str::<Value>(&body) {
            Ok(answer) => {
                assert_eq!(answer["status"], "degraded", "{body}");
                answer["cluster"].as_str().unwrap().to_owned()
            }
            Err(_) => {
                assert_eq!(body, "ok\n");
                "up".to_owned()
            }
        }
    }

    /// The sum of all series of a metric with this prefix.
    pub(crate) fn metric(&self, series: &str) -> u64 {
        let (status, body) = self.ask("GET /metrics", "");
        assert_eq!(status, 200, "{body}");
        let values = body.lines().filter_map(|it| it.strip_prefix(series)?.rsplit_once(' '));
        values.map(|(_, value)| value.parse::<f64>().unwrap() as u64).sum()
    }

    /// The present keys, by the node's own list.
    pub(crate) fn presences(&self, topic: &str) -> Vec<String> {
        let (_, body) = self.ask(&format!("GET /api/presence?topic={topic}"), "");
        let answer: Value = serde_json::from_str(&body).unwrap();
        let mut keys: Vec<String> =
            answer["presences"].as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys
    }

    /// Returns the nodes that have confirmed it, and those that have not.
    pub(crate) fn disconnect(&self, id: &str) -> (Vec<String>, Vec<String>) {
        let body = serde_json::json!({ "id": id }).to_string();
        let (status, body) = self.ask("POST /api/disconnect", &body);
        assert!(matches!(status, 200 | 202), "{status} {body}");
        let answer: Value = serde_json::from_str(&body).unwrap();
        let names = |what: &str| {
            let nodes = answer[what].as_array().unwrap().iter();
            let mut names: Vec<String> =
                nodes.map(|it| it["name"].as_str().unwrap().to_owned()).collect();
            names.sort();
            names
        };
        (names("confirmed"), names("missing"))
    }

    /// Resident bytes.
    pub(crate) fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn drain(&mut self) -> ExitStatus {
        self.signal("TERM");
        until("the node ends", || self.child.try_wait().unwrap())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} said:\n{}", self.name, self.log());
        }
        self.kill();
    }
}

/// Waits until each node has found all others.
#[track_caller]
pub(crate) fn know_each_other<N: Borrow<Node>>(nodes: &[N]) {
    let others = nodes.len() as u64 - 1;
    for node in nodes.iter().map(N::borrow) {
        until(&format!("{} knows {others} others", node.name), || {
            (node.metric("simurgh_cluster_nodes{state=\"alive\"}") == others).then_some(())
        });
    }
}

#[track_caller]
pub(crate) fn are_up<N: Borrow<Node>>(nodes: &[N]) {
    for node in nodes.iter().map(N::borrow) {
        until(&format!("{} is up", node.name), || (node.health() == "up").then_some(()));
    }
    assert!(WAIT > SETTLES);
}
