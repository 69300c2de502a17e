//! CPU time of servers, from their `/metrics` once a second. Optional: answers cost them CPU time.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use simurgh_load_record::Record;
use simurgh_load_scenario::Scenario;

use crate::dashboard::Probe;

const EVERY: Duration = Duration::from_secs(1);

/// Polls until it is dropped.
#[derive(Debug)]
pub struct Meter {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Meter {
    /// Polls the servers of a scenario that have users and no TLS, and adds their CPU time to the
    /// record. Each was polled once when this returns. Fails if no thread can be started.
    pub fn start(scenario: &Scenario, record: Arc<Mutex<Record>>) -> io::Result<Self> {
        let targets = (0_u16..).zip(&scenario.targets);
        let targets = targets.filter(|(_, target)| !target.tls && target.weight > 0.0);
        let mut servers: Vec<Server> = targets
            .map(|(index, target)| Server { index, probe: Probe::of(target), cpu_s: None })
            .collect();
        servers.iter_mut().for_each(|server| _ = server.ask());
        let (stop, stopped) = channel();
        let ask = move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                for server in &mut servers {
                    let us = server.ask();
                    if us > 0 {
                        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
                        record.server_cpu(server.index, us);
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("simurgh-meter".into()).spawn(ask)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // Its panic has been logged.
            let _ = thread.join();
        }
    }
}

struct Server {
    index: u16,
    probe: Probe,
    cpu_s: Option<f64>,
}

impl Server {
    /// CPU time since the last answer, microseconds; 0 if the server does not answer.
    fn ask(&mut self) -> u64 {
        let Some(cpu_s) = self.probe.ask().ok().and_then(|figures| figures.cpu_s) else { return 0 };
        match self.cpu_s.replace(cpu_s) {
            // A restarted server counts from 0.
            Some(before) if before <= cpu_s => ((cpu_s - before) * 1e6).round() as u64,
            _ => 0,
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_types, reason = "a server in a test")]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn what_a_server_has_used_is_counted_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            // The fourth is of a restarted server, the fifth is invalid.
            for cpu_s in ["2", "2.5", "2.5", "0.25", "x", "0.5"] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = [0; 1024];
                let n = stream.read(&mut head).unwrap();
                assert!(head[..n].starts_with(b"GET /metrics HTTP/1.0\r\n"));
                write!(stream, "HTTP/1.0 200 OK\r\n\r\nprocess_cpu_seconds_total {cpu_s}\n")
                    .unwrap();
            }
        });
        let probe = Probe { host: "a:1".to_owned(), address, path: "/metrics".to_owned() };
        let mut asked = Server { index: 0, probe, cpu_s: None };
        let counted = [(); 6].map(|()| asked.ask());
        assert_eq!(counted, [0, 500_000, 0, 0, 0, 250_000]);
        server.join().unwrap();
        assert_eq!(asked.ask(), 0, "nobody is there");
    }
}
