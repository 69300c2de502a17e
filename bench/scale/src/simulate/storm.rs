//! A lost region's clients come back: what phoenix.js does, and servers that take one after the
//! other.
//!
//! A client that lost its connection tries again after 10, 50, 100 … 5,000 ms (phoenix.js has no
//! jitter of its own). Until clients are sent elsewhere each try fails at once. Then one goes to a
//! node at random: its proxy's accept queue (full: the kernel drops the SYN, and the client's
//! kernel sends it again after 1, 2, 4 … s), the TLS handshake, the upgrade, and once it is open
//! the join, each in the order it came. A join that is not answered within ten seconds is left and
//! said again after 1, 2, 5, 10 s, on the same connection; the server does it all the same.
//!
//! One in so many clients is played, and stands for as many: work and queues are those of all.

use std::collections::VecDeque;

use super::chance::Chance;
use crate::plan::domains;
use crate::prices::Prices;

/// phoenix.js, `reconnectAfterMs` and `rejoinAfterMs`: a test holds them against the file that the
/// chat's page uses.
pub const RECONNECT_MS: [u64; 9] = [10, 50, 100, 150, 200, 250, 500, 1000, 2000];
/// All further ones.
pub const RECONNECT_LAST_MS: u64 = 5000;
/// Rejoins on a connection that stands.
pub const REJOIN_MS: [u64; 3] = [1000, 2000, 5000];
/// All further ones.
pub const REJOIN_LAST_MS: u64 = 10_000;
/// A SYN that nobody answers is sent again after this, then after twice as long.
const SYN_MS: u64 = 1000;
/// Turns of the simulated clock.
const TURN_MS: u64 = 10;
/// Longer than this is not looked at.
const END_MS: u64 = 1_200_000;
/// Clients that are played.
const PLAYED: f64 = 150_000.0;

/// How clients find out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Connections are reset, all in the same round trip.
    Reset,
    /// There is silence: the next heartbeat is missed, 30 to 60 s later.
    Silence,
}

/// When clients come back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Backoff {
    /// As phoenix.js does by itself.
    Plain,
    /// The same, each time by a factor between 0.5 and 1.5.
    Jitter,
    /// With jitter, and the first time after any time up to so many seconds.
    Spread(f64),
}

/// What is played.
#[derive(Clone, Copy, Debug)]
pub struct Storm {
    /// What it costs, and who comes.
    pub of: domains::Storm,
    /// Nodes that are left.
    pub nodes: usize,
    /// Connections that wait for a node or its proxies.
    pub queue: f64,
    /// From the loss until clients are sent elsewhere, in seconds.
    pub redirect: f64,
    /// How clients find out.
    pub notice: Notice,
    /// When they come.
    pub backoff: Backoff,
    /// Seconds between heartbeats.
    pub heartbeat: f64,
    /// Seconds after which a join is given up.
    pub join_timeout: f64,
    /// Seconds to a client and back.
    pub round_trip: f64,
}

/// What became of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Seconds from the loss until half, 99 of a hundred, and all are back.
    pub back: [Option<f64>; 3],
    /// The share of clients whose join was not answered in time at least once.
    pub timed_out: f64,
    /// SYNs that were dropped, for each client.
    pub dropped: f64,
    /// Joins that servers did, for each client.
    pub joins: f64,
    /// The most that waited on a node, as seconds of its work.
    pub behind: f64,
    /// The most clients that came back in a second, for each node.
    pub peak: f64,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    Handshake,
    Connect,
    Join(u16),
    Leave,
}

#[derive(Clone, Copy, Debug)]
enum Due {
    /// It tries to connect.
    Try,
    /// Its SYN is sent again.
    Syn(u8),
    /// The join with this number has not been answered for ten seconds.
    GivesUp(u16),
    /// It joins again.
    Rejoin,
}

#[derive(Clone, Copy, Debug, Default)]
struct Client {
    node: u32,
    tries: u8,
    rejoins: u8,
    /// The number of its last join.
    join: u16,
    is_back: bool,
    has_timed_out: bool,
}

/// One server: takes what waits in turn, as far as its time goes.
#[derive(Debug, Default)]
struct Server {
    queue: VecDeque<(u32, Work)>,
    /// Core seconds of each.
    costs: VecDeque<f64>,
    /// All of them.
    work: f64,
    /// Time that is left over from the last turn.
    credit: f64,
}

struct World<'a> {
    storm: &'a Storm,
    chance: Chance,
    /// How many clients one stands for.
    flock: f64,
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
    /// Plays it.
    pub fn run(&self, seed: u64) -> Outcome {
        let all = self.of.clients * self.nodes as f64;
        let played = all.clamp(1.0, PLAYED) as usize;
        let mut world = World {
            storm: self,
            chance: Chance::new(seed),
            flock: all / played as f64,
            clients: vec![Client::default(); played],
            due: vec![Vec::new(); (END_MS / TURN_MS) as usize + 1],
            proxies: (0..self.nodes).map(|_| Server::default()).collect(),
            nodes: (0..self.nodes).map(|_| Server::default()).collect(),
            outcome: Outcome::default(),
            back: 0,
            joins: 0,
            dropped: 0,
        };
        world.begin();
        world.play();
        let played = played as f64;
        let late = world.clients.iter().filter(|it| it.has_timed_out).count();
        world.outcome.timed_out = late as f64 / played;
        world.outcome.dropped = world.dropped as f64 / played;
        world.outcome.joins = world.joins as f64 / played;
        world.outcome
    }

    /// Of a price list, as a plan has it.
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

impl World<'_> {
    /// When each client notices, and tries for the first time.
    fn begin(&mut self) {
        for at in 0..self.clients.len() as u32 {
            let share = self.chance.share();
            let noticed = match self.storm.notice {
                // As far as clients are.
                Notice::Reset => share * self.storm.round_trip,
                // The heartbeat that is not answered, as long again, and 1.5 s in which phoenix.js
                // waits for the socket to close.
                Notice::Silence => self.storm.heartbeat * (1.0 + share) + 1.5,
            };
            let first = match self.storm.backoff {
                Backoff::Spread(seconds) => self.chance.share() * seconds,
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
            _ => 0.5 + self.chance.share(),
        };
        ms as f64 / 1000.0 * factor
    }

    fn play(&mut self) {
        let (half, most) = (self.clients.len().div_ceil(2), self.clients.len() * 99 / 100);
        let mut peaks = VecDeque::new();
        for turn in 0..self.due.len() {
            let now = turn as f64 * TURN_MS as f64 / 1000.0;
            for (client, due) in std::mem::take(&mut self.due[turn]) {
                self.happens(client, due, now);
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
            let peak = peaks.iter().sum::<usize>() as f64 * self.flock / self.nodes.len() as f64;
            self.outcome.peak = self.outcome.peak.max(peak);
            if self.back == self.clients.len() {
                return;
            }
        }
    }

    fn happens(&mut self, at: u32, due: Due, now: f64) {
        match due {
            Due::Try if now < self.storm.redirect => self.fails(at, now),
            Due::Try => {
                let node = self.chance.below(self.nodes.len() as u64) as u32;
                self.clients[at as usize].node = node;
                self.knocks(at, 0, now);
            }
            Due::Syn(times) => self.knocks(at, times, now),
            Due::Rejoin => self.joins(at, now),
            Due::GivesUp(join) => {
                let client = &mut self.clients[at as usize];
                if client.is_back || client.join != join {
                    return;
                }
                client.has_timed_out = true;
                // Its answer is for nobody any more.
                client.join = client.join.wrapping_add(1);
                let rejoins = usize::from(client.rejoins);
                client.rejoins = client.rejoins.saturating_add(1);
                let node = client.node as usize;
                self.add_to_node(node, at, Work::Leave);
                let ms = REJOIN_MS.get(rejoins).copied().unwrap_or(REJOIN_LAST_MS);
                let after = self.jittered(ms);
                self.at(now + after, at, Due::Rejoin);
            }
        }
    }

    /// Nobody is there: it hears so at once.
    fn fails(&mut self, at: u32, now: f64) {
        let client = &mut self.clients[at as usize];
        client.tries = client.tries.saturating_add(1);
        let tries = client.tries;
        let after = self.reconnect(tries);
        self.at(now + self.storm.round_trip + after, at, Due::Try);
    }

    /// A SYN arrives.
    fn knocks(&mut self, at: u32, times: u8, now: f64) {
        let node = self.clients[at as usize].node as usize;
        let servers = if self.has_proxies() { &self.proxies } else { &self.nodes };
        let waiting = servers[node].queue.len() as f64 * self.flock;
        if waiting >= self.storm.queue {
            self.dropped += 1;
            let after = (SYN_MS << times.min(6)) as f64 / 1000.0;
            return self.at(now + after, at, Due::Syn(times + 1));
        }
        match self.has_proxies() {
            true => {
                let handshake = self.storm.of.handshake * self.flock;
                self.proxies[node].add(at, Work::Handshake, handshake);
            }
            false => self.add_to_node(node, at, Work::Connect),
        }
    }

    fn has_proxies(&self) -> bool {
        self.storm.of.proxy_cores.is_some()
    }

    fn add_to_node(&mut self, node: usize, at: u32, work: Work) {
        let of = &self.storm.of;
        let seconds = match work {
            Work::Connect => of.connect,
            // A leave is a message and its answer, as a join is.
            Work::Join(_) | Work::Leave => of.join,
            Work::Handshake => 0.0,
        };
        self.nodes[node].add(at, work, seconds * self.flock);
    }

    fn joins(&mut self, at: u32, now: f64) {
        let client = &mut self.clients[at as usize];
        client.join = client.join.wrapping_add(1);
        let (node, join) = (client.node as usize, client.join);
        self.add_to_node(node, at, Work::Join(join));
        self.at(now + self.storm.join_timeout, at, Due::GivesUp(join));
    }

    /// A turn of all servers.
    fn serve(&mut self, now: f64) {
        let turn = TURN_MS as f64 / 1000.0;
        for node in 0..self.nodes.len() {
            if let Some(cores) = self.storm.of.proxy_cores {
                for (at, _) in self.proxies[node].take(cores * turn) {
                    self.add_to_node(node, at, Work::Connect);
                }
            }
            let done = self.nodes[node].take(self.storm.of.node_cores * turn);
            for (at, work) in done {
                self.done(at, work, now);
            }
            let behind = self.nodes[node].work / self.storm.of.node_cores;
            self.outcome.behind = self.outcome.behind.max(behind);
        }
    }

    fn done(&mut self, at: u32, work: Work, now: f64) {
        match work {
            // It hears so, and its join is on the way; ten seconds count from there.
            Work::Connect => self.at(now + self.storm.round_trip, at, Due::Rejoin),
            Work::Join(join) => {
                self.joins += 1;
                let client = &mut self.clients[at as usize];
                if client.join == join && !client.is_back {
                    client.is_back = true;
                    self.back += 1;
                }
            }
            Work::Leave | Work::Handshake => {}
        }
    }
}

impl Server {
    fn add(&mut self, client: u32, work: Work, seconds: f64) {
        self.queue.push_back((client, work));
        self.costs.push_back(seconds);
        self.work += seconds;
    }

    /// What is done in so many core seconds.
    fn take(&mut self, seconds: f64) -> Vec<(u32, Work)> {
        let mut done = Vec::new();
        self.credit += seconds;
        while let Some(cost) = self.costs.front().copied()
            && cost <= self.credit
        {
            self.costs.pop_front();
            self.credit -= cost;
            self.work -= cost;
            done.extend(self.queue.pop_front());
        }
        // What nobody wanted is not saved.
        if self.queue.is_empty() {
            (self.credit, self.work) = (0.0, 0.0);
        }
        done
    }
}

#[cfg(test)]
mod tests;
