//! The servers' own figures, from their `/metrics` once a second: their CPU time for the record,
//! all of them for pages. Optional: answers cost servers CPU time.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use simurgh_load_record::Record;
use simurgh_load_scenario::Scenario;

use crate::dashboard::{CPU, Figures, Probe, Target, TargetPoint, and, grown, point};

const EVERY: Duration = Duration::from_secs(1);

/// Polls until it is dropped.
#[derive(Debug)]
pub struct Meter {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Meter {
    /// Polls the servers of a scenario that have users and no TLS. Each was polled once when this
    /// returns. Fails if no thread can be started.
    pub fn start(
        scenario: &Scenario,
        record: Arc<Mutex<Record>>,
        target: Target,
    ) -> io::Result<Self> {
        let targets = (0_u16..).zip(&scenario.targets);
        let targets = targets.filter(|(_, target)| !target.tls && target.weight > 0.0);
        let mut servers: Vec<Server> = targets
            .map(|(index, target)| Server { index, probe: Probe::of(target), before: None })
            .collect();
        ask(&mut servers, &record, &target);
        let (stop, stopped) = channel();
        let poll = move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                ask(&mut servers, &record, &target);
            }
        };
        let thread = std::thread::Builder::new().name("simurgh-meter".into()).spawn(poll)?;
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

/// Asks all servers at once, as each may take its time.
fn ask(servers: &mut [Server], record: &Mutex<Record>, target: &Target) {
    let answers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            servers.iter_mut().map(|server| scope.spawn(|| server.ask())).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
    });
    let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
    for answer in answers.iter().filter(|answer| answer.cpu_us > 0) {
        record.server_cpu(answer.index, answer.cpu_us);
    }
    let started = Duration::from_millis(record.meta().started_unix_ms);
    drop(record);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let t_s = now.saturating_sub(started).as_secs_f64();
    if let Some(sum) = answers.into_iter().map(|answer| answer.figures).reduce(and) {
        target.push(t_s, sum);
    }
}

struct Server {
    index: u16,
    probe: Probe,
    /// Its last answer, and when it came.
    before: Option<(Instant, Figures)>,
}

struct Answer {
    index: u16,
    /// CPU time since the previous answer, microseconds.
    cpu_us: u64,
    figures: TargetPoint,
}

impl Server {
    fn ask(&mut self) -> Option<Answer> {
        let figures = self.probe.ask().ok()?;
        let now = Instant::now();
        let before = self.before.as_ref().map(|(at, old)| (now - *at, old));
        let cpu_s = before.and_then(|(_, old)| grown(CPU, &figures, old)).unwrap_or(0.0);
        let point = point(&figures, before);
        self.before = Some((now, figures));
        Some(Answer { index: self.index, cpu_us: (cpu_s * 1e6).round() as u64, figures: point })
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_types, reason = "a server in a test")]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use simurgh_load_record::Meta;

    use super::*;

    #[test]
    fn server_cpu_time_is_counted_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            // The fourth is of a restarted server, the fifth is invalid.
            for cpu_s in ["2", "2.5", "2.5", "0.25", "x", "0.5"] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = [0; 1024];
                let n = stream.read(&mut head).unwrap();
                assert!(head[..n].starts_with(b"GET /metrics HTTP/1.0\r\n"));
                let shards =
                    "simurgh_connections{shard=\"0\"} 40\nsimurgh_connections{shard=\"1\"} 2";
                let shards = if cpu_s == "2.5" { shards } else { "" };
                write!(
                    stream,
                    "HTTP/1.0 200 OK\r\n\r\n{shards}\nprocess_cpu_seconds_total {cpu_s}\n"
                )
                .unwrap();
            }
        });
        let probe = Probe { host: "a:1".to_owned(), address };
        let mut servers = [Server { index: 0, probe, before: None }];
        let (record, target) = (Mutex::new(Record::new(Meta::default())), Target::default());
        let mut seen = Vec::new();
        for second in 1..=6 {
            ask(&mut servers, &record, &target);
            let tick = record.lock().unwrap().close_second(second * 1000);
            let cpu_us = tick.all.servers.get(&0).map_or(0, |server| server.cpu_us);
            seen.push((cpu_us, target.last().unwrap()["connections"]));
        }
        let (none, some) = (None, Some(42.0));
        let expected =
            [(0, none), (500_000, some), (0, some), (0, none), (0, none), (250_000, none)];
        assert_eq!(seen, expected);
        server.join().unwrap();
        assert!(servers[0].ask().is_none(), "nobody is there");
    }
}
