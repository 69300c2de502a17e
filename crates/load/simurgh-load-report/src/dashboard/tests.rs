//! Tests of the dashboard over real sockets on loopback.

#![allow(clippy::disallowed_types, reason = "a client outside of all tables")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::Receiver;

use serde_json::Value;
use simurgh_load_record::{Count, Ending, ErrorKind, Meta, Metric, Names, Recorder, WorkerId};

use super::*;
use crate::control::Command;

const WAIT: Duration = Duration::from_secs(10);

struct Run {
    dashboard: Dashboard,
    record: Arc<Mutex<Record>>,
    commands: Receiver<Command>,
    worker: Recorder,
    target: Target,
}

impl Run {
    fn start() -> Self {
        let names = Names { phases: vec!["one".into()], ..Names::default() };
        let worker = Recorder::new(WorkerId::default(), &names, false);
        let meta = Meta { scenario: "lobby <b>".into(), names, ..Meta::default() };
        let record = Arc::new(Mutex::new(Record::new(meta)));
        let (control, commands) = Control::new();
        let target = Target::default();
        let options = Options {
            address: ([127, 0, 0, 1], 0).into(),
            record: Arc::clone(&record),
            control,
            target: target.clone(),
        };
        Self { dashboard: start(options).unwrap(), record, commands, worker, target }
    }

    /// One second of the run, with one more user and its join.
    fn second(&mut self, number: u64) {
        self.worker.user_started(0, 0, 5);
        self.worker.count(Count::UsersDue, 1);
        self.worker.time(Metric::Join, 100 * number);
        self.worker.error(ErrorKind::JoinRefused, 0);
        self.worker.gauges(number, number);
        let mut record = self.record.lock().unwrap();
        record.merge(self.worker.take(0).unwrap());
        record.close_second(number * 1000);
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.dashboard.address()).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        stream
    }

    fn ask(&self, head: &str, body: &str) -> (String, String) {
        let mut stream = self.connect();
        let length = body.len();
        let rest = format!("Connection: close\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(format!("{head}{rest}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (status, rest) = answer.split_once("\r\n").unwrap();
        (status.to_owned(), rest.to_owned())
    }

    fn get(&self, path: &str) -> (String, String) {
        let host = self.dashboard.address();
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n"), "")
    }

    fn token(&self) -> String {
        let (_, page) = self.get("/");
        let (_, rest) = page.split_once("name=\"token\" content=\"").unwrap();
        rest.split_once('"').unwrap().0.to_owned()
    }

    fn command(&self, origin: &str, token: &str, body: &str) -> (String, String) {
        let host = self.dashboard.address();
        let head = format!(
            "POST /control HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\n\
             X-Simurgh-Token: {token}\r\nContent-Type: application/json\r\n"
        );
        self.ask(&head, body)
    }

    fn events(&self) -> Events {
        let mut stream = self.connect();
        let host = self.dashboard.address();
        write!(stream, "GET /events HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        Events(BufReader::new(stream))
    }
}

struct Events(BufReader<TcpStream>);

impl Events {
    /// Name and data of the next event; `None` at the end of the stream.
    fn next(&mut self) -> Option<(String, Value)> {
        let mut name = String::new();
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some(event) = line.strip_prefix("event: ") {
                name = event.trim().to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((name, serde_json::from_str(data).unwrap()));
            }
        }
    }

    fn find(&mut self, wanted: impl Fn(&str, &Value) -> bool) -> Value {
        loop {
            let (name, data) = self.next().unwrap();
            if wanted(&name, &data) {
                return data;
            }
        }
    }
}

#[test]
fn page_receives_all_data_once_and_then_each_second() {
    let mut run = Run::start();
    run.second(1);
    run.second(2);
    let mut events = run.events();
    let whole = events.find(|name, _| name == "whole");
    assert_eq!(whole["scenario"], "lobby <b>");
    assert_eq!(whole["series"]["columns"]["users"], serde_json::json!([1.0, 2.0]));
    assert_eq!(whole["series"]["columns"]["due"], serde_json::json!([1.0, 1.0]));
    assert_eq!(whole["series"]["metrics"]["join"]["max"], serde_json::json!([100, 200]));
    assert_eq!(whole["series"]["errors"]["join_refused"], serde_json::json!([1, 1]));
    // A poll of the record that began earlier may still send the whole view again.
    let mut number = 2;
    let tick = loop {
        number += 1;
        run.second(number);
        let data = events.find(|_, data| data["at_s"] == number as f64);
        if data["series"].is_null() {
            break data;
        }
    };
    assert!(number <= 20, "{number}: always the whole");
    assert_eq!(tick["point"]["users"], number as f64);
    assert_eq!(tick["point_times"]["join"]["p50"], 100 * number);
    assert_eq!(tick["point_errors"]["join_refused"], 1);
    assert_eq!(tick["control"]["paused"], false);
    run.dashboard.finish();
    assert!(std::iter::from_fn(|| events.next()).last().is_none_or(|(name, _)| name == "tick"));
}

#[test]
fn dashboard_sends_the_end_of_the_run_before_it_closes() {
    let mut run = Run::start();
    run.second(1);
    let mut events = run.events();
    events.find(|name, _| name == "whole");
    run.record.lock().unwrap().finish(1500, Ending::Stopped);
    run.dashboard.finish();
    events.find(|_, data| data["ending"] == "stopped");
    assert!(events.next().is_none());
}

#[test]
fn page_that_missed_several_seconds_receives_all_data_again() {
    let mut run = Run::start();
    let mut events = run.events();
    events.find(|name, _| name == "whole");
    {
        // Both within one poll of the record.
        let record = Arc::clone(&run.record);
        let mut record = record.lock().unwrap();
        for number in 1..=2 {
            run.worker.user_started(0, 0, 5);
            record.merge(run.worker.take(0).unwrap());
            record.close_second(number * 1000);
        }
    }
    let whole = events.find(|_, data| data["at_s"] == 2.0);
    assert_eq!(whole["series"]["columns"]["t_s"], serde_json::json!([1.0, 2.0]));
}

#[test]
fn dashboard_buttons_control_the_run() {
    let run = Run::start();
    let (origin, token) = (format!("http://{}", run.dashboard.address()), run.token());
    let orders = [
        (r#"{"command":"pause"}"#, Command::Pause),
        (r#"{"command":"resume"}"#, Command::Resume),
        (r#"{"command":"rate","factor":1.5}"#, Command::Rate { factor: 1.5 }),
        (r#"{"command":"stop"}"#, Command::Stop),
    ];
    for (body, command) in orders {
        let (status, _) = run.command(&origin, &token, body);
        assert_eq!(status, "HTTP/1.1 200 OK");
        assert_eq!(run.commands.recv_timeout(WAIT).unwrap(), command);
    }
    for body in [
        r#"{"command":"rate","factor":0}"#,
        r#"{"command":"rate","factor":1e9}"#,
        r#"{"command":"rate"}"#,
        r#"{"command":"explode"}"#,
        "{",
        "",
    ] {
        let (status, _) = run.command(&origin, &token, body);
        assert!(status.starts_with("HTTP/1.1 4"), "{body}: {status}");
    }
    let long = format!(r#"{{"command":"pause","x":"{}"}}"#, "x".repeat(4096));
    assert_eq!(run.command(&origin, &token, &long).0, "HTTP/1.1 413 Payload Too Large");
    assert!(run.commands.try_recv().is_err());
}

#[test]
fn other_site_can_neither_control_nor_read_the_dashboard() {
    let run = Run::start();
    let (address, token) = (run.dashboard.address(), run.token());
    let origin = format!("http://{address}");
    let stop = r#"{"command":"stop"}"#;
    for (origin, token) in [
        ("http://evil.example", token.as_str()),
        ("null", &token),
        ("", &token),
        (&origin, ""),
        (&origin, "0123456789abcdef0123456789abcdef"),
    ] {
        let (status, answer) = run.command(origin, token, stop);
        assert_eq!(status, "HTTP/1.1 403 Forbidden", "{origin} {token}");
        assert!(!answer.to_lowercase().contains("access-control-allow"), "{answer}");
    }
    let (status, _) = run.get("/control");
    assert_eq!(status, "HTTP/1.1 405 Method Not Allowed");
    // An attacker's name that resolves to loopback.
    for path in ["/", "/events", "/page.js"] {
        let head = format!("GET {path} HTTP/1.1\r\nHost: evil.example:{}\r\n", address.port());
        let (status, answer) = run.ask(&head, "");
        assert_eq!(status, "HTTP/1.1 421 Misdirected Request");
        assert!(!answer.contains("token"));
    }
    assert!(run.commands.try_recv().is_err());
}

#[test]
fn dashboard_pages_have_a_strict_content_security_policy() {
    let run = Run::start();
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/page.js", "text/javascript; charset=utf-8"),
        ("/page.css", "text/css; charset=utf-8"),
        ("/favicon.svg", "image/svg+xml"),
    ] {
        let (status, answer) = run.get(path);
        assert_eq!(status, "HTTP/1.1 200 OK", "{path}");
        let answer = answer.to_lowercase();
        assert!(answer.contains(&format!("content-type: {kind}\r\n")), "{path}");
        assert!(answer.contains("content-security-policy: default-src 'none';"), "{path}");
        assert!(answer.contains("x-frame-options: deny"), "{path}");
    }
    assert_ne!(run.token(), Run::start().token());
}

#[test]
fn dashboard_uses_the_next_free_port_if_its_port_is_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let asked = taken.local_addr().unwrap();
    let of = |address| Options {
        address,
        record: Arc::new(Mutex::new(Record::new(Meta::default()))),
        control: Control::new().0,
        target: Target::default(),
    };
    let dashboard = start(of(asked)).unwrap();
    assert!(dashboard.address().port() > asked.port());
    assert_eq!(dashboard.moved_from(), Some(asked));
    let error = start(of("192.0.2.1:8091".parse().unwrap())).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("loopback"), "{error}");
}

#[test]
fn dashboard_shows_the_metrics_of_the_server() {
    let mut run = Run::start();
    run.target.push(0.5, [("connections", Some(42.0))].into());
    let mut events = run.events();
    run.second(1);
    let data = events.find(|_, data| data["at_s"] == 1.0);
    let column = data["target"]["columns"]["connections"][0].as_f64();
    let found = column.or_else(|| data["target_point"]["connections"].as_f64());
    assert_eq!(found, Some(42.0), "{data}");
}
