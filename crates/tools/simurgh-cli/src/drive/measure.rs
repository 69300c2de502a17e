//! Measures the costs of sockets and channels: creation, pushes, broadcasts, and after idling.

use std::fmt::Write;
use std::time::Duration;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use simurgh::driver::{Counts, Driver, Options, SocketId, What};
use simurgh::{Endpoint, Handle, Payload, Serializer};
use simurgh_text::format::{aligned, grouped};
use simurgh_text::output::print;
use simurgh_text::whole;

use crate::settings::values;

use super::interrupt::{Failure, Interrupt};
use super::resources::{Clocks, Spent, megabytes, resident_bytes};
use super::sockets::{millis, retry_congested};

/// Sockets created between two updates of the progress bar.
const AT_ONCE: usize = 10_000;
const WAIT_MAX: Duration = Duration::from_secs(60);
/// For the answer to the first socket's event.
const TRY_MAX: Duration = Duration::from_secs(1);
/// The allocator has returned its memory when the process has not shrunk for this time.
const RELEASE_PAUSE: Duration = Duration::from_secs(1);
/// The maximum number of pauses to wait for, if the process keeps shrinking.
const RELEASE_PAUSES: usize = 10;

/// Settings of a measurement. Path, params and serializer are for a prompt, too.
#[derive(Debug, clap::Args)]
pub(super) struct Plan {
    /// Channels that each socket joins
    #[arg(long, value_name = "N", default_value = "1", value_parser = whole::<u16>(1, 65_535))]
    channels: u16,
    #[arg(long, value_name = "TOPIC", default_value = "ping_topic", help = TOPIC_HELP,
          long_help = TOPIC_LONG_HELP)]
    topic: String,
    /// Path of the user socket
    #[arg(long, value_name = "PATH", default_value = "/socket")]
    pub(super) path: String,
    /// Connect params of each socket, a JSON object
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = values::json)]
    pub(super) params: Value,
    /// Payload of each join
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = values::json)]
    payload: Value,
    /// Event that each socket pushes once
    #[arg(long, value_name = "EVENT", default_value = "ping")]
    event: String,
    /// Number of broadcasts to measure
    #[arg(long, value_name = "N", default_value = "5", value_parser = values::count)]
    broadcasts: usize,
    /// Serializer and WebSocket frames that messages pass through
    #[arg(long, value_enum, default_value = "none")]
    serializer: Wire,
}

impl Plan {
    fn topics(&self) -> Vec<String> {
        let name = |n: u16| match self.topic.contains("{n}") {
            true => self.topic.replace("{n}", &n.to_string()),
            false if n == 1 => self.topic.clone(),
            false => format!("{}:{n}", self.topic),
        };
        (1..=self.channels).map(name).collect()
    }

    /// The driver's options for this path of messages.
    pub(super) fn options(&self) -> Options {
        let mut options = Options::default();
        options.serializer = match self.serializer {
            Wire::None => None,
            Wire::V1 => Some(Serializer::V1),
            Wire::V2 => Some(Serializer::V2),
        };
        options
    }
}

/// `{n}` in a help text. Clap would print a line break for it, so the letter is marked: bold on a
/// terminal, plain elsewhere.
macro_rules! number {
    () => {
        "`{\u{1b}[1mn\u{1b}[0m}`"
    };
}

const TOPIC_HELP: &str =
    concat!("Topic to join; ", number!(), " becomes the number of the channel, from 1");
const TOPIC_LONG_HELP: &str = concat!(
    "Topic to join; ",
    number!(),
    " becomes the number of the channel, from 1\n\nWithout ",
    number!(),
    ", all channels but the first get `:2`, `:3` and so on."
);

/// The path of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Wire {
    /// No serializer: values are passed directly
    None,
    /// Serializer V1
    V1,
    /// Serializer V2
    V2,
}

/// The row of the report that counts no messages.
const IDLE: &str = "after idling";

struct Row {
    what: String,
    /// How many.
    of: usize,
    spent: Spent,
    /// Resident bytes at its end.
    memory: Option<u64>,
}

struct Run<'p> {
    plan: &'p Plan,
    /// The topics of each socket.
    topics: Vec<String>,
    driver: Driver,
    server: Handle,
    stop: &'p Interrupt,
    sockets: Vec<SocketId>,
    rows: Vec<Row>,
    notes: Vec<String>,
}

pub(super) fn measure(
    endpoint: &Endpoint,
    plan: &Plan,
    count: usize,
    stop: &Interrupt,
) -> Result<(), Failure> {
    let topics = plan.topics();
    let mut notes = Vec::new();
    let is_answered = try_one(endpoint, plan, &topics, stop, &mut notes)?;
    let mut options = plan.options();
    options.counts_only = true;
    let driver = Driver::with(endpoint, options);
    let server = endpoint.handle();
    let (sockets, rows) = (Vec::with_capacity(count), Vec::new());
    let mut run = Run { plan, topics, driver, server, stop, sockets, rows, notes };
    let before = resident_bytes().unwrap_or(0);
    run.create(count)?;
    if is_answered {
        run.push()?;
    }
    run.broadcast()?;
    run.idle()?;
    print(&run.report(before));
    Ok(())
}

/// Tries each step with one socket first. Returns whether the event is answered.
fn try_one(
    endpoint: &Endpoint,
    plan: &Plan,
    topics: &[String],
    stop: &Interrupt,
    notes: &mut Vec<String>,
) -> Result<bool, Failure> {
    let mut driver = Driver::with(endpoint, plan.options());
    let socket = driver.connect(&plan.path, plan.params.clone())?;
    for topic in topics {
        let joined = driver.join(socket, topic, plan.payload.clone())?;
        let reply = driver.reply(joined)?;
        if &*reply.status != "ok" {
            let response = reply.response.json().unwrap_or("binary data");
            return Err(Failure::Because(format!("{topic} was not joined: {response}")));
        }
    }
    let Some(topic) = topics.first() else { return Ok(false) };
    let silent =
        format!("{:?} gets no answer on {topic}, so messages are not measured", plan.event);
    driver.settle()?;
    while driver.try_recv().is_some() {}
    driver.push(socket, topic, &plan.event, Payload::EMPTY_OBJECT)?;
    stop.wait(TRY_MAX, || answers(driver.counts()) > topics.len() as u64)?;
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

fn answers(counts: Counts) -> u64 {
    counts.ok + counts.not_ok + counts.messages + counts.channels_crashed
}

impl Run<'_> {
    fn create(&mut self, all: usize) -> Result<(), Failure> {
        let bar = bar(all as u64);
        let clocks = Clocks::now();
        while self.sockets.len() < all {
            let some = AT_ONCE.min(all - self.sockets.len());
            let (driver, plan) = (&mut self.driver, self.plan);
            let opened = retry_congested(self.stop, || {
                driver.connect_many(some, &plan.path, plan.params.clone())
            })?;
            let first = self.sockets.len();
            for socket in opened {
                self.sockets.push(socket?);
            }
            let new = self.sockets.get(first..).unwrap_or_default();
            for topic in &self.topics {
                retry_congested(self.stop, || driver.join_many(new, topic, plan.payload.clone()))?;
            }
            bar.set_position(self.sockets.len() as u64);
        }
        let asked = (all * self.topics.len()) as u64;
        self.await_answers(asked, |counts| counts.ok + counts.not_ok)?;
        let spent = clocks.spent();
        bar.finish_and_clear();
        let refused = self.driver.counts().not_ok;
        if refused > 0 {
            self.notes.push(format!("{} joins were refused", grouped(refused)));
        }
        self.row("created and joined", all, spent);
        Ok(())
    }

    /// Each socket pushes once.
    fn push(&mut self) -> Result<(), Failure> {
        let Some(topic) = self.topics.first() else { return Ok(()) };
        let before = answers(self.driver.counts());
        let clocks = Clocks::now();
        for some in self.sockets.chunks(AT_ONCE) {
            let (driver, event) = (&mut self.driver, &self.plan.event);
            retry_congested(self.stop, || {
                driver.push_many(some, topic, event, Payload::EMPTY_OBJECT)
            })?;
        }
        let asked = before + self.sockets.len() as u64;
        self.await_answers(asked, answers)?;
        let what = format!("pushed {:?} and answered", self.plan.event);
        self.row(&what, self.sockets.len(), clocks.spent());
        Ok(())
    }

    fn broadcast(&mut self) -> Result<(), Failure> {
        let Some(topic) = self.topics.first() else { return Ok(()) };
        let mut times = Vec::new();
        for _ in 0..self.plan.broadcasts {
            let asked = self.driver.counts().messages + self.sockets.len() as u64;
            let clocks = Clocks::now();
            let payload = Payload::from_json(r#"{"n":1}"#);
            let sent = self.server.pubsub().broadcast(topic, "news", payload);
            sent.map_err(|error| Failure::Because(error.to_string()))?;
            self.await_answers(asked, |counts| counts.messages)?;
            times.push(clocks.spent());
        }
        times.sort();
        let median = times.get(times.len() / 2).copied().unwrap_or_default();
        let what = format!("a broadcast to all, median of {}", self.plan.broadcasts);
        self.row(&what, self.sockets.len(), median);
        Ok(())
    }

    fn idle(&mut self) -> Result<(), Failure> {
        let clocks = Clocks::now();
        let channels = (self.sockets.len() * self.topics.len()) as u64;
        let server = &self.server;
        let hibernating = || {
            let shards = server.metrics().iter();
            shards.map(|shard| shard.channels_hibernating.value()).sum::<u64>()
        };
        self.stop.wait(WAIT_MAX, || hibernating() >= channels)?;
        self.await_release()?;
        match hibernating() {
            0 => {
                self.notes.push("no channel hibernates: hibernate_after is off or too long".into())
            }
            n if n < channels => {
                self.notes.push(format!("{} channels hibernate", grouped(n)));
            }
            _ => {}
        }
        self.row(IDLE, self.sockets.len(), clocks.spent());
        Ok(())
    }

    /// Returns free memory to the system as a thread of a server with HTTP does.
    fn await_release(&self) -> Result<(), Failure> {
        let mut last = u64::MAX;
        for _ in 0..RELEASE_PAUSES {
            self.stop.wait(RELEASE_PAUSE, || false)?;
            simurgh_reactor::purge_memory();
            match resident_bytes() {
                Some(now) if now < last => last = now,
                _ => break,
            }
        }
        Ok(())
    }

    fn row(&mut self, what: &str, of: usize, spent: Spent) {
        self.rows.push(Row { what: what.to_owned(), of, spent, memory: resident_bytes() });
    }

    fn await_answers(&self, asked: u64, read: impl Fn(Counts) -> u64) -> Result<(), Failure> {
        self.stop.wait(WAIT_MAX, || read(self.driver.counts()) >= asked)?;
        match read(self.driver.counts()) {
            answered if answered >= asked => Ok(()),
            answered => Err(Failure::Because(format!(
                "only {} of {} answers came within {} s",
                grouped(answered),
                grouped(asked),
                WAIT_MAX.as_secs()
            ))),
        }
    }

    fn report(&self, before: u64) -> String {
        let joined = match self.topics.as_slice() {
            [one] => one.clone(),
            all => format!("{} channels each, {}", all.len(), all.join(", ")),
        };
        let wire = match self.plan.serializer {
            Wire::None => "values",
            Wire::V1 => "serializer V1",
            Wire::V2 => "serializer V2",
        };
        let (sockets, shards) = (grouped(self.sockets.len() as u64), self.server.metrics().len());
        let mut out = format!("{sockets} sockets on {shards} shards; {joined}; {wire}\n\n");
        let head = ["", "time", "CPU time", "CPU each", "a second", "memory", "each"];
        let started = ["started", "", "", "", "", &megabytes(before as f64), ""];
        let mut lines: Vec<_> = [head, started].map(|it| it.map(str::to_owned).to_vec()).into();
        lines.extend(self.rows.iter().map(|row| self.cells(row, before).to_vec()));
        out += &aligned(&lines, |column| column == 0);
        for note in &self.notes {
            let _ = writeln!(out, "\n{note}");
        }
        out
    }

    fn cells(&self, row: &Row, before: u64) -> [String; 7] {
        let (count, Spent { wall, cpu }) = (row.of.max(1) as f64, row.spent);
        let (time, each, rate) = match row.what == IDLE {
            true => (format!("{:.2} s", wall.as_secs_f64()), String::new(), String::new()),
            false => (
                millis(wall),
                format!("{:.2} µs", cpu.as_secs_f64() * 1e6 / count),
                grouped((count / wall.as_secs_f64().max(1e-9)) as u64),
            ),
        };
        let (memory, per_socket) = match row.memory {
            Some(bytes) => {
                let each = bytes.saturating_sub(before) as f64 / self.sockets.len().max(1) as f64;
                (megabytes(bytes as f64), format!("{each:.0} B"))
            }
            None => (String::new(), String::new()),
        };
        [row.what.clone(), time, millis(cpu), each, rate, memory, per_socket]
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn topics(topic: &str, channels: u16) -> Vec<String> {
        let plan = Plan {
            channels,
            topic: topic.to_owned(),
            path: String::new(),
            params: Value::Null,
            payload: Value::Null,
            event: String::new(),
            broadcasts: 1,
            serializer: Wire::None,
        };
        plan.topics()
    }

    #[test]
    fn each_channel_of_a_socket_has_its_own_topic() {
        assert_eq!(topics("ping_topic", 1), ["ping_topic"]);
        assert_eq!(topics("ping_topic", 3), ["ping_topic", "ping_topic:2", "ping_topic:3"]);
        assert_eq!(topics("rooms:{n}", 2), ["rooms:1", "rooms:2"]);
    }
}
