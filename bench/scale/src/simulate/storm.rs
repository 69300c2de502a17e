//! Simulates the clients of a lost region that reconnect as phoenix.js does, and the servers.
//!
//! A client that lost its connection tries again after 10, 50, 100 … 5,000 ms (phoenix.js has no
//! jitter). Until clients are sent elsewhere each try fails at once. Then a try goes to a random
//! node: its proxy's accept queue (if full, the kernel drops the SYN, and the client's kernel sends
//! it again after 1, 2, 4 … s), the TLS handshake, the upgrade, and then the join. A join that is
//! not answered within ten seconds is left and sent again after 1, 2, 5, 10 s on the same
//! connection; the server still does the first. New connections and connections with something to
//! read take turns in the order in which they became ready; a turn reads all that the client has
//! sent by then.
//!
//! Each simulated client stands for several: work and queues are those of all.

use std::collections::VecDeque;

use simurgh_cluster::SplitMix64;

use super::random::Random;
use crate::plan::domains;
use crate::prices::Prices;

/// As in phoenix.js, `reconnectAfterMs` and `rejoinAfterMs`; a test compares them with its file.
pub const RECONNECT_MS: [u64; 9] = [10, 50, 100, 150, 200, 250, 500, 1000, 2000];
/// All further reconnects.
pub const RECONNECT_LAST_MS: u64 = 5000;
/// Rejoins on an open connection.
pub const REJOIN_MS: [u64; 3] = [1000, 2000, 5000];
/// All further rejoins.
pub const REJOIN_LAST_MS: u64 = 10_000;
/// An unanswered SYN is sent again after this time, then after twice as long.
const SYN_MS: u64 = 1000;
/// A step of the simulated clock.
const TURN_MS: u64 = 10;
/// The simulation ends at this time.
const END_MS: u64 = 1_200_000;
const SIMULATED: f64 = 150_000.0;

/// How clients notice the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Connections are reset, all in the same round trip.
    Reset,
    /// Silence: the next heartbeat is missed, 30 to 60 s later.
    Silence,
}

/// When clients reconnect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Backoff {
    /// Like phoenix.js by default.
    Plain,
    /// Like phoenix.js, each delay times a factor between 0.5 and 1.5.
    Jitter,
    /// With jitter, and the first delay is random up to this many seconds.
    Spread(f64),
}

/// The parameters of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Storm {
    /// Its costs and clients.
    pub of: domains::Storm,
    /// Nodes that are left.
    pub nodes: usize,
    /// Places in the accept queue of a node or its proxies.
    pub queue: f64,
    /// Seconds from the loss until clients are sent elsewhere.
    pub redirect: f64,
    /// How clients notice the loss.
    pub notice: Notice,
    /// When they reconnect.
    pub backoff: Backoff,
    /// Seconds between heartbeats.
    pub heartbeat: f64,
    /// Seconds after which a join times out.
    pub join_timeout: f64,
    /// Round-trip time to a client in seconds.
    pub round_trip: f64,
}

/// The result of a simulation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Seconds from the loss until half, 99 of a hundred, and all have reconnected.
    pub back: [Option<f64>; 3],
    /// The share of clients whose join was not answered in time at least once.
    pub timed_out: f64,
    /// SYNs that were dropped, for each client.
    pub dropped: f64,
    /// Joins that servers did, for each client.
    pub joins: f64,
    /// The longest queue of a node, as seconds of its work.
    pub behind: f64,
    /// The most clients that reconnected in a second, for each node.
    pub peak: f64,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    Handshake,
    Connect,
    Read,
}

#[derive(Clone, Copy, Debug)]
enum Due {
    Try,
    Syn(u8),
    /// The join with this number has not been answered for ten seconds.
    GivesUp(u16),
    Rejoin,
}

#[derive(Clone, Copy, Debug, Default)]
struct Client {
    node: u32,
    tries: u8,
    rejoins: u8,
    join: u16,
    /// Whether it waits for the answer to that join.
    is_waiting: bool,
    /// Joins and leaves that the server has not read.
    unread: (u16, u16),
    is_back: bool,
    has_timed_out: bool,
}

/// One server, which serves its queue in order as far as its CPU time suffices.
#[derive(Debug, Default)]
struct Server {
    queue: VecDeque<(u32, Work)>,
    /// Core seconds of the whole queue.
    work: f64,
    /// Time left over from the last turn.
    credit: f64,
}

struct Simulation<'a> {
    storm: &'a Storm,
    random: SplitMix64,
    /// How many clients a simulated one stands for.
    weight: f64,
    clients: Vec<Client>,
    due: Vec<Vec<(u32, Due)>>,
    proxies: Vec<Server>,
    nodes: Vec<Server>,
    outcome: Outcome,
    back: usize,
    joins: u64,
    dropped: u64,
}

impl Storm {
    /// Runs the simulation.
    pub fn run(&self, seed: u64) -> Outcome {
        let all = self.of.clients * self.nodes as f64;
        let simulated = all.clamp(1.0, SIMULATED) as usize;
        let mut simulation = Simulation {
            storm: self,
            random: SplitMix64::new(seed),
            weight: all / simulated as f64,
            clients: vec![Client::default(); simulated],
            due: vec![Vec::new(); (END_MS / TURN_MS) as usize + 1],
            proxies: (0..self.nodes).map(|_| Server::default()).collect(),
            nodes: (0..self.nodes).map(|_| Server::default()).collect(),
            outcome: Outcome::default(),
            back: 0,
            joins: 0,
            dropped: 0,
        };
        simulation.begin();
        simulation.run();
        let simulated = simulated as f64;
        let late = simulation.clients.iter().filter(|it| it.has_timed_out).count();
        simulation.outcome.timed_out = late as f64 / simulated;
        simulation.outcome.dropped = simulation.dropped as f64 / simulated;
        simulation.outcome.joins = simulation.joins as f64 / simulated;
        simulation.outcome
    }

    /// The parameters of a plan and its prices.
    pub fn new(of: domains::Storm, prices: &Prices, nodes: usize) -> Self {
        Self {
            of,
            nodes,
            queue: f64::INFINITY,
            redirect: 0.0,
            notice: Notice::Reset,
            backoff: Backoff::Plain,
            heartbeat: prices.get("heartbeat_s"),
            join_timeout: prices.get("join_timeout_s"),
            round_trip: prices.get("round_trip_s"),
        }
    }
}

impl Simulation<'_> {
    /// Schedules when each client notices, and tries for the first time.
    fn begin(&mut self) {
        for at in 0..self.clients.len() as u32 {
            let share = self.random.share();
            let noticed = match self.storm.notice {
                // According to the clients' distance.
                Notice::Reset => share * self.storm.round_trip,
                // The unanswered heartbeat, as long again, and 1.5 s until phoenix.js closes the
                // socket.
                Notice::Silence => self.storm.heartbeat * (1.0 + share) + 1.5,
            };
            let first = match self.storm.backoff {
                Backoff::Spread(seconds) => self.random.share() * seconds,
                _ => self.reconnect(0),
            };
            self.at(noticed + first, at, Due::Try);
        }
    }

    fn at(&mut self, seconds: f64, client: u32, due: Due) {
        let turn = (seconds * 1000.0 / TURN_MS as f64).ceil() as usize;
        if let Some(turn) = self.due.get_mut(turn) {
            turn.push((client, due));
        }
    }

    fn reconnect(&mut self, tries: u8) -> f64 {
        let ms = RECONNECT_MS.get(usize::from(tries)).copied().unwrap_or(RECONNECT_LAST_MS);
        self.jittered(ms)
    }

    fn jittered(&mut self, ms: u64) -> f64 {
        let factor = match self.storm.backoff {
            Backoff::Plain => 1.0,
            _ => 0.5 + self.random.share(),
        };
        ms as f64 / 1000.0 * factor
    }

    fn run(&mut self) {
        let (half, most) = (self.clients.len().div_ceil(2), self.clients.len() * 99 / 100);
        let mut peaks = VecDeque::new();
        for turn in 0..self.due.len() {
            let now = turn as f64 * TURN_MS as f64 / 1000.0;
            for (client, due) in std::mem::take(&mut self.due[turn]) {
                self.handle(client, due, now);
            }
            let before = self.back;
            self.serve(now);
            for (at, count) in [half, most.max(1), self.clients.len()].into_iter().enumerate() {
                if self.back >= count && self.outcome.back[at].is_none() {
                    self.outcome.back[at] = Some(now);
                }
            }
            peaks.push_back(self.back - before);
            if peaks.len() > (1000 / TURN_MS) as usize {
                peaks.pop_front();
            }
            let peak = peaks.iter().sum::<usize>() as f64 * self.weight / self.nodes.len() as f64;
            self.outcome.peak = self.outcome.peak.max(peak);
            if self.back == self.clients.len() {
                return;
            }
        }
    }

    fn handle(&mut self, at: u32, due: Due, now: f64) {
        match due {
            Due::Try if now < self.storm.redirect => self.connect_fails(at, now),
            Due::Try => {
                let node = self.random.below(self.nodes.len() as u64) as u32;
                self.clients[at as usize].node = node;
                self.syn_arrives(at, 0, now);
            }
            Due::Syn(times) => self.syn_arrives(at, times, now),
            Due::Rejoin => self.joins(at, now),
            Due::GivesUp(join) => {
                let client = &mut self.clients[at as usize];
                if client.is_back || client.join != join {
                    return;
                }
                // An answer that comes now is ignored.
                (client.has_timed_out, client.is_waiting) = (true, false);
                let rejoins = usize::from(client.rejoins);
                client.rejoins = client.rejoins.saturating_add(1);
                client.unread.1 += 1;
                self.queue_read(at);
                let ms = REJOIN_MS.get(rejoins).copied().unwrap_or(REJOIN_LAST_MS);
                let after = self.jittered(ms);
                self.at(now + after, at, Due::Rejoin);
            }
        }
    }

    /// No server listens, so the client fails at once.
    fn connect_fails(&mut self, at: u32, now: f64) {
        let client = &mut self.clients[at as usize];
        client.tries = client.tries.saturating_add(1);
        let tries = client.tries;
        let after = self.reconnect(tries);
        self.at(now + self.storm.round_trip + after, at, Due::Try);
    }

    fn syn_arrives(&mut self, at: u32, times: u8, now: f64) {
        let node = self.clients[at as usize].node as usize;
        let servers = if self.has_proxies() { &self.proxies } else { &self.nodes };
        let waiting = servers[node].queue.len() as f64 * self.weight;
        if waiting >= self.storm.queue {
            self.dropped += 1;
            let after = (SYN_MS << times.min(6)) as f64 / 1000.0;
            return self.at(now + after, at, Due::Syn(times + 1));
        }
        match self.has_proxies() {
            true => {
                let handshake = self.storm.of.handshake * self.weight;
                self.proxies[node].add(at, Work::Handshake, handshake);
            }
            false => self.nodes[node].add(at, Work::Connect, self.storm.of.connect * self.weight),
        }
    }

    fn has_proxies(&self) -> bool {
        self.storm.of.proxy_cores.is_some()
    }

    fn joins(&mut self, at: u32, now: f64) {
        let client = &mut self.clients[at as usize];
        client.join = client.join.wrapping_add(1);
        client.is_waiting = true;
        client.unread.0 += 1;
        let join = client.join;
        self.queue_read(at);
        self.at(now + self.storm.join_timeout, at, Due::GivesUp(join));
    }

    /// A client has sent a join or a leave, which cost the same: a message and its answer. If some
    /// of its messages wait already, this one shares their turn.
    fn queue_read(&mut self, at: u32) {
        let client = &self.clients[at as usize];
        let (node, join) = (client.node as usize, self.storm.of.join * self.weight);
        match client.unread.0 + client.unread.1 {
            1 => self.nodes[node].add(at, Work::Read, join),
            _ => self.nodes[node].work += join,
        }
    }

    fn serve(&mut self, now: f64) {
        let turn = TURN_MS as f64 / 1000.0;
        for node in 0..self.nodes.len() {
            if let Some(cores) = self.storm.of.proxy_cores {
                for at in self.handshakes(node, cores * turn) {
                    let connect = self.storm.of.connect * self.weight;
                    self.nodes[node].add(at, Work::Connect, connect);
                }
            }
            self.nodes[node].credit += self.storm.of.node_cores * turn;
            while let Some((at, work)) = self.next_of(node) {
                self.done(at, work, now);
            }
            self.nodes[node].drop_unused();
            let behind = self.nodes[node].work / self.storm.of.node_cores;
            self.outcome.behind = self.outcome.behind.max(behind);
        }
    }

    /// The clients whose handshakes a proxy does in this many core seconds.
    fn handshakes(&mut self, node: usize, seconds: f64) -> Vec<u32> {
        let mut done = Vec::new();
        let (proxy, handshake) = (&mut self.proxies[node], self.storm.of.handshake * self.weight);
        proxy.credit += seconds;
        while let Some((at, _)) = proxy.take(handshake) {
            done.push(at);
        }
        proxy.drop_unused();
        done
    }

    /// The next work of a node, if it has time for it.
    fn next_of(&mut self, node: usize) -> Option<(u32, Work)> {
        let (at, work) = *self.nodes[node].queue.front()?;
        let (joins, leaves) = self.clients[at as usize].unread;
        let seconds = match work {
            Work::Connect | Work::Handshake => self.storm.of.connect,
            Work::Read => f64::from(joins + leaves) * self.storm.of.join,
        };
        self.nodes[node].take(seconds * self.weight)
    }

    fn done(&mut self, at: u32, work: Work, now: f64) {
        match work {
            // The answer is on its way, then the join; its ten seconds start there.
            Work::Connect => self.at(now + self.storm.round_trip, at, Due::Rejoin),
            Work::Read => {
                let client = &mut self.clients[at as usize];
                self.joins += u64::from(client.unread.0);
                client.unread = (0, 0);
                if client.is_waiting && !client.is_back {
                    client.is_back = true;
                    self.back += 1;
                }
            }
            Work::Handshake => {}
        }
    }
}

impl Server {
    fn add(&mut self, client: u32, work: Work, seconds: f64) {
        self.queue.push_back((client, work));
        self.work += seconds;
    }

    /// The first of the queue, if there is time for its cost.
    fn take(&mut self, seconds: f64) -> Option<(u32, Work)> {
        if seconds > self.credit {
            return None;
        }
        let first = self.queue.pop_front()?;
        self.credit -= seconds;
        self.work -= seconds;
        Some(first)
    }

    fn drop_unused(&mut self) {
        if self.queue.is_empty() {
            (self.credit, self.work) = (0.0, 0.0);
        }
    }
}

#[cfg(test)]
mod tests;
