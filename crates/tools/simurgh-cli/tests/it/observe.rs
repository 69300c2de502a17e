//! `simurgh observe` against a real server: in a terminal (tmux), `--once`, as JSON, and its
//! errors.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Server, WAIT, directory, run, run_with_env};
use serde_json::{Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_simurgh");

/// On any port, with rooms without announcements.
const ROOMS: &str = "listen = [\"127.0.0.1:0\"]\n[[channel]]\ntopic = \"rooms:*\"\n";

/// A session of tmux with one command, 140 columns wide; killed when dropped.
struct Screen {
    socket: String,
}

impl Screen {
    fn start(command: &str) -> Self {
        let unique = format!("{}-{}", std::process::id(), command.len());
        let screen = Self { socket: format!("simurgh-observe-{unique}") };
        let size = ["-x", "140", "-y", "40"];
        screen.tmux(&[&["-f", "/dev/null", "new-session", "-d"][..], &size, &[command]].concat());
        screen
    }

    fn tmux(&self, args: &[&str]) -> String {
        let ran = Command::new("tmux")
            .args(["-L", &self.socket])
            .args(args)
            .env_remove("SIMURGH_API_TOKEN")
            .output()
            .unwrap();
        String::from_utf8_lossy(&ran.stdout).into_owned()
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Waits for all of these texts; returns the screen.
    #[track_caller]
    fn shows(&self, parts: &[&str]) -> String {
        let start = Instant::now();
        loop {
            let shown = self.tmux(&["capture-pane", "-p"]);
            if parts.iter().all(|part| shown.contains(part)) {
                return shown;
            }
            assert!(start.elapsed() < WAIT, "{parts:?} is not in\n{shown}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
#[ignore = "needs tmux"]
fn terminal_observer_sorts_searches_disconnects_and_reconnects() {
    let token = "a-long-token";
    let server = Server::start(ROOMS, &["--api-token", token, "--shards", "2"]);
    let mut clients: Vec<_> = (0..5).map(|_| server.client()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.join("rooms:all", json!({"user": "a"}));
        client.join(&format!("rooms:own-{n}"), json!({"user": "a"}));
    }
    clients[3].join("rooms:third", json!({"user": "a"}));
    let address = server.addresses[0].clone();
    let command = format!("{BINARY} observe {address} --token {token}; echo status $?; sleep 60");
    let screen = Screen::start(&command);
    screen.shows(&["simurgh observe", "live", "connections   5", "channels      11", "q quit"]);
    screen.keys(&["3"]);
    screen.shows(&["members ↓", "rooms:all", "rooms:own-4", "/ search"]);
    screen.keys(&["/", "third", "Enter"]);
    let shown = screen.shows(&["with \"third\" in the name", "1 topics"]);
    assert!(!shown.contains("rooms:own-4"), "{shown}");
    screen.keys(&["Enter"]);
    screen.shows(&["1 members of rooms:third", "127.0.0.1:", "rooms:own-3"]);
    screen.keys(&["d"]);
    screen.shows(&["y: yes"]);
    screen.keys(&["y"]);
    screen.shows(&["is disconnected"]);
    assert_eq!(clients[3].close_code(), 1001);
    screen.keys(&["4"]);
    screen.shows(&["4 connections, by age", "age ↓"]);
    screen.keys(&["2"]);
    screen.shows(&["shard ↑", "longest"]);
    drop(server);
    screen.shows(&["LOST, trying again", &address]);
    let again = Server::start(ROOMS, &["--api-token", token, "--listen", &address]);
    screen.shows(&["live"]);
    screen.keys(&["q"]);
    screen.shows(&["status 0"]);
    drop(again);
}

#[test]
#[ignore = "needs tmux"]
fn cluster_flag_opens_the_cluster_view_first() {
    // Without an engine: the server serves its own clients, and reports that.
    let cluster = "servers = [\"nats://127.0.0.1:1\"]\nname = \"amber\"\n";
    let alone = format!("{ROOMS}[cluster]\nengine = \"nats\"\n{cluster}");
    let server = Server::start(&alone, &[]);
    let address = server.addresses[0].clone();
    let command = format!("{BINARY} observe {address} --cluster; echo status $?; sleep 60");
    let screen = Screen::start(&command);
    screen.shows(&["6 cluster", "away for", "amber *", "1 nodes", "presences", "1-6 Tab"]);
    screen.keys(&["1"]);
    screen.shows(&["connections   0"]);
    screen.keys(&["6", "q"]);
    screen.shows(&["status 0"]);
}

#[test]
fn once_flag_prints_safe_output_for_scripts() {
    let server = Server::start(ROOMS, &[]);
    let mut client = server.client();
    client.join("rooms:all", json!({"user": "a"}));
    client.join("rooms:\u{1b}[2J\u{202e}<b>", json!({"user": "a"}));
    let dir = directory(&[]);
    let start = Instant::now();
    let all: Value = loop {
        let ran = run(dir.path(), &["observe", &server.addresses[0], "--once", "--json"]);
        assert!(ran.status.success(), "{}", ran.stderr);
        let all: Value = serde_json::from_str(&ran.stdout).unwrap();
        if all["overview"]["now"]["channels"] == 2 {
            break all;
        }
        assert!(start.elapsed() < WAIT, "{all:#}");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(all["overview"]["server"], "simurgh");
    assert_eq!(all["topics"]["rows"].as_array().unwrap().len(), 2);
    assert_eq!(all["connections"]["total"], 1);
    let ran = run(dir.path(), &["observe", &server.addresses[0], "--once"]);
    assert!(ran.status.success());
    for part in ["connections   1", "channels      2", "rooms:\\u{1b}[2J\\u{202e}<b>", "longest"] {
        assert!(ran.stdout.contains(part), "{part:?} is not in\n{}", ran.stdout);
    }
    assert!(!ran.stdout.contains(|c: char| c.is_control() && c != '\n'), "{:?}", ran.stdout);
}

#[test]
fn history_figures_are_printed_only_if_messages_are_stored() {
    let kept = "listen = [\"127.0.0.1:0\"]\n[[channel]]\ntopic = \"kept:*\"\nhistory = true\n\
                [[channel.event]]\nname = \"new:msg\"\nbroadcast = \"all\"\n";
    let server = Server::start(kept, &["--shards", "2"]);
    let mut client = server.client();
    client.join("kept:a", json!({"user": "a"}));
    let dir = directory(&[]);
    let address = server.addresses[0].as_str();
    let once = |more: &[&str]| {
        let ran = run(dir.path(), &[&["observe", address, "--once"], more].concat());
        assert!(ran.status.success(), "{}", ran.stderr);
        ran.stdout
    };
    let before = once(&[]);
    assert!(!before.contains("kept bytes"), "{before}");
    client.send("kept:a", "new:msg", json!({"text": "hello"}));
    client.expect("kept:a", "new:msg", json!({"text": "hello"}));
    let start = Instant::now();
    let all: Value = loop {
        let all: Value = serde_json::from_str(&once(&["--json"])).unwrap();
        if all["kept"]["total"] == 1 {
            break all;
        }
        assert!(start.elapsed() < WAIT, "{all:#}");
        std::thread::sleep(Duration::from_millis(100));
    };
    let row = &all["kept"]["rows"][0];
    assert_eq!((&row["topic"], &row["members"]), (&json!("kept:a"), &json!(1)));
    assert_eq!((&row["kept"]["messages"], &row["kept"]["lost"]), (&json!(1), &Value::Null));
    let text = once(&[]);
    for part in ["Topics by history bytes, 1 of 1", "kept:a", "  history     3"] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn observer_errors_have_an_exit_status() {
    let dir = directory(&[]);
    let server = Server::start(ROOMS, &["--api-token", "right"]);
    let address = server.addresses[0].as_str();
    let once = |more: &[&str]| run(dir.path(), &[&["observe", address, "--once"], more].concat());
    let without = once(&[]);
    assert_eq!(without.status.code(), Some(1));
    assert!(without.stderr.contains("requires its api_token"), "{}", without.stderr);
    let wrong = once(&["--token", "wrong"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(wrong.stderr.contains("has another api_token"), "{}", wrong.stderr);
    let right = ["observe", address, "--once"];
    let right = run_with_env(dir.path(), &right, ("SIMURGH_API_TOKEN", "right"));
    assert!(right.status.success(), "{}", right.stderr);

    let no_terminal = run(dir.path(), &["observe", address, "--token", "right"]);
    assert_eq!(no_terminal.status.code(), Some(1));
    assert!(no_terminal.stderr.contains("observe --once"), "{}", no_terminal.stderr);

    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = closed.local_addr().unwrap().to_string();
    drop(closed);
    let nobody = run(dir.path(), &["observe", &nobody, "--once"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(nobody.stderr.contains("does not answer"), "{}", nobody.stderr);
    for wrong in ["ftp://x", "http://", "--json", "http://x --most 0"] {
        let args: Vec<&str> = ["observe"].into_iter().chain(wrong.split(' ')).collect();
        let ran = run(dir.path(), &args);
        assert_eq!(ran.status.code(), Some(2), "{wrong}: {}", ran.stderr);
    }
}

#[test]
fn observer_recognises_a_server_of_another_kind() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answers = ["HTTP/1.1 404 Not Found", "HTTP/1.1 200 OK"];
    let thread = std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let page = "<html>\x1b[31mhello";
            let text = format!(
                "{answer}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{page}",
                page.len()
            );
            stream.write_all(text.as_bytes()).unwrap();
        }
    });
    let dir = directory(&[]);
    for _ in answers {
        let ran = run(dir.path(), &["observe", &address, "--once"]);
        assert_eq!(ran.status.code(), Some(1));
        assert!(ran.stderr.contains("it is not a Simurgh server"), "{}", ran.stderr);
        assert!(!ran.stderr.contains('\x1b'));
    }
    thread.join().unwrap();
}
