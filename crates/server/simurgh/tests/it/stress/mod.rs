//! Random but reproducible operations of many clients on four shards: each answer comes once and in
//! order, each broadcast reaches each member, and no other client, once and in its sender's order,
//! and nothing remains when all have left.
//!
//! Every sender numbers its broadcasts on a topic. A membership receives these numbers without a
//! gap; at the end of a round, when every client has its answers and every topic a last broadcast,
//! it must have received them all. Only the last messages of a vanishing client are uncertain: all
//! others must have received the same ones.
//!
//! `STRESS_SEED` runs one seed, `STRESS_SEEDS` so many, `STRESS_ROUNDS` sets their length.

mod client;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::support::{Client, WAIT_MAX, metrics, start};
use client::{Expected, Peer, Stream};
use serde_json::{Value, json};
use simurgh::{
    Broadcast, ChannelRoute, Connect, Endpoint, Join, Outcome, Payload, ShardChannel, ShardContext,
    UserSocket,
};
use tungstenite::Message;

const CLIENTS: usize = 60;
const THREADS: usize = 4;
const TOPICS: [&str; 6] = ["rooms:0", "rooms:1", "rooms:2", "icept:0", "later:0", "relay:0"];

struct Room {
    intercepts: bool,
}

fn join(ctx: &mut ShardContext<'_>, _: Payload<'_>) -> Join {
    let topic = ctx.topic();
    let room = Room { intercepts: topic.starts_with("icept:") };
    if topic.starts_with("relay:") {
        ctx.subscribe("rooms:0");
    }
    if !ctx.topic().starts_with("later:") {
        return Join::ok(room);
    }
    Join::later(async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        Join::ok(room)
    })
}

impl ShardChannel for Room {
    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        match event {
            "echo" => return Outcome::ok(&payload),
            "all" => ctx.broadcast("cast", &payload),
            "others" => ctx.broadcast_from("cast", &payload),
            _ => ctx.broadcast_to(event, "cast", &payload),
        }
        Outcome::ok(json!({}))
    }

    fn intercept(&self) -> &'static [&'static str] {
        if self.intercepts { &["cast"] } else { &[] }
    }

    fn handle_broadcast(&mut self, ctx: &mut ShardContext<'_>, broadcast: &Broadcast) -> Outcome {
        ctx.push("relayed", broadcast.payload());
        Outcome::NoReply
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

/// What a client does after its last message.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Stays,
    /// Its connection breaks, perhaps within a message.
    Drops {
        half: bool,
    },
    /// Its id is disconnected meanwhile.
    Disconnected,
}

struct Plan {
    sends: Vec<String>,
    end: End,
}

/// A client and the sender's side of its model: the topics it will have joined, with their refs.
struct Participant {
    peer: Peer,
    joined: Vec<(String, String)>,
    next_ref: u64,
    plan: Plan,
}

struct Stress {
    endpoint: Endpoint,
    random: Random,
    participants: Vec<Participant>,
    counts: HashMap<Stream, u64>,
    connections: usize,
}

fn id(name: &str) -> String {
    format!("ids:{name}")
}

fn connect(endpoint: &Endpoint, number: usize) -> Participant {
    let (v2, name) = (!number.is_multiple_of(3), format!("c{number}"));
    let vsn = if v2 { "2.0.0" } else { "1.0.0" };
    let path = format!("/socket/websocket?vsn={vsn}&id={}", id(&name));
    let socket = Client::connect(endpoint.addresses()[0], &path);
    let plan = Plan { sends: Vec::new(), end: End::Stays };
    Participant { peer: Peer::new(socket, v2, name), joined: Vec::new(), next_ref: 0, plan }
}

impl Participant {
    fn send(&mut self, join_ref: &str, topic: &str, event: &str, payload: &Value) -> String {
        self.next_ref += 1;
        let own = self.next_ref.to_string();
        let join_ref = if event == "phx_join" { &own } else { join_ref };
        self.plan.sends.push(self.peer.encode(join_ref, &own, topic, event, payload));
        own
    }

    fn expect(&mut self, msg_ref: String, status: &'static str, length: Option<usize>) {
        self.peer.expected.push_back(Expected::Reply { msg_ref, status, length });
    }

    fn join(&mut self, topic: &str, own: u64) {
        let join_ref = self.send("", topic, "phx_join", &json!({}));
        let topic = topic.to_owned();
        let at = self.joined.iter().position(|(joined, _)| *joined == topic);
        let old = at.map(|at| self.joined.remove(at).1);
        self.joined.push((topic.clone(), join_ref.clone()));
        let rejoin = old.is_some();
        let expected = &mut self.peer.expected;
        expected.push_back(Expected::Joined { topic: topic.clone(), join_ref, own, rejoin });
        if let Some(join_ref) = old {
            expected.push_back(Expected::Close { topic, join_ref });
        }
    }

    fn leave(&mut self, topic: &str, own: u64) {
        let at = self.joined.iter().position(|(joined, _)| joined == topic);
        let Some((topic, join_ref)) = at.map(|at| self.joined.remove(at)) else {
            let msg_ref = self.send("", topic, "phx_leave", &json!({}));
            return self.expect(msg_ref, "ok", None);
        };
        let msg_ref = self.send(&join_ref, &topic, "phx_leave", &json!({}));
        self.peer.expected.push_back(Expected::Left { topic: topic.clone(), msg_ref, own });
        self.peer.expected.push_back(Expected::Close { topic, join_ref });
    }

    fn heartbeat(&mut self) {
        let msg_ref = self.send("", "phoenix", "heartbeat", &json!({}));
        self.expect(msg_ref, "ok", None);
    }

    /// Returns whether it stays.
    fn run(&mut self, endpoint: &Endpoint) -> Result<bool, String> {
        for text in std::mem::take(&mut self.plan.sends) {
            let sent = self.peer.socket.0.send(Message::text(text));
            if let Err(error) = sent
                && self.plan.end != End::Disconnected
            {
                return Err(format!("sending: {error}"));
            }
        }
        match self.plan.end {
            End::Drops { half } => {
                if half {
                    let start = [0x81, 0xFE, 0x40, 0, 1, 2, 3, 4, b'[' ^ 1];
                    self.peer.socket.0.get_mut().write_all(&start).map_err(|it| it.to_string())?;
                }
                return Ok(false);
            }
            End::Disconnected => {
                endpoint.disconnect(&id(&self.peer.name)).map_err(|it| it.to_string())?;
                while self.peer.step(Some(1001))? {}
                return Ok(false);
            }
            End::Stays => {}
        }
        while !self.peer.expected.is_empty() {
            self.peer.step(None)?;
        }
        Ok(true)
    }
}

impl Stress {
    fn new(seed: u64) -> Self {
        let mut user_socket = UserSocket::new("/socket")
            .connect_on_shard(|info| Connect::ok().maybe_id(info.param("id")));
        for pattern in ["rooms:*", "icept:*", "later:*", "relay:*"] {
            user_socket = user_socket.channel(ChannelRoute::on_shard(pattern, join));
        }
        let endpoint = start(Endpoint::builder().socket(user_socket).configure(|config| {
            config.shards = 4;
            // No client here is meant to exceed the limit of slow readers.
            config.outbound_bytes_max = 64 << 20;
        }));
        let participants = (0..CLIENTS).map(|number| connect(&endpoint, number)).collect();
        let (random, counts) = (Random(seed), HashMap::new());
        Self { endpoint, random, participants, counts, connections: CLIENTS }
    }

    fn count(&self, sender: &str, topic: &str) -> u64 {
        self.counts.get(&(sender.to_owned(), topic.to_owned())).copied().unwrap_or(0)
    }

    fn next(&mut self, sender: &str, topic: &str) -> Value {
        let count = self.counts.entry((sender.to_owned(), topic.to_owned())).or_insert(0);
        *count += 1;
        let pad = if self.random.below(50) == 0 { 20_000 } else { self.random.below(60) as usize };
        json!({"s": sender, "n": count, "x": topic, "pad": "x".repeat(pad)})
    }

    /// Returns the endpoint's broadcasts, and the operations for a report.
    fn plan(&mut self, round: usize) -> (Vec<(String, Value)>, String) {
        let fresh = format!("rooms:f{round}");
        let topics: Vec<&str> = TOPICS.iter().copied().chain([&*fresh]).collect();
        let mut report = String::new();
        let mut turns: Vec<usize> = (0..CLIENTS).cycle().take(CLIENTS * 5).collect();
        for at in (1..turns.len()).rev() {
            turns.swap(at, self.random.below(at as u64 + 1) as usize);
        }
        for at in turns {
            let topic = *self.random.pick(&topics);
            self.operate(at, topic, &topics, &mut report);
        }
        for (at, participant) in self.participants.iter_mut().enumerate() {
            participant.heartbeat();
            participant.plan.end = match self.random.below(40) {
                n @ 0..=1 => End::Drops { half: n == 0 },
                2 => End::Disconnected,
                _ => End::Stays,
            };
            let _ =
                write!(report, "\n{at} is {}, {:?}", participant.peer.name, participant.plan.end);
        }
        let mut casts = Vec::new();
        for _ in 0..30 {
            let topic = *self.random.pick(&topics);
            casts.push((topic.to_owned(), self.next("e", topic)));
        }
        (casts, report)
    }

    fn operate(&mut self, at: usize, topic: &str, topics: &[&str], report: &mut String) {
        let name = self.participants[at].peer.name.clone();
        let own = self.count(&name, topic);
        let choice = self.random.below(20);
        let old: Vec<_> = self.participants[at].joined.iter().map(|it| it.0.clone()).collect();
        let what = match choice {
            0..=4 => {
                self.participants[at].join(topic, own);
                "join"
            }
            5..=6 => {
                self.participants[at].leave(topic, own);
                "leave"
            }
            7 if !old.is_empty() => {
                let topic = self.random.pick(&old).clone();
                let own = self.count(&name, &topic);
                self.participants[at].leave(&topic, own);
                let _ = write!(report, "{at} leave {topic}; ");
                return;
            }
            7..=8 => {
                self.participants[at].heartbeat();
                "heartbeat"
            }
            _ => return self.push(at, topic, topics, choice, report),
        };
        let _ = write!(report, "{at} {what} {topic}; ");
    }

    fn push(&mut self, at: usize, topic: &str, topics: &[&str], choice: u64, report: &mut String) {
        let joined = self.participants[at].joined.iter().find(|it| it.0 == topic);
        let Some(join_ref) = joined.map(|it| it.1.clone()) else {
            let participant = &mut self.participants[at];
            let msg_ref = participant.send("", topic, "all", &json!({}));
            let _ = write!(report, "{at} pushes unjoined {topic}; ");
            return participant.expect(msg_ref, "error", None);
        };
        let name = self.participants[at].peer.name.clone();
        let other = *self.random.pick(topics);
        let (event, payload, length) = match choice {
            9..=10 => {
                let large = self.random.below(4) == 0;
                let bytes = self.random.below(if large { 300_000 } else { 300 }) as usize;
                ("echo", json!({"pad": "y".repeat(bytes)}), Some(bytes))
            }
            11..=14 => ("all", self.next(&name, topic), None),
            15..=17 => ("others", self.next(&format!("{name}o"), topic), None),
            _ => (other, self.next(&name, other), None),
        };
        let participant = &mut self.participants[at];
        // A join_ref may be omitted.
        let join_ref = if choice.is_multiple_of(2) { &*join_ref } else { "" };
        let msg_ref = participant.send(join_ref, topic, event, &payload);
        participant.expect(msg_ref, "ok", length);
        let _ = write!(report, "{at} {event} on {topic} {}; ", payload["n"]);
    }

    fn round(&mut self, casts: Vec<(String, Value)>) -> Result<(), String> {
        let stay = self.everybody(casts)?;
        let mut dead_names = Vec::new();
        let participants = std::mem::take(&mut self.participants);
        for (participant, stays) in participants.into_iter().zip(stay) {
            match stays {
                true => self.participants.push(participant),
                false => dead_names.push(participant.peer.name),
            }
        }
        // Messages of vanished clients are handled once their sockets are gone.
        self.wait_for(&["simurgh_sockets"], self.participants.len() as u64)?;
        self.level(&dead_names)?;
        let dead = |sender: &str| dead_names.iter().any(|it| sender.trim_end_matches('o') == it);
        self.counts.retain(|(sender, _), _| !dead(sender));
        while self.participants.len() < CLIENTS {
            self.participants.push(connect(&self.endpoint, self.connections));
            self.connections += 1;
        }
        Ok(())
    }

    /// All clients do their part on a few threads, while the endpoint broadcasts from another.
    fn everybody(&mut self, casts: Vec<(String, Value)>) -> Result<Vec<bool>, String> {
        let (endpoint, participants) = (&self.endpoint, &mut self.participants);
        std::thread::scope(|scope| {
            scope.spawn(move || casts.into_iter().for_each(|it| cast(endpoint, &it.0, it.1)));
            let parts = participants.chunks_mut(CLIENTS.div_ceil(THREADS)).map(|participants| {
                let name =
                    |participant: &Participant, why| format!("{}: {why}", participant.peer.name);
                let run = move |participant: &mut Participant| {
                    participant.run(endpoint).map_err(|why| name(participant, why))
                };
                scope.spawn(move || participants.iter_mut().map(run).collect::<Vec<_>>())
            });
            let parts: Vec<_> = parts.collect();
            parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
        })
    }

    /// Ends a round: a last broadcast on every topic reaches every member; then all is compared.
    fn level(&mut self, dead_names: &[String]) -> Result<(), String> {
        let mut topics: Vec<String> = self.counts.keys().map(|(_, topic)| topic.clone()).collect();
        let windows = self.participants.iter().flat_map(|participant| participant.peer.windows());
        topics.extend(windows.map(|(source, _)| source.to_owned()));
        topics.sort();
        topics.dedup();
        for topic in topics {
            let payload = self.next("e", &topic);
            cast(&self.endpoint, &topic, payload);
        }
        let mut dead = HashMap::new();
        for participant in &mut self.participants {
            let mut level = || {
                while !participant.peer.is_level(&self.counts) {
                    participant.peer.step(None)?;
                }
                participant.peer.settle(&self.counts, &mut dead, dead_names)
            };
            level().map_err(|why| format!("{} at the barrier: {why}", participant.peer.name))?;
        }
        Ok(())
    }

    /// All leave right after a broadcast, in several ways. Then nothing may remain.
    fn finish(mut self) -> Result<(), String> {
        for at in 0..self.participants.len() {
            for (topic, join_ref) in self.participants[at].joined.clone() {
                let participant = &mut self.participants[at];
                participant.send(
                    &join_ref,
                    &topic,
                    "all",
                    &json!({"s": "bye", "n": 1, "x": topic}),
                );
                if at.is_multiple_of(3) {
                    participant.send(&join_ref, &topic, "phx_leave", &json!({}));
                }
            }
        }
        for (at, mut participant) in std::mem::take(&mut self.participants).into_iter().enumerate()
        {
            for text in std::mem::take(&mut participant.plan.sends) {
                participant.peer.socket.0.send(Message::text(text)).map_err(|it| it.to_string())?;
            }
            if at.is_multiple_of(2) {
                participant.peer.socket.0.close(None).map_err(|it| it.to_string())?;
            }
        }
        let gauges = ["sockets", "channels", "topics", "fanout_bytes", "inbound_bytes"];
        let gauges = gauges.map(|name| format!("simurgh_{name}"));
        self.wait_for(&gauges.each_ref().map(String::as_str), 0)
    }

    /// None is ever negative.
    fn wait_for(&self, names: &[&str], wanted: u64) -> Result<(), String> {
        let until = Instant::now() + WAIT_MAX;
        loop {
            let text = metrics(&self.endpoint);
            let of = |name: &&str| {
                let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
                lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
            };
            let sums: Vec<u64> = names.iter().map(of).collect();
            if sums.iter().all(|sum| *sum == wanted) {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(format!("{names:?} are {sums:?}, not {wanted}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn cast(endpoint: &Endpoint, topic: &str, payload: Value) {
    while endpoint.broadcast(topic, "cast", payload.clone()).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn run(seed: u64, rounds: usize) {
    let mut stress = Stress::new(seed);
    for round in 0..rounds {
        let (casts, report) = stress.plan(round);
        let heard = stress.round(casts);
        assert!(heard.is_ok(), "seed {seed}, round {round}: {heard:?}\noperations: {report}");
    }
    let end = stress.finish();
    assert!(end.is_ok(), "seed {seed} after {rounds} rounds: {end:?}");
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

#[test]
fn every_member_hears_everything_once_and_nothing_is_left() {
    let rounds = from_environment("STRESS_ROUNDS").unwrap_or(10) as usize;
    let seeds = match (from_environment("STRESS_SEED"), from_environment("STRESS_SEEDS")) {
        (Some(seed), count) => seed..seed + count.unwrap_or(1),
        (None, count) => 1..1 + count.unwrap_or(4),
    };
    for seed in seeds {
        run(seed, rounds);
    }
}
