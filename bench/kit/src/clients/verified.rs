//! Clients that verify every delivery: broadcasts have a running number and each connection knows
//! which one must come next, so a missing, doubled or misplaced one is noticed on its connection.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use serde::Serialize;
use simurgh_tls::rustls::ClientConfig;

use super::{Connections, IN_FLIGHT, Receiver};
use crate::frames::{self, Kind};

/// The bytes each client sends to upgrade and join.
pub struct Script {
    /// The upgrade request.
    pub upgrade: Vec<u8>,
    /// The whole masked join frame.
    pub join: Vec<u8>,
}

impl Script {
    /// A V2 client of `rooms:lobby` at the server's own address.
    pub fn lobby(server: SocketAddrV4) -> Self {
        let path = "/socket/websocket?vsn=2.0.0";
        let upgrade = frames::upgrade_request(path, &server.to_string(), "");
        Self { upgrade, join: frames::text(frames::JOIN) }
    }
}

/// The counts of all connections together.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tally {
    /// Broadcasts received in order.
    pub delivered: u64,
    /// Numbers that a connection never received.
    pub missed: u64,
    /// Broadcasts received a second time or after a later one.
    pub repeated: u64,
    /// `new:msg` of the wrong form or length, fragments, and frames that are not Channels messages.
    pub odd: u64,
    /// Replies after the join's.
    pub replies: u64,
    /// Replies whose status was not `ok`.
    pub refused: u64,
    /// Other messages by event.
    pub events: BTreeMap<String, u64>,
    /// Close frames by code.
    pub closes: BTreeMap<u16, u64>,
    /// Connections that ended without the client closing them.
    pub lost: u64,
}

#[derive(Clone, Copy, Default)]
struct Member {
    is_joined: bool,
    next: u32,
}

struct Verifier {
    join: Vec<u8>,
    members: Vec<Member>,
    tally: Tally,
    joined: usize,
    /// Number of the next broadcast that will be published.
    next: u32,
    /// Copy of `tally.delivered` for the join probe's thread.
    progress: Arc<AtomicU64>,
}

/// All connections of one run.
pub struct VerifiedClients {
    connections: Connections<Verifier>,
}

impl VerifiedClients {
    /// No connections yet.
    pub fn new(server: SocketAddrV4, script: Script) -> Result<Self> {
        Self::with_tls(server, script, None)
    }

    /// The same over TLS.
    pub fn with_tls(
        server: SocketAddrV4,
        script: Script,
        tls: Option<Arc<ClientConfig>>,
    ) -> Result<Self> {
        let verifier = Verifier {
            join: script.join,
            members: Vec::new(),
            tally: Tally::default(),
            joined: 0,
            next: 0,
            progress: Arc::default(),
        };
        let request = Box::new(move |_: usize| script.upgrade.clone());
        let mut connections = Connections::new(server, request, verifier)?;
        connections.tls = tls;
        Ok(Self { connections })
    }

    fn verifier(&self) -> &Verifier {
        &self.connections.receiver
    }

    /// The counts so far.
    pub fn tally(&self) -> &Tally {
        &self.verifier().tally
    }

    /// Joined connections that are still open.
    pub fn joined(&self) -> usize {
        self.verifier().joined
    }

    /// The running count of deliveries, for another thread to read.
    pub fn progress(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.verifier().progress)
    }

    /// Opens connections until `total` are joined.
    pub fn grow(&mut self, total: usize, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        while self.joined() < total {
            let (open, joined) = (self.connections.len(), self.joined());
            let lost = usize::try_from(self.tally().lost)?;
            if open < total && open.saturating_sub(joined + lost) < IN_FLIGHT {
                self.connections.open()?;
                continue;
            }
            ensure!(lost == 0, "the server cut {lost} connections during the joins");
            ensure!(self.tally().refused == 0, "a join was refused");
            ensure!(Instant::now() < deadline, "{joined} of {total} joined after {within:?}");
            self.connections.pump(Duration::from_millis(100))?;
        }
        Ok(())
    }

    /// Reads for `time`, so that stragglers are seen and the server becomes idle.
    pub fn rest(&mut self, time: Duration) -> Result<()> {
        self.connections.rest_until(Instant::now() + time)
    }

    /// Reads until `done`, at most for `within`.
    fn until(&mut self, within: Duration, done: impl Fn(&Tally) -> bool) -> Result<()> {
        let deadline = Instant::now() + within;
        while !done(self.tally()) {
            let tally = self.tally();
            ensure!(tally.lost == 0, "the server cut {} connections", tally.lost);
            ensure!(Instant::now() < deadline, "nothing more after {within:?}: {tally:?}");
            self.connections.pump(Duration::from_millis(100))?;
        }
        Ok(())
    }

    /// Publishes `count` broadcasts in one write of the first client.
    pub fn publish(&mut self, count: u32) -> Result<()> {
        let next = &mut self.connections.receiver.next;
        let mut bytes = Vec::new();
        for seq in *next..*next + count {
            frames::masked(frames::TEXT, &frames::push(seq), &mut bytes);
        }
        *next += count;
        self.connections.send(0, &bytes)
    }

    /// Publishes and waits for all deliveries and the publisher's replies; the time that took.
    pub fn broadcast(&mut self, count: u32, within: Duration) -> Result<Duration> {
        let target = self.tally().delivered + u64::from(count) * u64::try_from(self.joined())?;
        let replies = self.tally().replies + u64::from(count);
        let started = Instant::now();
        self.publish(count)?;
        self.until(within, |tally| tally.delivered >= target && tally.replies >= replies)?;
        Ok(started.elapsed())
    }

    /// Waits for a broadcast published earlier: until all clients have `delivered` in total.
    pub fn await_delivered(&mut self, delivered: u64, within: Duration) -> Result<()> {
        self.until(within, |tally| tally.delivered >= delivered)
    }

    /// One heartbeat of the first client; returns the time until its answer.
    pub fn heartbeat(&mut self) -> Result<Duration> {
        let frame = frames::text(frames::HEARTBEAT);
        let target = self.tally().replies + 1;
        let started = Instant::now();
        self.connections.send(0, &frame)?;
        self.until(Duration::from_secs(5), |tally| tally.replies >= target)?;
        Ok(started.elapsed())
    }

    /// One heartbeat of every client at once, without waiting for answers.
    pub fn send_heartbeats(&self) -> Result<()> {
        let frame = frames::text(frames::HEARTBEAT);
        (0..self.connections.len()).try_for_each(|index| self.connections.send(index, &frame))
    }

    /// One heartbeat of every client, waiting for all answers.
    pub fn heartbeat_all(&mut self) -> Result<()> {
        let target = self.tally().replies + u64::try_from(self.connections.len())?;
        self.send_heartbeats()?;
        self.until(Duration::from_secs(60), |tally| tally.replies >= target)
    }

    /// Connections that have not had exactly every broadcast so far.
    pub fn behind(&self) -> usize {
        let Verifier { members, next, .. } = self.verifier();
        members.iter().filter(|member| member.next != *next).count()
    }
}

impl Receiver for Verifier {
    fn opened(&mut self) {
        self.members.push(Member::default());
    }

    fn upgraded(&mut self, _: usize) -> &[u8] {
        &self.join
    }

    fn received(&mut self, index: usize, input: &[u8]) -> Result<usize> {
        let mut used = 0;
        while let Some(frame) = frames::frame(input.get(used..).unwrap_or_default()) {
            used += frame.len;
            self.frame(index, &frame);
        }
        self.progress.store(self.tally.delivered, Ordering::Relaxed);
        Ok(used)
    }

    fn ended(&mut self, index: usize, _: Option<Errno>) -> Result<()> {
        self.tally.lost += 1;
        let member = self.members.get(index).context("no such connection")?;
        self.joined = self.joined.saturating_sub(usize::from(member.is_joined));
        Ok(())
    }
}

impl Verifier {
    fn frame(&mut self, index: usize, frame: &frames::Frame<'_>) {
        if frame.opcode == frames::CLOSE {
            *self.tally.closes.entry(frame.close_code()).or_default() += 1;
            return;
        }
        if !frame.fin || !matches!(frame.opcode, frames::TEXT | frames::BINARY) {
            self.tally.odd += 1;
            return;
        }
        let Some(member) = self.members.get_mut(index) else { return };
        match frames::classify(frame.payload) {
            Kind::Broadcast(seq) => {
                if seq < member.next {
                    self.tally.repeated += 1;
                    return;
                }
                self.tally.missed += u64::from(seq - member.next);
                self.tally.delivered += 1;
                member.next = seq + 1;
            }
            Kind::Reply(ok) => {
                self.tally.refused += u64::from(!ok);
                if member.is_joined {
                    self.tally.replies += 1;
                } else if ok {
                    *member = Member { is_joined: true, next: self.next };
                    self.joined += 1;
                }
            }
            Kind::Event(name) => *self.tally.events.entry(name).or_default() += 1,
            Kind::Odd => self.tally.odd += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients() -> VerifiedClients {
        let server = "127.0.0.1:1".parse().unwrap();
        let mut clients = VerifiedClients::new(server, Script::lobby(server)).unwrap();
        let verifier = &mut clients.connections.receiver;
        verifier.members.push(Member { is_joined: true, next: 0 });
        verifier.joined = 1;
        clients
    }

    fn receive(clients: &mut VerifiedClients, bytes: &[u8]) -> usize {
        clients.connections.receiver.received(0, bytes).unwrap()
    }

    #[test]
    fn gaps_repeats_and_swaps_are_detected() {
        let mut clients = clients();
        for seq in [0, 1, 1, 4, 3] {
            receive(&mut clients, &frames::plain(&frames::broadcast(seq)));
        }
        let tally = clients.tally();
        assert_eq!((tally.delivered, tally.missed, tally.repeated), (3, 2, 2));
        clients.connections.receiver.next = 5;
        assert_eq!(clients.behind(), 0);
        clients.connections.receiver.next = 6;
        assert_eq!(clients.behind(), 1);
    }

    #[test]
    fn announcements_and_closes_are_counted_separately() {
        let mut clients = clients();
        let entered = b"[null,null,\"rooms:lobby\",\"user:entered\",{\"user\":\"b\"}]";
        receive(&mut clients, &frames::plain(entered));
        receive(&mut clients, &[0x88, 2, 0x03, 0xf4]);
        assert_eq!(clients.tally().events, BTreeMap::from([("user:entered".to_owned(), 1)]));
        assert_eq!(clients.tally().closes, BTreeMap::from([(1012, 1)]));
    }
}
