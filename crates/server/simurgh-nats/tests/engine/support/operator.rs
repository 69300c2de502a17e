//! Requests to JetStream as its operator makes them.
#![allow(clippy::disallowed_types, reason = "a test has no reactor")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// Sends one request; `None` if the broker does not respond within two seconds.
pub(crate) fn ask(port: u16, verb: &str, words: &Value) -> Option<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let words = if words.is_null() { String::new() } else { words.to_string() };
    let asked = format!(
        "CONNECT {{\"headers\":true,\"no_responders\":true}}\r\nSUB _R 1\r\n\
         PUB $JS.API.{verb} _R {}\r\n{words}\r\n",
        words.len(),
    );
    stream.write_all(asked.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            ["MSG", .., bytes] => {
                let mut payload = vec![0; bytes.parse().unwrap()];
                reader.read_exact(&mut payload).ok()?;
                return serde_json::from_slice(&payload).ok();
            }
            ["HMSG", ..] => return None,
            _ => {}
        }
    }
}

#[track_caller]
pub(crate) fn info(port: u16, stream: &str) -> Value {
    ask(port, &format!("STREAM.INFO.{stream}"), &Value::Null).expect("an answer")
}

/// Executes a request that must succeed.
#[track_caller]
pub(crate) fn must(port: u16, verb: &str, words: &Value) -> Value {
    let answer = ask(port, verb, words).expect("an answer");
    assert_eq!(answer["error"], Value::Null, "{verb}");
    answer
}
