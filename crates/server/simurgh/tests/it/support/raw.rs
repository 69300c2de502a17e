//! Requests as bytes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use simurgh::Endpoint;
pub use wire_tests::{Raw, Response as Answer};

use super::WAIT_MAX;

/// A request with a body, for localhost unless the headers name another host.
pub fn request(line: &str, headers: &str, body: &str) -> String {
    let host = if headers.contains("host:") { "" } else { "host: localhost\r\n" };
    format!("{line} HTTP/1.1\r\n{host}{headers}content-length: {}\r\n\r\n{body}", body.len())
}

/// The answer to a request on a connection of its own.
pub fn ask(address: SocketAddr, line: &str, headers: &str, body: &str) -> Answer {
    Raw::connect(address).send(request(line, headers, body)).answer()
}

/// JSON of the server's own pages, for this machine.
#[track_caller]
pub fn get(endpoint: &Endpoint, path: &str) -> Value {
    let answer = ask(endpoint.addresses()[0], &format!("GET {path}"), "", "");
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    answer.json()
}

/// Repeats `get` until the answer is the wanted one.
#[track_caller]
pub fn wait_for(endpoint: &Endpoint, path: &str, mut wanted: impl FnMut(&Value) -> bool) -> Value {
    let until = Instant::now() + WAIT_MAX;
    loop {
        let answer = get(endpoint, path);
        if wanted(&answer) {
            return answer;
        }
        assert!(Instant::now() < until, "{path} stays at {answer:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
