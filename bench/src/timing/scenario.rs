//! Random scenarios: their text for the load generator, and when their requests have to come.

use anyhow::{Result, ensure};
use fastrand::Rng;

use std::collections::VecDeque;
use std::fmt::Write;
use std::net::SocketAddrV4;

use super::recorder::Record;

/// A step; all times in µs.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Think(u64),
    /// A random time in this range, which only the load generator knows.
    Random(u64, u64),
    /// Takes part in what comes for a time.
    Receive(u64),
    /// A request or message that is answered after a delay. A push may follow.
    Ask {
        name: u64,
        delay: u64,
        push: Option<u64>,
    },
    /// Waits for the next push, which may have come.
    Wait,
    Loop(u64, Vec<Step>),
    /// Rounds that begin at fixed distances.
    Every(u64, u64, Vec<Step>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Arrivals {
    /// Users per second.
    Open(u64),
    /// Users at a time.
    Closed(u64),
}

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) number: usize,
    pub(super) arrivals: Arrivals,
    pub(super) users: u64,
    pub(super) is_websocket: bool,
    pub(super) steps: Vec<Step>,
}

impl Scenario {
    pub(super) fn random(number: usize, seed: u64) -> Self {
        let mut random = Rng::with_seed(seed ^ (number as u64) << 32);
        let is_websocket = random.bool();
        let (arrivals, users) = if random.bool() {
            (Arrivals::Open(random.u64(10..=60)), random.u64(1..=12))
        } else {
            let at_a_time = random.u64(1..=6);
            (Arrivals::Closed(at_a_time), at_a_time + random.u64(0..=4))
        };
        let mut names = 0;
        let mut steps = Vec::new();
        for _ in 0..random.u64(2..=6) {
            add(&mut steps, &mut random, &mut names, is_websocket, 0);
        }
        // Each user is seen at least once.
        ask(&mut steps, &mut random, &mut names, is_websocket);
        Self { number, arrivals, users, is_websocket, steps }
    }

    /// The scenario as a file of `simurgh load`.
    pub(super) fn toml(&self, server: SocketAddrV4) -> String {
        let Self { number, users, .. } = self;
        let (arrivals, duration) = match self.arrivals {
            // Half a distance more, so that the last user is not the phase's end.
            Arrivals::Open(rate) => {
                (format!("rate = {rate}"), users * 2_000_000 / rate / 2 + 5_000)
            }
            Arrivals::Closed(at_a_time) => {
                (format!("users = {at_a_time}"), longest(&self.steps) * users + 100_000)
            }
        };
        let scheme = if self.is_websocket { "ws" } else { "http" };
        let mut text = format!(
            "seed = {number}\n[target]\nurl = \"{scheme}://{server}\"\n[[phase]]\nduration = \
             \"{duration}us\"\n{arrivals}\nmax_users = {users}\n[[session]]\nprotocol = \"raw\"\n\
             steps = [\n"
        );
        if self.is_websocket {
            let _ = writeln!(text, "{{ connect = \"/{number}/{{{{user_id}}}}/upgrade/0\" }},");
        }
        self.write(&self.steps, &mut text);
        text + "]\n"
    }

    fn write(&self, steps: &[Step], text: &mut String) {
        for step in steps {
            // Writing to a string does not fail.
            let _ = match step {
                Step::Think(time) => writeln!(text, "{{ think = \"{time}us\" }},"),
                Step::Random(low, high) => {
                    writeln!(text, "{{ think = [\"{low}us\", \"{high}us\"] }},")
                }
                Step::Receive(time) => writeln!(text, "{{ receive = \"{time}us\" }},"),
                Step::Wait => writeln!(text, "{{ wait = {{ contains = \"go\" }} }},"),
                Step::Ask { name, delay, push } => {
                    let push = push.map_or_else(String::new, |push| format!("/{push}"));
                    let path = format!("/{}/{{{{user_id}}}}/{name}/{delay}{push}", self.number);
                    match self.is_websocket {
                        true => {
                            let reply = "reply = { contains = \"ok\" }";
                            writeln!(text, "{{ send = \"{path}\", {reply} }},")
                        }
                        false => writeln!(text, "{{ get = \"{path}\" }},"),
                    }
                }
                Step::Loop(rounds, _) => writeln!(text, "{{ loop = {rounds}, steps = ["),
                Step::Every(rounds, every, _) => {
                    writeln!(text, "{{ loop = {rounds}, every = \"{every}us\", steps = [")
                }
            };
            if let Step::Loop(_, inner) | Step::Every(_, _, inner) = step {
                self.write(inner, text);
                text.push_str("] },\n");
            }
        }
    }
}

fn ask(steps: &mut Vec<Step>, random: &mut Rng, names: &mut u64, is_websocket: bool) {
    let delay = random.choice([0, 1_000, 5_000, 20_000]).unwrap_or(0);
    let push = (is_websocket && random.u64(0..=2) == 0).then(|| delay + random.u64(500..=30_000));
    *names += 1;
    steps.push(Step::Ask { name: *names, delay, push });
    if push.is_some() {
        if random.bool() {
            steps.push(Step::Think(random.u64(100..=30_000)));
        }
        steps.push(Step::Wait);
    }
}

fn add(steps: &mut Vec<Step>, random: &mut Rng, names: &mut u64, is_websocket: bool, depth: u64) {
    match random.u64(0..=if depth < 2 { 6 } else { 3 }) {
        0 => ask(steps, random, names, is_websocket),
        1 => steps.push(Step::Think(random.u64(1..=40_000))),
        2 if is_websocket => steps.push(Step::Receive(random.u64(1..=20_000))),
        2 | 3 => {
            let low = random.u64(1..=10_000);
            steps.push(Step::Random(low, low + random.u64(1..=3_000)));
        }
        kind => {
            let mut inner = Vec::new();
            for _ in 0..random.u64(1..=3) {
                add(&mut inner, random, names, is_websocket, depth + 1);
            }
            let rounds = random.u64(1..=4);
            steps.push(match kind {
                // More than a round takes, so that none is late.
                4 => Step::Every(rounds, longest(&inner) + random.u64(10_000..=30_000), inner),
                _ => Step::Loop(rounds, inner),
            });
        }
    }
}

/// What steps take at most, in µs.
pub(super) fn longest(steps: &[Step]) -> u64 {
    let one = |step: &Step| match step {
        Step::Think(time) | Step::Receive(time) | Step::Random(_, time) => *time,
        Step::Ask { delay, push, .. } => push.unwrap_or(0).max(*delay),
        Step::Wait => 0,
        Step::Loop(rounds, inner) => rounds * longest(inner),
        Step::Every(rounds, every, _) => rounds * every,
    };
    steps.iter().map(one).sum()
}

/// A time that is known to lie between these, in ns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Between(pub(super) u64, pub(super) u64);

impl Between {
    pub(super) fn plus(self, low_us: u64, high_us: u64) -> Self {
        Self(self.0 + low_us * 1_000, self.1 + high_us * 1_000)
    }

    /// By how much `other` is certainly later (positive) or earlier, in ns.
    pub(super) fn off(self, other: Self) -> i64 {
        let distance = |from: u64, to: u64| i64::try_from(to - from).unwrap_or(i64::MAX);
        match other {
            Self(low, _) if low > self.1 => distance(self.1, low),
            Self(_, high) if high < self.0 => -distance(high, self.0),
            _ => 0,
        }
    }
}

/// Follows one user through its steps and its requests, as the text asks for them.
pub(super) struct Follower<'a> {
    /// When the next step is intended to begin.
    pub(super) due: Between,
    /// The requests that are left.
    pub(super) records: VecDeque<&'a Record>,
    pushes: VecDeque<Between>,
    /// How late each request was, and which one it was.
    pub(super) off_ns: Vec<(i64, &'a Record)>,
}

impl<'a> Follower<'a> {
    pub(super) fn new(due: Between, records: VecDeque<&'a Record>) -> Self {
        Self { due, records, pushes: VecDeque::new(), off_ns: Vec::new() }
    }

    /// The whole session; an error if the requests are not those of the steps.
    pub(super) fn session(&mut self, scenario: &Scenario) -> Result<()> {
        if scenario.is_websocket {
            self.request("upgrade")?;
        }
        self.steps(&scenario.steps)?;
        ensure!(self.records.is_empty(), "{} requests too many", self.records.len());
        Ok(())
    }

    fn steps(&mut self, steps: &[Step]) -> Result<()> {
        for step in steps {
            match step {
                Step::Think(time) | Step::Receive(time) => self.due = self.due.plus(*time, *time),
                Step::Random(low, high) => self.due = self.due.plus(*low, *high),
                Step::Ask { name, .. } => self.request(&name.to_string())?,
                Step::Wait => {
                    let Between(low, high) = self.pushes.pop_front().unwrap_or_default();
                    self.due = Between(self.due.0.max(low), self.due.1.max(high));
                }
                Step::Loop(rounds, inner) => {
                    for _ in 0..*rounds {
                        self.steps(inner)?;
                    }
                }
                Step::Every(rounds, every, inner) => {
                    let start = self.due;
                    for round in 0..*rounds {
                        self.due = start.plus(round * every, round * every);
                        self.steps(inner)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn request(&mut self, name: &str) -> Result<()> {
        let record = self.records.pop_front();
        let record = record.filter(|record| record.part(2) == name);
        let Some(record) = record else { anyhow::bail!("request {name} did not come") };
        let off_ns = self.due.off(Between(record.from_ns, record.at_ns));
        self.off_ns.push((off_ns, record));
        let [before, after] = record.answered_ns;
        ensure!(before > 0, "request {name} was not answered");
        self.due = Between(before, after);
        let [before, after] = record.pushed_ns;
        if before > 0 {
            self.pushes.push_back(Between(before, after));
        }
        Ok(())
    }
}
