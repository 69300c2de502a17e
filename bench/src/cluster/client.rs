//! One client: a connection, a thread that publishes at a steady rate, and a thread that records
//! when each of the numbered messages arrived.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::net::sockopt;

use simurgh_bench_kit::clients::Script;
use simurgh_bench_kit::{frames, probe, wait};

const WAIT_MAX: Duration = Duration::from_secs(20);
/// How often a reading thread checks whether to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const TICK: Duration = Duration::from_millis(1);
/// The requested receive buffer: a few segments of the loopback's 64 kB. With less a sender waits
/// for its timers; without a limit it grows to megabytes.
const SMALL: usize = 200 << 10;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Received {
    pub(super) number: u32,
    pub(super) at: Instant,
}

pub(super) struct Client {
    stream: TcpStream,
    topic: String,
    input: Vec<u8>,
}

impl Client {
    pub(super) fn join(server: SocketAddrV4, topic: &str) -> Result<Self> {
        let mut script = Script::lobby(server);
        script.join =
            frames::text(format!("[\"1\",\"1\",\"{topic}\",\"phx_join\",{{}}]").as_bytes());
        let mut stream = probe::upgraded(server, 0, &script)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        stream.write_all(&script.join)?;
        let mut client = Self { stream, topic: topic.to_owned(), input: Vec::new() };
        let mut is_in = false;
        while !is_in {
            client.read()?;
            client.messages(|payload| is_in |= contains(payload, b"\"status\":\"ok\""))?;
        }
        Ok(client)
    }

    /// Limits its receive buffer.
    pub(super) fn take_little(&self) -> Result<()> {
        Ok(sockopt::set_socket_recv_buffer_size(&self.stream, SMALL)?)
    }

    /// Reads once; returns whether anything came before the time-out.
    fn read(&mut self) -> Result<bool> {
        let mut buf = [0; 64 << 10];
        match self.stream.read(&mut buf) {
            Ok(0) => Err(anyhow!("the server has cut a member of {}", self.topic)),
            Ok(count) => {
                self.input.extend_from_slice(buf.get(..count).unwrap_or_default());
                Ok(true)
            }
            Err(error) if is_late(error.kind()) => Ok(false),
            Err(error) => Err(error).with_context(|| format!("a member of {}", self.topic)),
        }
    }

    /// Takes the whole messages.
    fn messages(&mut self, mut each: impl FnMut(&[u8])) -> Result<()> {
        let mut used = 0;
        while let Some(frame) = frames::frame(self.input.get(used..).unwrap_or_default()) {
            ensure!(frame.opcode != frames::CLOSE, "{} was closed", self.topic);
            used += frame.len;
            each(frame.payload);
        }
        self.input.drain(..used);
        Ok(())
    }

    pub(super) fn read_broadcasts(&mut self, count: usize) -> Result<()> {
        let mut found = 0;
        loop {
            self.messages(|payload| found += usize::from(number(payload).is_some()))?;
            if found >= count {
                break;
            }
            ensure!(self.read()?, "{found} of {count} broadcasts have come");
        }
        ensure!(found == count, "{found} broadcasts in place of {count}");
        Ok(())
    }

    /// Publishes a message for each number, in one write.
    fn publish(&mut self, numbers: Range<u32>, body: &str) -> Result<()> {
        let mut bytes = Vec::new();
        for number in numbers {
            let text = format!(
                "[\"1\",\"2\",\"{}\",\"new:msg\",{{\"n\":{number},\"body\":\"{body}\"}}]",
                self.topic
            );
            frames::masked(frames::TEXT, text.as_bytes(), &mut bytes);
        }
        self.stream.write_all(&bytes).context("the server does not read")
    }

    /// Publishes a fixed number of messages each millisecond from now on, and receives.
    pub(super) fn publish_steadily(
        self,
        each_ms: u32,
        body: usize,
    ) -> Result<(Publisher, Listener)> {
        let stream = self.stream.try_clone()?;
        let mut client = Self { stream, topic: self.topic.clone(), input: Vec::new() };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let body = "x".repeat(body);
        let listener = self.listen()?;
        let thread = thread::spawn(move || {
            let (began, mut at) = (Instant::now(), Vec::new());
            for tick in 0.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let due = began + TICK * tick;
                wait::sleep_until(due);
                client.publish(tick * each_ms..(tick + 1) * each_ms, &body)?;
                at.push(due.max(began));
            }
            Ok(Published { at, each_ms })
        });
        Ok((Publisher { stop, thread }, listener))
    }

    /// Records from now on which messages come and when.
    pub(super) fn listen(mut self) -> Result<Listener> {
        self.stream.set_read_timeout(Some(POLL_INTERVAL))?;
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&count));
        let thread = thread::spawn(move || {
            let mut received = Vec::new();
            loop {
                let at = Instant::now();
                let note = |payload: &[u8]| {
                    received.extend(number(payload).map(|number| Received { number, at }));
                };
                self.messages(note)?;
                counted.store(u64::try_from(received.len())?, Ordering::Relaxed);
                if !self.read()? && stopped.load(Ordering::Relaxed) {
                    return Ok(received);
                }
            }
        });
        Ok(Listener { stop, count, thread })
    }
}

/// The published messages, and when they were due.
pub(super) struct Published {
    at: Vec<Instant>,
    each_ms: u32,
}

impl Published {
    #[cfg(test)]
    pub(super) fn every_ms(began: Instant, ticks: u32, each_ms: u32) -> Self {
        Self { at: (0..ticks).map(|tick| began + TICK * tick).collect(), each_ms }
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.at.len()).unwrap_or(u32::MAX).saturating_mul(self.each_ms)
    }

    /// When that number was due.
    pub(super) fn due(&self, number: u32) -> Option<Instant> {
        self.at.get(usize::try_from(number / self.each_ms).ok()?).copied()
    }
}

pub(super) struct Publisher {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Published>>,
}

impl Publisher {
    pub(super) fn end(self) -> Result<Published> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("a publisher has panicked"))?
    }
}

pub(super) struct Listener {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: JoinHandle<Result<Vec<Received>>>,
}

impl Listener {
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// All received messages, once no more come.
    pub(super) fn end(self) -> Result<Vec<Received>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("a listener has panicked"))?
    }
}

fn is_late(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|it| it == part)
}

/// The number of a broadcast: `[null,null,"topic","new:msg",{"n":17,…`.
pub(super) fn number(payload: &[u8]) -> Option<u32> {
    const HEAD: &[u8] = b"\"new:msg\",{\"n\":";
    // Everything before it is short.
    let front = payload.get(..payload.len().min(96))?;
    let at = front.windows(HEAD.len()).position(|it| it == HEAD)? + HEAD.len();
    let digits = front.get(at..)?.iter().take_while(|byte| byte.is_ascii_digit());
    let digits: Vec<u8> = digits.copied().collect();
    if digits.is_empty() { None } else { frames::numeral(&digits) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_broadcasts_yield_a_message_number() {
        let message = br#"[null,null,"rooms:a","new:msg",{"n":1207,"body":"x"}]"#;
        assert_eq!(number(message), Some(1_207));
        for other in [
            br#"["1","2","rooms:a","phx_reply",{"status":"ok","response":{}}]"#.as_slice(),
            br#"[null,null,"rooms:a","new:msg",{"body":"x"}]"#,
            br#"[null,null,"rooms:a","new:msg",{"n":"x"}]"#,
            br#"[null,null,"rooms:a","new:msg",{"n":99999999999}]"#,
            b"",
        ] {
            assert_eq!(number(other), None, "{}", String::from_utf8_lossy(other));
        }
    }

    #[test]
    fn message_numbers_are_due_in_their_millisecond() {
        let began = Instant::now();
        let published = Published::every_ms(began, 2, 10);
        assert_eq!(
            (published.count(), published.due(9), published.due(10)),
            (20, Some(began), Some(began + TICK))
        );
        assert_eq!(published.due(20), None);
    }
}
