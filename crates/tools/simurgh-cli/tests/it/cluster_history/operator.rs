//! The engine's operator: queries and changes JetStream, and subscribes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use crate::support::engine::{HOST, until};

/// The stream of the tests' cluster, with the prefix `faults`.
pub(crate) const STREAM: &str = "FAULTS_H0";

fn connect(port: u16, subject: &str) -> Option<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect((HOST, port)).ok()?;
    let hello = "CONNECT {\"headers\":true,\"no_responders\":true}\r\n";
    stream.write_all(format!("{hello}SUB {subject} 1\r\n").as_bytes()).ok()?;
    Some(BufReader::new(stream))
}

/// `None` if there is no responder.
fn next_message(reader: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            ["MSG" | "HMSG", .., bytes] => {
                let mut payload = vec![0; bytes.parse().ok()?];
                reader.read_exact(&mut payload).ok()?;
                return Some(payload);
            }
            ["PING"] => reader.get_mut().write_all(b"PONG\r\n").ok()?,
            _ => {}
        }
    }
}

/// Asks once; `None` without a responder or an answer within two seconds.
pub(crate) fn ask(port: u16, verb: &str, words: &Value) -> Option<Value> {
    let mut reader = connect(port, "_R")?;
    reader.get_ref().set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    let words = if words.is_null() { String::new() } else { words.to_string() };
    let asked = format!("PUB $JS.API.{verb} _R {}\r\n{words}\r\n", words.len());
    reader.get_mut().write_all(asked.as_bytes()).ok()?;
    serde_json::from_slice(&next_message(&mut reader)?).ok()
}

#[track_caller]
pub(crate) fn must(port: u16, verb: &str, words: &Value) -> Value {
    let answer = ask(port, verb, words).expect("an answer");
    assert_eq!(answer["error"], Value::Null, "{verb}");
    answer
}

/// The number of the stream's leader among the servers s0, s1 and so on.
#[track_caller]
pub(crate) fn leader(port: u16) -> usize {
    until("somebody leads the stream", || {
        let info = ask(port, &format!("STREAM.INFO.{STREAM}"), &Value::Null)?;
        info["cluster"]["leader"].as_str()?.strip_prefix('s')?.parse().ok()
    })
}

/// Collects the messages of a subject while the engine runs.
pub(crate) struct Spy(Arc<Mutex<Vec<Vec<u8>>>>);

impl Spy {
    #[track_caller]
    pub(crate) fn on(port: u16, subject: &str) -> Self {
        let received = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let mut reader = connect(port, subject).expect("an engine");
        // The answer to this shows that it is subscribed.
        reader.get_mut().write_all(b"PING\r\n").unwrap();
        loop {
            let mut line = String::new();
            assert!(reader.read_line(&mut line).unwrap() > 0, "the engine has ended");
            if line.starts_with("PONG") {
                break;
            }
        }
        let into = Arc::clone(&received);
        std::thread::spawn(move || {
            while let Some(message) = next_message(&mut reader) {
                into.lock().unwrap().push(message);
            }
        });
        Self(received)
    }

    pub(crate) fn received(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}
