//! An environment without networks and files, and a scenario to insert parts into.
#![allow(dead_code, reason = "each test file takes what it needs")]

use std::io;
use std::net::IpAddr;

use simurgh_load::scenario::{Diagnostic, Diagnostics, Loaded, Overrides, Scenario, Session, Step};
use simurgh_load::tsung::{Environment, read_in};

/// Has a few names, files and addresses.
pub(crate) struct Fake;

impl Environment for Fake {
    fn resolve(&self, host: &str) -> Vec<IpAddr> {
        match host {
            "localhost" => vec!["::1".parse().unwrap(), "127.0.0.1".parse().unwrap()],
            "far" => vec!["192.0.2.1".parse().unwrap()],
            _ => Vec::new(),
        }
    }

    fn file(&self, name: &str) -> io::Result<Vec<u8>> {
        match name {
            "users.csv" => Ok(b"alice;pw1\nbob;pw2\n\n".to_vec()),
            "empty.csv" => Ok(b"\n\n".to_vec()),
            "latin1.csv" => Ok(b"\xef\xbb\xbfan\xe9;1\r\nbob\n\n \n\n".to_vec()),
            "bytes.bin" => Ok(vec![0xff, 0x00]),
            "body.txt" => Ok(b"id=%%_id%%".to_vec()),
            "more.xml" => Ok(b"<thinktime value=\"1\"/>\n<thinktime value=\"2\"/>".to_vec()),
            "a.pem" | "b.pem" => Ok(format!("PEM {name}").into_bytes()),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }

    fn is_ours(&self, address: IpAddr) -> bool {
        address.is_loopback() || address == "10.0.0.2".parse::<IpAddr>().unwrap()
    }

    fn host_name(&self) -> String {
        "this.example.org".to_owned()
    }
}

/// The parts of a scenario; each begins on the line in its comment.
#[derive(Clone)]
pub(crate) struct Parts {
    /// 4
    pub(crate) clients: String,
    /// 5
    pub(crate) servers: String,
    /// 6
    pub(crate) load: String,
    /// 7
    pub(crate) options: String,
    /// 8
    pub(crate) sessions: String,
}

impl Default for Parts {
    fn default() -> Self {
        Self {
            clients: "<client host=\"localhost\"/>".to_owned(),
            servers: "<server host=\"127.0.0.1\" port=\"4000\" type=\"tcp\"/>".to_owned(),
            load: "<arrivalphase phase=\"1\" duration=\"1\" unit=\"second\">\
                   <users arrivalrate=\"1\" unit=\"second\"/></arrivalphase>"
                .to_owned(),
            options: String::new(),
            sessions: session("ts_http", "<request><http url=\"/\"/></request>"),
        }
    }
}

impl Parts {
    pub(crate) fn text(&self) -> String {
        let Self { clients, servers, load, options, sessions } = self;
        format!(
            "<?xml version=\"1.0\"?>\n\
             <!DOCTYPE tsung SYSTEM \"/usr/share/tsung/tsung-1.0.dtd\">\n\
             <tsung version=\"1.0\">\n\
             <clients>{clients}</clients>\n\
             <servers>{servers}</servers>\n\
             <load>{load}</load>\n\
             <options>{options}</options>\n\
             <sessions>{sessions}</sessions>\n\
             </tsung>\n"
        )
    }

    pub(crate) fn read(&self) -> Result<Loaded, Diagnostics> {
        read_in(&self.text(), &Overrides::default(), &Fake)
    }
}

/// A session of this type; its steps begin on line 9.
pub(crate) fn session(kind: &str, steps: &str) -> String {
    format!("<session name=\"a\" probability=\"100\" type=\"{kind}\">\n{steps}</session>")
}

pub(crate) fn with_steps(kind: &str, steps: &str) -> Parts {
    Parts { sessions: session(kind, steps), ..Parts::default() }
}

/// The steps of the only session, and the warnings.
pub(crate) fn steps(kind: &str, text: &str) -> (Scenario, Vec<Step>, Vec<String>) {
    let loaded = with_steps(kind, text).read().unwrap_or_else(|faults| panic!("{text}: {faults}"));
    let steps = only_session(&loaded).steps.clone();
    (loaded.scenario.clone(), steps, lines(&loaded.warnings))
}

pub(crate) fn only_session(loaded: &Loaded) -> &Session {
    let [session] = loaded.scenario.sessions.as_slice() else { panic!("one session") };
    session
}

pub(crate) fn lines(faults: &[Diagnostic]) -> Vec<String> {
    faults.iter().map(ToString::to_string).collect()
}

pub(crate) fn wrong(parts: &Parts) -> Vec<String> {
    match parts.read() {
        Ok(_) => Vec::new(),
        Err(faults) => lines(&faults.0),
    }
}

pub(crate) fn wrong_steps(kind: &str, text: &str) -> Vec<String> {
    wrong(&with_steps(kind, text))
}
