//! What sockets and channels cost: created, spoken with, spoken to, and after they idle.

use std::fmt::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use simurgh::driver::{Counts, Driver, Options, SocketId, What};
use simurgh::{Endpoint, Handle, Payload};
use simurgh_text::format::grouped;
use simurgh_text::output::print;

use super::fleet::{millis, patiently, wait};
use super::resources::{Clocks, Spent, megabytes, resident_bytes};
use super::stop::Stop;
use super::{Failure, Way};

/// Sockets that are created between two looks at the progress bar.
const AT_ONCE: usize = 10_000;
/// How long what was asked may take to be answered by all.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How long the one socket that tries a channel first waits for what it has to say.
const TRIED: Duration = Duration::from_secs(1);
/// How long the allocator has to give memory back once all hibernate.
const TIDIED: Duration = Duration::from_millis(300);

/// What is measured.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) sockets: usize,
    /// Of each socket.
    pub(super) topics: Vec<String>,
    pub(super) path: String,
    pub(super) params: Value,
    pub(super) payload: Value,
    pub(super) event: String,
    pub(super) broadcasts: usize,
    pub(super) way: Way,
}

/// A row of the report.
struct Row {
    what: String,
    /// How many of it.
    of: Option<usize>,
    spent: Option<Spent>,
    /// Resident at its end, bytes.
    memory: Option<u64>,
}

/// A measurement under way.
struct Run<'p> {
    plan: &'p Plan,
    driver: Driver,
    server: Handle,
    stop: &'p Stop,
    sockets: Vec<SocketId>,
    rows: Vec<Row>,
    notes: Vec<String>,
}

/// Creates sockets and measures, and prints what came of it.
pub(super) fn measure(endpoint: &Endpoint, plan: &Plan, stop: &Stop) -> Result<(), Failure> {
    let mut notes = Vec::new();
    let is_answered = try_one(endpoint, plan, stop, &mut notes)?;
    let mut options = Options::default();
    options.counts_only = true;
    options.serializer = plan.way.serializer();
    let driver = Driver::with(endpoint, options);
    let server = endpoint.handle();
    let mut run = Run { plan, driver, server, stop, sockets: Vec::new(), rows: Vec::new(), notes };
    let before = resident_bytes().unwrap_or(0);
    run.create()?;
    if is_answered {
        run.push()?;
    }
    run.broadcast()?;
    run.idle()?;
    print(&run.report(before));
    Ok(())
}

/// One socket goes first: what it cannot do, half a million need not try. Whether the event is
/// answered.
fn try_one(
    endpoint: &Endpoint,
    plan: &Plan,
    stop: &Stop,
    notes: &mut Vec<String>,
) -> Result<bool, Failure> {
    let mut options = Options::default();
    options.serializer = plan.way.serializer();
    let mut driver = Driver::with(endpoint, options);
    let socket = driver.connect(&plan.path, plan.params.clone())?;
    for topic in &plan.topics {
        let joined = driver.join(socket, topic, plan.payload.clone())?;
        let reply = driver.reply(joined)?;
        if &*reply.status != "ok" {
            let response = reply.response.json().unwrap_or("binary data");
            return Err(Failure::Because(format!("{topic} was not joined: {response}")));
        }
    }
    let Some(topic) = plan.topics.first() else { return Ok(false) };
    let silent =
        format!("{:?} is not answered on {topic}, so no messages are measured", plan.event);
    driver.settle()?;
    while driver.try_recv().is_some() {}
    driver.push(socket, topic, &plan.event, Payload::EMPTY_OBJECT)?;
    wait(stop, TRIED, || driver.counts() != Counts::default() && heard(&driver) > joins(plan))?;
    let is_answered = match driver.recv_timeout(Duration::ZERO).map(|event| event.what) {
        Some(What::Reply(reply)) => &*reply.status == "ok",
        Some(What::Message(_)) => true,
        _ => false,
    };
    if !is_answered {
        notes.push(silent);
    }
    Ok(is_answered)
}

fn joins(plan: &Plan) -> u64 {
    plan.topics.len() as u64
}

/// Answers of any sort.
fn heard(driver: &Driver) -> u64 {
    let Counts { ok, not_ok, messages, channels_crashed, .. } = driver.counts();
    ok + not_ok + messages + channels_crashed
}

impl Run<'_> {
    fn create(&mut self) -> Result<(), Failure> {
        let all = self.plan.sockets;
        let bar = bar(all as u64);
        let clocks = Clocks::now();
        self.sockets.reserve_exact(all);
        while self.sockets.len() < all {
            let some = AT_ONCE.min(all - self.sockets.len());
            let (driver, plan) = (&mut self.driver, self.plan);
            let opened = patiently(self.stop, || {
                driver.connect_many(some, &plan.path, plan.params.clone())
            })?;
            let first = self.sockets.len();
            for socket in opened {
                self.sockets.push(socket?);
            }
            let new = self.sockets.get(first..).unwrap_or_default();
            for topic in &plan.topics {
                patiently(self.stop, || driver.join_many(new, topic, plan.payload.clone()))?;
            }
            bar.set_position(self.sockets.len() as u64);
        }
        let asked = (all * self.plan.topics.len()) as u64;
        self.await_heard(asked, |counts| counts.ok + counts.not_ok)?;
        let spent = clocks.spent();
        bar.finish_and_clear();
        let refused = self.driver.counts().not_ok;
        if refused > 0 {
            self.notes.push(format!("{} joins were refused", grouped(refused)));
        }
        self.row("created and joined", Some(all), Some(spent));
        Ok(())
    }

    /// Every socket pushes once.
    fn push(&mut self) -> Result<(), Failure> {
        let Some(topic) = self.plan.topics.first() else { return Ok(()) };
        let before = heard(&self.driver);
        let clocks = Clocks::now();
        for some in self.sockets.chunks(AT_ONCE) {
            let (driver, event) = (&mut self.driver, &self.plan.event);
            patiently(self.stop, || driver.push_many(some, topic, event, Payload::EMPTY_OBJECT))?;
        }
        let asked = before + self.sockets.len() as u64;
        self.await_heard(asked, |it| it.ok + it.not_ok + it.messages + it.channels_crashed)?;
        let what = format!("pushed {:?} and answered", self.plan.event);
        self.row(&what, Some(self.sockets.len()), Some(clocks.spent()));
        Ok(())
    }

    fn broadcast(&mut self) -> Result<(), Failure> {
        let Some(topic) = self.plan.topics.first() else { return Ok(()) };
        let mut times = Vec::new();
        for _ in 0..self.plan.broadcasts {
            let asked = self.driver.counts().messages + self.sockets.len() as u64;
            let clocks = Clocks::now();
            let said =
                self.server.pubsub().broadcast(topic, "news", Payload::from_json(r#"{"n":1}"#));
            said.map_err(|error| Failure::Because(error.to_string()))?;
            self.await_heard(asked, |counts| counts.messages)?;
            times.push(clocks.spent());
        }
        times.sort();
        let median = times.get(times.len() / 2).copied().unwrap_or_default();
        let what = format!("a broadcast to all, median of {}", self.plan.broadcasts);
        self.row(&what, Some(self.sockets.len()), Some(median));
        Ok(())
    }

    /// Waits until all channels hibernate.
    fn idle(&mut self) -> Result<(), Failure> {
        let clocks = Clocks::now();
        let channels = (self.sockets.len() * self.plan.topics.len()) as u64;
        let server = &self.server;
        let hibernating = || {
            let shards = server.metrics().iter();
            shards.map(|shard| shard.channels_hibernating.value()).sum::<u64>()
        };
        wait(self.stop, WAIT_MAX, || hibernating() >= channels)?;
        wait(self.stop, TIDIED, || false)?;
        match hibernating() {
            0 => self.notes.push("no channel hibernates: hibernate_after is off, or long".into()),
            n if n < channels => {
                self.notes.push(format!("{} channels hibernate", grouped(n)));
            }
            _ => {}
        }
        self.row("after idling", Some(self.sockets.len()), Some(clocks.spent()));
        Ok(())
    }

    fn row(&mut self, what: &str, of: Option<usize>, spent: Option<Spent>) {
        self.rows.push(Row { what: what.to_owned(), of, spent, memory: resident_bytes() });
    }

    /// Waits until so much was heard.
    fn await_heard(&self, asked: u64, read: impl Fn(Counts) -> u64) -> Result<(), Failure> {
        wait(self.stop, WAIT_MAX, || read(self.driver.counts()) >= asked)?;
        match read(self.driver.counts()) {
            heard if heard >= asked => Ok(()),
            heard => Err(Failure::Because(format!(
                "only {} of {} answers came within {} s",
                grouped(heard),
                grouped(asked),
                WAIT_MAX.as_secs()
            ))),
        }
    }

    fn report(&self, before: u64) -> String {
        let Plan { topics, way, .. } = self.plan;
        let joined = match topics.as_slice() {
            [one] => one.clone(),
            all => format!("{} channels each, {}", all.len(), all.join(", ")),
        };
        let way = match way {
            Way::None => "values",
            Way::V1 => "serializer V1",
            Way::V2 => "serializer V2",
        };
        let (sockets, shards) = (grouped(self.sockets.len() as u64), self.server.metrics().len());
        let mut out = format!("{sockets} sockets on {shards} shards; {joined}; {way}\n\n");
        let head = ["", "time", "CPU time", "CPU each", "a second", "memory", "each"];
        line(&mut out, &head.map(str::to_owned));
        let started = megabytes(before as f64);
        line(&mut out, &["started", "", "", "", "", &started, ""].map(str::to_owned));
        for row in &self.rows {
            line(&mut out, &self.cells(row, before));
        }
        for note in &self.notes {
            let _ = writeln!(out, "\n{note}");
        }
        out
    }

    fn cells(&self, row: &Row, before: u64) -> [String; 7] {
        let count = row.of.unwrap_or(0).max(1) as f64;
        let is_idle = row.what == "after idling";
        let [time, cpu, each, rate] = match row.spent {
            Some(spent) if is_idle => {
                let cpu = millis(spent.cpu);
                [format!("{:.2} s", spent.wall.as_secs_f64()), cpu, String::new(), String::new()]
            }
            Some(Spent { wall, cpu }) => [
                millis(wall),
                millis(cpu),
                format!("{:.2} µs", cpu.as_secs_f64() * 1e6 / count),
                grouped((count / wall.as_secs_f64().max(1e-9)) as u64),
            ],
            None => [const { String::new() }; 4],
        };
        let (memory, per_socket) = match row.memory {
            Some(bytes) => {
                let each = bytes.saturating_sub(before) as f64 / self.sockets.len().max(1) as f64;
                (megabytes(bytes as f64), format!("{each:.0} B"))
            }
            None => (String::new(), String::new()),
        };
        [row.what.clone(), time, cpu, each, rate, memory, per_socket]
    }
}

fn line(out: &mut String, cells: &[String; 7]) {
    let [what, time, cpu, each, rate, memory, per_socket] = cells;
    let text =
        format!("{what:<34}{time:>11}{cpu:>12}{each:>11}{rate:>13}{memory:>11}{per_socket:>9}");
    let _ = writeln!(out, "{}", text.trim_end());
}

/// Drawn on a terminal only.
fn bar(all: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {human_pos} of {human_len} sockets");
    let bar = ProgressBar::new(all);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
