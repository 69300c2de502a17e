//! The servers that are compared: how each is started, and what its clients say.

use std::fs;
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use simurgh_bench_kit::clients::Language;
use simurgh_bench_kit::process::{self, Process};
use simurgh_bench_kit::rounds::Bench;
use simurgh_bench_kit::target::{SERVER_CORE, Target};
use simurgh_bench_kit::wait;

const HOST: &str = "127.77.0.1";
const START_MAX: Duration = Duration::from_secs(20);
/// Longer than a run: keep-alive messages are no part of it.
const NEVER_S: &str = "3600";

/// A kind of server.
#[derive(Clone, Copy)]
pub(super) struct Peer {
    /// The beginning of the names of its figures.
    pub(super) name: &'static str,
    /// The environment variable that names its program.
    variable: Option<&'static str>,
    pub(super) language: Language,
    /// Its arguments, for a port and a directory of temporary files.
    arguments: fn(&str, &Bench<'_>) -> Result<Vec<String>>,
}

const PHOENIX: Language = Language {
    path: "/socket/websocket?vsn=2.0.0",
    header: "",
    connect: "",
    join: |topic| format!("[\"1\",\"1\",\"rooms:{topic}\",\"phx_join\",{{}}]"),
    joined: "\"status\":\"ok\"",
    publish: |topic, body| {
        format!("[\"1\",\"2\",\"rooms:{topic}\",\"new:msg\",{{\"body\":\"{body}\"}}]")
    },
    is_echoed: true,
};

const CENTRIFUGE: Language = Language {
    path: "/connection/websocket",
    header: "",
    connect: "{\"id\":1,\"connect\":{}}",
    join: |topic| format!("{{\"id\":2,\"subscribe\":{{\"channel\":\"rooms{topic}\"}}}}"),
    joined: "\"subscribe\":{",
    publish: |topic, body| {
        let data = format!("{{\"body\":\"{body}\"}}");
        format!("{{\"id\":3,\"publish\":{{\"channel\":\"rooms{topic}\",\"data\":{data}}}}}")
    },
    is_echoed: true,
};

/// A whisper reaches all members but its sender.
const ACTION_CABLE: Language = Language {
    path: "/cable",
    header: "Sec-WebSocket-Protocol: actioncable-v1-json\r\n",
    connect: "",
    join: |topic| cable("subscribe", topic, ""),
    joined: "\"confirm_subscription\"",
    publish: |topic, body| cable("whisper", topic, &format!(",\"data\":{{\"body\":\"{body}\"}}")),
    is_echoed: false,
};

fn cable(command: &str, topic: usize, data: &str) -> String {
    let stream =
        format!("{{\\\"channel\\\":\\\"$pubsub\\\",\\\"stream_name\\\":\\\"rooms{topic}\\\"}}");
    format!("{{\"command\":\"{command}\",\"identifier\":\"{stream}\"{data}}}")
}

pub(super) const SIMURGH: Peer =
    Peer { name: "simurgh", variable: None, language: PHOENIX, arguments: |_, _| Ok(Vec::new()) };

/// The others, each measured if its variable names a program.
pub(super) const OTHERS: [Peer; 3] = [
    Peer {
        name: "uws",
        variable: Some("BENCH_UWEBSOCKETS"),
        language: PHOENIX,
        arguments: |port, _| Ok(words(&[HOST, port])),
    },
    Peer {
        name: "centrifugo",
        variable: Some("BENCH_CENTRIFUGO"),
        language: CENTRIFUGE,
        arguments: centrifugo,
    },
    Peer {
        name: "anycable",
        variable: Some("BENCH_ANYCABLE"),
        language: ACTION_CABLE,
        arguments: |port, _| {
            let flags = ["--ping_interval", NEVER_S, "--public", "--norpc", "--log_level", "error"];
            let place = ["--host", HOST, "--port", port, "--broadcast_adapter", "http"];
            Ok(words(&[place, flags].concat()))
        },
    },
];

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn centrifugo(port: &str, bench: &Bench<'_>) -> Result<Vec<String>> {
    let ping = format!("{NEVER_S}s");
    let allowed = json!({"allow_subscribe_for_client": true, "allow_publish_for_subscriber": true});
    let config = json!({
        "http_server": {"address": HOST, "port": port},
        "client": {"insecure": true, "allowed_origins": ["*"], "ping_interval": ping},
        "channel": {"without_namespace": allowed},
        "log": {"level": "error"},
    });
    let file = bench.scratch.join("centrifugo.json");
    fs::write(&file, config.to_string())?;
    Ok(vec!["--config".to_owned(), file.display().to_string()])
}

impl Peer {
    /// The program; an error if none is named.
    pub(super) fn program(&self) -> Result<PathBuf> {
        let variable = self.variable.unwrap_or_default();
        let path = std::env::var_os(variable).with_context(|| format!("{variable} is not set"))?;
        Ok(path.into())
    }

    /// Starts it on the servers' core, and waits until it listens.
    pub(super) fn start(&self, bench: &Bench<'_>) -> Result<(Process, SocketAddrV4)> {
        if self.variable.is_none() {
            let file = bench.scratch.join("latency.toml");
            let event = "[[channel.event]]\nname = \"new:msg\"\nbroadcast = \"all\"\n";
            fs::write(
                &file,
                format!("[[channel]]\ntopic = \"rooms:*\"\njoin_reply = {{}}\n{event}"),
            )?;
            let target = Target::simurgh(&bench.program, 1)?.with_settings(&file);
            let server = target.start(&bench.scratch.join("server-log"))?;
            return Ok((server.process, server.address));
        }
        let program = self.program()?;
        let listener = TcpListener::bind((HOST, 0)).context("a free port")?;
        let address: SocketAddrV4 = listener.local_addr()?.to_string().parse()?;
        drop(listener);
        let log = fs::File::create(bench.scratch.join(format!("{}-log", self.name)))?;
        let process = Process::start(
            process::command(&program, Some(SERVER_CORE), None)?
                .args((self.arguments)(&address.port().to_string(), bench)?)
                .env("ANYCABLE_DISABLE_TELEMETRY", "true")
                .stdout(log.try_clone()?)
                .stderr(log),
        )?;
        wait::until("the server listens", START_MAX, Duration::from_millis(50), || {
            Ok(TcpStream::connect(address).is_ok())
        })?;
        Ok((process, address))
    }
}
