//! The bytes that files of Tsung put on the wire; a program of its own, because one of its tests
//! counts as ignored where Tsung is not installed.
//!
//! They are compared with those of Debian's Tsung 1.7.0.
//! `tests/tsung/wire` has for each behaviour a file `NAME.xml`, in which `PORT` stands for the
//! server's port, and `NAME.wire`: each message as Tsung sends it (`>`), the answer to it (`<`),
//! and a line for each further connection. With `SIMURGH_RECORD=1` the recording is written anew.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use simurgh_load::engine::{Options, Run};
use simurgh_load::report::Outputs;
use simurgh_load::scenario::{Overrides, check};

mod outside;
use outside::{Peer, Server, frame, lock};

const TSUNG: &str = "/usr/bin/tsung";
/// Other work may run beside these tests.
const PATIENCE: Duration = Duration::from_secs(180);
/// Tsungs that run at a time: they mostly wait.
const AT_A_TIME: usize = 4;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tsung/wire")
}

fn names() -> Vec<String> {
    let entries = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.extension().is_some_and(|kind| kind == "xml"));
    let mut names: Vec<String> =
        files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(2);
    let mut trials: Vec<Trial> = names()
        .into_iter()
        .map(|name| {
            let title = format!("{name}_is_sent_as_by_tsung");
            Trial::test(title, move || {
                compare(&name, "Simurgh", run_simurgh);
                Ok(())
            })
        })
        .collect();
    let oracle = Trial::test("recordings_are_those_of_the_installed_tsung", || {
        compare_all();
        Ok(())
    });
    trials.push(oracle.with_ignored_flag(!Path::new(TSUNG).exists()));
    libtest_mimic::run(&arguments, trials).exit()
}

/// Compares all recordings with the installed Tsung, or writes them anew.
fn compare_all() {
    let queue = Mutex::new(names());
    let next = || lock(&queue).pop();
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(name) = next() {
                    compare(&name, "Tsung", run_tsung);
                }
            });
        }
    });
}

/// Runs one file against the scripted server, and compares what came with the recording.
#[track_caller]
fn compare(name: &str, who: &str, run: fn(&Path)) {
    let path = folder().join(name).with_extension("wire");
    let recording = fs::read_to_string(&path).unwrap();
    let log = Arc::new(Mutex::new(Log { script: script(&recording), ..Log::default() }));
    let server = Server::new({
        let log = Arc::clone(&log);
        move |peer| serve(peer, &log)
    });
    let port = server.addr.port().to_string();
    let place = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder()).unwrap() {
        let from = entry.unwrap().path();
        fs::copy(&from, place.path().join(from.file_name().unwrap())).unwrap();
    }
    let xml = fs::read_to_string(folder().join(name).with_extension("xml")).unwrap();
    let file = place.path().join("run.xml");
    fs::write(&file, xml.replace("PORT", &port)).unwrap();
    run(&file);
    // All connections have ended, so everything was read.
    drop(server);
    let found = lock(&log).text.replace(&port, "PORT");
    assert!(!found.is_empty(), "{name}: {who} sends nothing");
    if who == "Tsung" && std::env::var_os("SIMURGH_RECORD").is_some() {
        fs::write(&path, found).unwrap();
    } else {
        assert!(found == recording, "{name}: {who} sends\n{found}\nrecorded is\n{recording}");
    }
}

fn run_simurgh(file: &Path) {
    let text = fs::read_to_string(file).unwrap();
    let read = simurgh_load::tsung::read(&text, file.parent().unwrap(), &Overrides::default());
    let scenario = read.unwrap_or_else(|faults| panic!("{faults}")).scenario;
    check(&scenario).unwrap_or_else(|faults| panic!("{faults}"));
    let options = Options { workers: Some(1), ..Options::default() };
    Run::prepare(scenario, &options).expect("the worker starts").go(Outputs::new());
}

fn run_tsung(file: &Path) {
    let place = file.parent().unwrap();
    // Nodes of Erlang need names of their own.
    let id =
        place.file_name().unwrap().to_string_lossy().replace(|c: char| !c.is_alphanumeric(), "");
    let output = fs::File::create(place.join("output")).unwrap();
    let mut child = Command::new(TSUNG)
        .args(["-f", "run.xml", "-l", "log", "-w", "0", "-i", &id, "start"])
        .current_dir(place)
        .env("HOME", place)
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("Tsung does not end: {}", fs::read_to_string(place.join("output")).unwrap());
        }
        thread::sleep(Duration::from_millis(50));
    }
}

#[derive(Default)]
struct Log {
    /// The answers to the messages, in their order.
    script: Vec<Vec<u8>>,
    text: String,
    messages: usize,
    connections: usize,
}

/// The answers of a recording; `<` without a message before it is one, too.
fn script(recording: &str) -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    let mut is_open = false;
    for line in recording.lines() {
        match line.split_at_checked(2) {
            Some(("> ", _)) => {
                answers.push(Vec::new());
                is_open = true;
            }
            Some(("< ", text)) => {
                if !is_open {
                    answers.push(Vec::new());
                }
                *answers.last_mut().unwrap() = unescaped(text);
                is_open = false;
            }
            _ => {}
        }
    }
    answers
}

fn serve(peer: Peer, log: &Mutex<Log>) {
    let mut reader = Reader { peer, bytes: Vec::new(), key: None };
    let mut is_first = true;
    while let Some(message) = reader.message() {
        let answer = {
            let mut log = lock(log);
            if std::mem::take(&mut is_first) {
                log.connections += 1;
                if log.connections > 1 {
                    log.text.push_str("= another connection\n");
                }
            }
            writeln!(log.text, "> {}", escaped(&message)).unwrap();
            let answer = log.script.get(log.messages).cloned().unwrap_or_default();
            log.messages += 1;
            if !answer.is_empty() {
                writeln!(log.text, "< {}", escaped(&answer)).unwrap();
            }
            answer
        };
        if !reader.answer(&answer) {
            return;
        }
    }
}

/// Reads requests, and frames after an upgrade.
struct Reader {
    peer: Peer,
    bytes: Vec<u8>,
    /// The key of an upgrade.
    key: Option<String>,
}

impl Reader {
    /// The next message; `None` when the client has closed.
    fn message(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(message) = self.whole() {
                return Some(message);
            }
            let mut more = [0; 4096];
            match (&*self.peer.stream).read(&mut more) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.bytes.extend_from_slice(&more[..count]),
            }
        }
    }

    fn whole(&mut self) -> Option<Vec<u8>> {
        if self.bytes.is_empty() {
            return None;
        }
        if self.key.is_some() {
            return self.frame();
        }
        let is_http = self.bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count() > 2;
        let mut end = self.bytes.len();
        if is_http {
            end = self.bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
            let head = String::from_utf8_lossy(&self.bytes[..end]).into_owned();
            let fields: HashMap<String, &str> = head
                .lines()
                .filter_map(|line| line.split_once(':'))
                .map(|(name, value)| (name.to_ascii_lowercase(), value.trim()))
                .collect();
            self.key = fields.get("sec-websocket-key").map(|&key| key.to_owned());
            end += fields.get("content-length").map_or(0, |text| text.parse().unwrap());
        }
        if self.bytes.len() < end {
            return None;
        }
        let message: Vec<u8> = self.bytes.drain(..end).collect();
        Some(match &self.key {
            Some(key) => String::from_utf8(message).unwrap().replace(&**key, "KEY").into_bytes(),
            None => message,
        })
    }

    /// A masked frame of up to 125 bytes.
    fn frame(&mut self) -> Option<Vec<u8>> {
        let end = 6 + usize::from(*self.bytes.get(1)? & 0x7f);
        assert!(self.bytes[1] & 0x80 > 0 && end < 132, "a masked, short frame: {:?}", self.bytes);
        if self.bytes.len() < end {
            return None;
        }
        let frame: Vec<u8> = self.bytes.drain(..end).collect();
        let kind = match frame[0] {
            0x81 => "<text>",
            0x82 => "<binary>",
            0x88 => "<close>",
            other => panic!("a frame that begins with {other:#x}"),
        };
        let payload =
            frame[6..].iter().zip(frame[2..6].iter().cycle()).map(|(byte, mask)| byte ^ mask);
        Some(kind.bytes().chain(payload).collect())
    }

    /// Sends a scripted answer; `false` if the connection is to be closed after it.
    fn answer(&mut self, answer: &[u8]) -> bool {
        if let Some(text) = answer.strip_prefix(b"<text>") {
            return self.peer.send(frame(1, text));
        }
        let (answer, is_last) = match answer.strip_suffix(b"<close>") {
            Some(answer) => (answer, true),
            None => (answer, false),
        };
        let accept = self.key.as_ref().map(|key| {
            let accept = simurgh_proto::ws::handshake::accept_key(key);
            String::from_utf8(accept.as_ref().to_vec()).unwrap()
        });
        let answer = match accept {
            Some(accept) => {
                String::from_utf8(answer.to_vec()).unwrap().replace("ACCEPT", &accept).into_bytes()
            }
            None => answer.to_vec(),
        };
        self.peer.send(answer) && !is_last
    }
}

fn escaped(bytes: &[u8]) -> String {
    let mut out = String::new();
    for byte in bytes {
        match byte {
            b'\\' => out.push_str("\\\\"),
            b'\r' => out.push_str("\\r"),
            b'\n' => out.push_str("\\n"),
            b' '..=b'~' => out.push(char::from(*byte)),
            byte => write!(out, "\\x{byte:02x}").unwrap(),
        }
    }
    out
}

fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next() {
                Some(b'r') => b'\r',
                Some(b'n') => b'\n',
                Some(b'x') => {
                    let digits: Vec<u8> = rest.by_ref().take(2).collect();
                    u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                Some(other) => other,
                None => panic!("an escape without a sign: {text}"),
            },
            byte => byte,
        });
    }
    bytes
}
