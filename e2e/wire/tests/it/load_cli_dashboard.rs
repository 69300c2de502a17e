//! The live page of `simurgh load`, from outside: where it is, what it shows, and that it steers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wire_tests::{Head, Load, LoadBuilder, Raw, Response, Server, WAIT, count, eventually};

/// A run that is told to end has this long for it.
const SOON: Duration = Duration::from_secs(10);

/// Users who join and stay, with a dashboard there.
fn lobby(server: SocketAddr, dashboard: &str) -> LoadBuilder {
    let run = Load::of_text(&format!(
        "name = \"lobby\"\n\
         target = {{ url = \"ws://{server}\" }}\n\
         phase = [{{ duration = \"60s\", rate = 50 }}]\n\
         [[session]]\nprotocol = \"phoenix\"\n\
         steps = [{{ connect = \"/socket/websocket\" }}, {{ join = \"rooms:lobby\" }},\n\
         {{ think = \"60s\" }}]\n"
    ));
    run.dashboard(dashboard)
}

/// Where a run has said that its page is.
fn page_of(run: &Load) -> SocketAddr {
    let mut address = None;
    eventually("the dashboard's address", || {
        let said = run.stderr();
        let start = said.find("dashboard on http://").map(|at| at + "dashboard on http://".len());
        let line = start.and_then(|start| said[start..].lines().next().map(str::to_owned));
        address = line.and_then(|line| line.split([' ', '/']).next()?.parse().ok());
        address.is_some()
    });
    address.unwrap()
}

fn get(page: SocketAddr, path: &str) -> Response {
    let head = Head::new("GET", path).set("host", &page.to_string());
    let mut raw = Raw::connect(page);
    raw.send(head.set("connection", "close").text().as_bytes());
    raw.answer()
}

/// Sends a command as the page does, with this token.
fn post(page: SocketAddr, token: &str, body: &Value) -> Response {
    let body = body.to_string();
    let head = Head::new("POST", "/control")
        .set("host", &page.to_string())
        .set("origin", &format!("http://{page}"))
        .set("content-type", "application/json")
        .set("content-length", &body.len().to_string())
        .set("x-simurgh-token", token);
    let mut raw = Raw::connect(page);
    raw.send(head.set("connection", "close").text().as_bytes());
    raw.send(body.as_bytes());
    raw.answer()
}

/// The token in the page: 32 hexadecimal digits.
fn token(html: &str) -> String {
    let mut words = html.split(|char: char| !char.is_ascii_hexdigit());
    words.find(|word| word.len() == 32).expect("a token in the page").to_owned()
}

/// Reads events until one makes `wanted` say yes.
#[track_caller]
fn event(page: SocketAddr, awaited: &str, mut wanted: impl FnMut(&Value) -> bool) -> Value {
    let mut stream = TcpStream::connect_timeout(&page, WAIT).unwrap();
    stream.set_read_timeout(Some(WAIT)).unwrap();
    let head = Head::new("GET", "/events").set("host", &page.to_string());
    stream.write_all(head.text().as_bytes()).unwrap();
    let (mut text, mut some) = (String::new(), [0; 65_536]);
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < 2 * WAIT, "waited in vain for {awaited}");
        let n = stream.read(&mut some).unwrap();
        assert!(n > 0, "the events ended before {awaited}");
        text.push_str(&String::from_utf8_lossy(&some[..n]));
        // Chunks need no undoing: an event is one chunk, and what is between is not data.
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let value =
                line.strip_prefix("data: ").and_then(|data| serde_json::from_str(data).ok());
            if let Some(value) = value
                && wanted(&value)
            {
                return value;
            }
        }
        text = text.rsplit_once('\n').map_or(text.clone(), |(_, rest)| rest.to_owned());
    }
}

/// The page is served, shows the run as it goes, and its button ends it with all reports.
#[test]
fn dashboard_page_shows_the_run_and_stops_it() {
    let server = Server::serve().args("--idle-timeout off").start();
    let run = lobby(server.addr(), "127.0.0.1:0").start();
    let page = page_of(&run);
    let html = get(page, "/");
    assert_eq!(html.status, 200);
    assert!(html.header("content-type").is_some_and(|kind| kind.starts_with("text/html")));
    for part in ["/page.js", "/page.css", "/favicon.svg"] {
        assert_eq!(get(page, part).status, 200, "{part}");
    }
    let whole = event(page, "the run", |event| event["scenario"] == json!("lobby"));
    assert_eq!(whole["targets"], json!([server.addr().to_string()]));
    let shown = event(page, "users", |event| event["users"].as_u64() > Some(0));
    assert!(shown["counts"]["joins_ok"].as_u64() > Some(0), "{shown}");

    let token = token(html.text());
    let faster = post(page, &token, &json!({"command": "rate", "factor": 4.0}));
    assert_eq!(faster.status, 200, "{}", faster.text());
    let joins = || server.metrics(|name| name == "simurgh_joins_total");
    eventually("more users", || joins() > 100.0);

    let stopped = post(page, &token, &json!({"command": "stop"}));
    assert_eq!(stopped.status, 200, "{}", stopped.text());
    let run = run.end(SOON).expect_code(0);
    let report = run.report();
    assert_eq!(report["ending"], json!("stopped"));
    // Users who came in the very moment of the stop had no time to join.
    let (joined, came) = (count(&report, "joins_ok"), count(&report, "users_started"));
    assert!(joined > 100 && joined <= came && came - joined < 10, "{joined} of {came}");
    assert!(run.file("report.html").trim_end().ends_with("</html>"));
    assert!(TcpStream::connect_timeout(&page, WAIT).is_err(), "the page is still there");
}

/// Other hosts must not reach it: an address that is not loopback is told, and the run goes on.
#[test]
fn dashboard_listens_on_loopback_only() {
    let server = Server::serve().start();
    let run = lobby(server.addr(), "0.0.0.0:0").args("--duration 1s").run();
    let run = run.expect_code(0);
    assert!(run.stderr.contains("loopback only"), "{}", run.stderr);
    assert!(count(&run.report(), "joins_ok") > 0);
}
