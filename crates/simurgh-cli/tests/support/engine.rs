//! A nats-server of a test's own, and nodes with it between them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::support::{Server, WAIT, directory, simurgh};

/// Killed at the end, whatever happens.
pub(crate) struct Engine {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where nats-server is; `None`, with a word about it, if that is not said.
pub(crate) fn program() -> Option<PathBuf> {
    let program = std::env::var_os("SIMURGH_NATS_SERVER").map(PathBuf::from);
    if program.is_none() {
        eprintln!("SIMURGH_NATS_SERVER is not set (see cargo xtask engine): nothing tested");
    }
    program
}

impl Engine {
    /// On a free port.
    pub(crate) fn start(program: &Path) -> Self {
        let dir = directory(&[]);
        let child = Command::new(program)
            .current_dir(dir.path())
            .args(["-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", "."])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut engine = Self { child, port: 0, _dir: dir };
        let files = engine._dir.path().to_owned();
        engine.port = until("the engine tells its port", || {
            let mut files = std::fs::read_dir(&files).unwrap().map(|it| it.unwrap().path());
            let ports = files.find(|it| it.extension().is_some_and(|it| it == "ports"))?;
            let ports: Value = serde_json::from_str(&std::fs::read_to_string(ports).ok()?).ok()?;
            ports["nats"][0].as_str()?.rsplit_once(':')?.1.parse().ok()
        });
        engine
    }

    /// So many nodes of the built-in chat without the history of its rooms, who know each other.
    pub(crate) fn nodes<const N: usize>(&self) -> [Server; N] {
        let chat = include_str!("../../../../bench/chat.toml");
        let nodes = std::array::from_fn(|number| {
            let text = format!(
                "{chat}\n[cluster]\nengine = \"nats\"\nname = \"node-{number}\"\n\
                 servers = [\"nats://127.0.0.1:{}\"]\nrequired = \"20s\"\n",
                self.port
            );
            let dir = directory(&[("simurgh.toml", &text)]);
            let flags = ["--listen", "127.0.0.1:0", "--shards", "2", "--log", "warn"];
            Server::start_program(&simurgh(), dir, &flags, 1)
        });
        for node in &nodes {
            let alive = "simurgh_cluster_nodes{state=\"alive\"}";
            let others = N as u64 - 1;
            until("all know each other", || (node.metric(alive) == others).then_some(()));
        }
        nodes
    }
}

/// Waits for something.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut there: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(it) = there() {
            return it;
        }
        assert!(began.elapsed() < WAIT, "{what}");
        sleep(Duration::from_millis(20));
    }
}
