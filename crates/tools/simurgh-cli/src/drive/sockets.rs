//! The sockets of a prompt or a script, by number, and their received events.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::time::{Duration, Instant};

use serde_json::Value;
use simurgh::driver::{Counts, Driver, DriverError, Event, SocketId, What};
use simurgh::{Handle, Payload};
use simurgh_text::format::grouped;

use super::command::{ALL, Command, Ids, Usage};
use super::interrupt::{Failure, Interrupt};
use super::resources::{Clocks, megabytes, resident_bytes};

/// Sockets of one request, between two checks for Ctrl-C.
const AT_ONCE: usize = 20_000;
/// How long a command waits for answers; later ones are still counted.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// How long a request is repeated while the server is congested.
const CONGESTED_MAX: Duration = Duration::from_secs(60);
const SHOWN_MAX: usize = 50;
/// Unread events; more stay in the driver, within its own bound.
const UNREAD_MAX: usize = 1_000_000;

pub(super) struct Sockets {
    stop: Interrupt,
    driver: Driver,
    server: Handle,
    path: String,
    params: Value,
    /// By number, from 1; `None` is closed.
    sockets: Vec<Option<SocketId>>,
    numbers: HashMap<SocketId, u32>,
    unread: VecDeque<(u32, What)>,
    began: Clocks,
}

impl Sockets {
    pub(super) fn new(
        driver: Driver,
        server: Handle,
        path: String,
        params: Value,
        stop: Interrupt,
    ) -> Self {
        Self {
            stop,
            driver,
            server,
            path,
            params,
            sockets: Vec::new(),
            numbers: HashMap::new(),
            unread: VecDeque::new(),
            began: Clocks::now(),
        }
    }

    /// Returns a text to show; `None` to quit.
    pub(super) fn execute(&mut self, command: &Command) -> Result<Option<String>, Failure> {
        Ok(Some(match command {
            Command::Start { count, params } => self.start(*count, params.as_ref())?,
            Command::Join { ids, topic, payload } => self.join(ids, topic, payload)?,
            Command::Push { ids, topic, event, payload } => {
                self.push(ids, topic, event, payload)?
            }
            Command::Leave { ids, topic } => self.leave(ids, topic)?,
            Command::Close { ids } => self.close(ids)?,
            Command::Flush { ids } => self.flush(ids)?,
            Command::Broadcast { topic, event, payload } => {
                self.broadcast(topic, event, payload)?
            }
            Command::Wait(time) => {
                self.stop.wait(*time, || false)?;
                String::new()
            }
            Command::Stats => self.stats(),
            Command::Help(usage) => help(*usage),
            Command::Quit => return Ok(None),
        }))
    }

    fn start(&mut self, count: usize, params: Option<&Value>) -> Result<String, Failure> {
        let clocks = Clocks::now();
        let params = params.unwrap_or(&self.params).clone();
        let before = self.sockets.len();
        let mut refused = None;
        let mut left = count;
        while left > 0 && refused.is_none() {
            self.stop.check()?;
            let some = left.min(AT_ONCE);
            left -= some;
            let (driver, path) = (&mut self.driver, &self.path);
            let opened =
                retry_congested(&self.stop, || driver.connect_many(some, path, params.clone()))?;
            for socket in opened {
                match socket {
                    Ok(socket) => {
                        self.sockets.push(Some(socket));
                        self.numbers.insert(socket, self.sockets.len() as u32);
                    }
                    Err(error) => refused = Some(error),
                }
            }
        }
        let opened = self.sockets.len() - before;
        if let (Some(error), 0) = (&refused, opened) {
            return Err(Failure::Because(error.to_string()));
        }
        let mut text = format!("{} open", span_of(before + 1, self.sockets.len()));
        if let Some(error) = refused {
            let _ = write!(text, "; {} refused: {error}", grouped((count - opened) as u64));
        }
        Ok(format!("{text}, in {}", millis(clocks.spent().wall)))
    }

    fn join(&mut self, ids: &Ids, topic: &str, payload: &Value) -> Result<String, Failure> {
        let payload = Payload::from(payload.clone());
        let (sockets, before, clocks) = (self.named(ids)?, self.driver.counts(), Clocks::now());
        self.ask(&sockets, |driver, some| driver.join_many(some, topic, payload.clone()))?;
        let asked = sockets.len() as u64;
        self.await_counts(|now| now.ok + now.not_ok >= before.ok + before.not_ok + asked)?;
        let now = self.driver.counts();
        let (ok, not_ok) = (now.ok - before.ok, now.not_ok - before.not_ok);
        let mut text = format!("{} joined {topic}", grouped(ok.min(asked)));
        if not_ok > 0 {
            let _ = write!(text, ", {} refused", grouped(not_ok));
        }
        match asked.saturating_sub(ok + not_ok) {
            0 => {}
            silent => {
                let _ = write!(text, ", {} without an answer yet", grouped(silent));
            }
        }
        Ok(format!("{text}, in {}", millis(clocks.spent().wall)))
    }

    fn push(
        &mut self,
        ids: &Ids,
        topic: &str,
        event: &str,
        payload: &Value,
    ) -> Result<String, Failure> {
        let payload = Payload::from(payload.clone());
        let (sockets, before, clocks) = (self.named(ids)?, self.driver.counts(), Clocks::now());
        self.ask(&sockets, |driver, some| driver.push_many(some, topic, event, payload.clone()))?;
        let now = self.driver.counts();
        let received = [
            ("replies", now.ok - before.ok),
            ("error replies", now.not_ok - before.not_ok),
            ("messages", now.messages - before.messages),
            ("channels crashed", now.channels_crashed - before.channels_crashed),
        ];
        let received = received.into_iter().filter(|(_, n)| *n > 0);
        let received: Vec<_> = received.map(|(what, n)| format!("{} {what}", grouped(n))).collect();
        let received =
            if received.is_empty() { "no messages yet".to_owned() } else { received.join(", ") };
        let (pushed, time) = (grouped(sockets.len() as u64), millis(clocks.spent().wall));
        Ok(format!("{pushed} pushed {event}, in {time}; {received}"))
    }

    fn leave(&mut self, ids: &Ids, topic: &str) -> Result<String, Failure> {
        let (sockets, before) = (self.named(ids)?, self.driver.counts());
        self.ask(&sockets, |driver, some| driver.leave_many(some, topic))?;
        let left = self.driver.counts().channels_closed - before.channels_closed;
        Ok(format!("{} left {topic}", grouped(left)))
    }

    fn close(&mut self, ids: &Ids) -> Result<String, Failure> {
        let (sockets, before) = (self.named(ids)?, self.driver.counts());
        self.ask(&sockets, |driver, some| driver.close_many(some))?;
        let asked = sockets.len() as u64;
        self.await_counts(|now| now.closed >= before.closed + asked)?;
        for number in sockets.iter().filter_map(|socket| self.numbers.get(socket)) {
            if let Some(place) = self.sockets.get_mut(*number as usize - 1) {
                *place = None;
            }
        }
        Ok(format!("{} closed", grouped(self.driver.counts().closed - before.closed)))
    }

    fn broadcast(&mut self, topic: &str, event: &str, payload: &Value) -> Result<String, Failure> {
        let (before, clocks) = (self.driver.counts().messages, Clocks::now());
        let payload = Payload::from(payload.clone());
        retry_congested(&self.stop, || {
            let sent = self.server.pubsub().broadcast(topic, event, payload.clone());
            sent.map_err(|_| DriverError::Congested)
        })?;
        // Only the server knows the members of the topic, so this waits until no more messages
        // arrive.
        let (mut received, mut spent) = (0, clocks.spent());
        let until = Instant::now() + WAIT_MAX;
        let mut quiet = 0;
        while quiet < 20 && Instant::now() < until {
            self.stop.check()?;
            std::thread::sleep(Duration::from_millis(1));
            let now = self.driver.counts().messages - before;
            quiet = if now == received { quiet + 1 } else { 0 };
            if now != received {
                (received, spent) = (now, clocks.spent());
            }
        }
        Ok(format!("{} received {event}, in {}", grouped(received), millis(spent.wall)))
    }

    fn flush(&mut self, ids: &Ids) -> Result<String, Failure> {
        let is_meant = self.is_meant(ids)?;
        // Messages of others may still be in flight between shards.
        for _ in 0..2 {
            retry_congested(&self.stop, || self.driver.settle())?;
        }
        let until = Instant::now() + WAIT_MAX;
        while self.unread.len() < UNREAD_MAX && Instant::now() < until {
            let Some(event) = self.driver.recv_timeout(Duration::from_millis(5)) else { break };
            self.keep(event);
        }
        let (meant, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.unread).into_iter().partition(|(n, _)| is_meant(*n));
        self.unread = kept.into();
        let mut text = String::new();
        for (number, what) in meant.iter().take(SHOWN_MAX) {
            let _ = writeln!(text, "{number}: {}", shown(what));
        }
        match meant.len() {
            0 => text.push_str("nothing"),
            n if n > SHOWN_MAX => {
                let _ = write!(text, "… and {} more", grouped((n - SHOWN_MAX) as u64));
            }
            _ => {}
        }
        Ok(text.trim_end().to_owned())
    }

    fn keep(&mut self, event: Event) {
        let Event { socket, what } = event;
        let Some(number) = self.numbers.get(&socket).copied() else { return };
        if matches!(what, What::Closed { .. }) {
            self.numbers.remove(&socket);
            if let Some(place) = self.sockets.get_mut(number as usize - 1) {
                *place = None;
            }
        }
        self.unread.push_back((number, what));
    }

    fn stats(&self) -> String {
        let Counts {
            ok, not_ok, messages, channels_closed, channels_crashed, closed, lost, ..
        } = self.driver.counts();
        let metrics = self.server.metrics();
        let sum = |read: fn(&simurgh::metrics::ShardMetrics) -> u64| {
            grouped(metrics.iter().map(|shard| read(shard)).sum())
        };
        let spent = self.began.spent();
        let memory = resident_bytes().map_or("unknown".to_owned(), |bytes| megabytes(bytes as f64));
        let rows = [
            ("sockets", sum(|it| it.sockets.value())),
            ("channels", sum(|it| it.channels.value())),
            ("  hibernating", sum(|it| it.channels_hibernating.value())),
            ("topics, on all shards", sum(|it| it.topics.value())),
            ("replies ok", grouped(ok)),
            ("  other replies", grouped(not_ok)),
            ("  messages", grouped(messages)),
            ("  channels closed", grouped(channels_closed)),
            ("  channels crashed", grouped(channels_crashed)),
            ("  sockets closed", grouped(closed)),
            ("  of these lost", grouped(lost)),
            ("memory", memory),
            (
                "CPU time",
                format!("{:.2} s of {:.1} s", spent.cpu.as_secs_f64(), spent.wall.as_secs_f64()),
            ),
        ];
        let lines = rows.map(|(name, value)| format!("{name:<24}{value:>16}"));
        lines.join("\n")
    }

    fn named(&self, ids: &Ids) -> Result<Vec<SocketId>, Failure> {
        let is_meant = self.is_meant(ids)?;
        let numbered = (1..).zip(&self.sockets);
        let open = numbered.filter(|(n, _)| is_meant(*n)).filter_map(|(_, socket)| *socket);
        let open: Vec<SocketId> = open.collect();
        match (open.is_empty(), ids) {
            (true, Ids::All) => {
                Err(Failure::Because("no socket is open; run `start COUNT` first".to_owned()))
            }
            (true, Ids::Some(_)) => Err(Failure::Because("closed already".to_owned())),
            _ => Ok(open),
        }
    }

    /// A predicate for the named numbers; fails unless all of them exist.
    fn is_meant(&self, ids: &Ids) -> Result<impl Fn(u32) -> bool + use<>, Failure> {
        let ranges = match ids {
            Ids::All => None,
            Ids::Some(ranges) => Some(ranges.clone()),
        };
        let most = self.sockets.len() as u32;
        let beyond = ranges.iter().flatten().find(|range| *range.end() > most);
        if let Some(range) = beyond {
            let there_are = match most {
                0 => "none was started yet".to_owned(),
                most => format!("there are 1 to {most}"),
            };
            let why = format!("there is no socket {}; {there_are}", range.end());
            return Err(Failure::Because(why));
        }
        Ok(move |n| ranges.as_ref().is_none_or(|some| some.iter().any(|range| range.contains(&n))))
    }

    /// Sends requests of many sockets, and waits until the server has processed them.
    fn ask<R>(
        &mut self,
        sockets: &[SocketId],
        mut what: impl FnMut(&mut Driver, &[SocketId]) -> Result<R, DriverError>,
    ) -> Result<(), Failure> {
        for some in sockets.chunks(AT_ONCE) {
            retry_congested(&self.stop, || what(&mut self.driver, some))?;
        }
        retry_congested(&self.stop, || self.driver.settle())
    }

    /// Waits until a condition on the counts is met, or `WAIT_MAX` is over.
    fn await_counts(&self, are: impl Fn(Counts) -> bool) -> Result<(), Failure> {
        self.stop.wait(WAIT_MAX, || are(self.driver.counts()))
    }
}

pub(super) fn retry_congested<T>(
    stop: &Interrupt,
    mut ask: impl FnMut() -> Result<T, DriverError>,
) -> Result<T, Failure> {
    let until = Instant::now() + CONGESTED_MAX;
    loop {
        stop.check()?;
        match ask() {
            Err(DriverError::Congested) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return Ok(other?),
        }
    }
}

fn shown(what: &What) -> String {
    let text = |payload: &Payload<'_>| match payload {
        Payload::Json(text) => text.to_string(),
        payload => format!("{} bytes", payload.len()),
    };
    let line = match what {
        What::Reply(reply) => {
            format!("{} replied {} {}", reply.topic, reply.status, text(&reply.response))
        }
        What::Message(it) => format!("{} {} {}", it.topic(), it.event(), text(it.payload())),
        What::ChannelClosed { topic } => format!("{topic} is closed"),
        What::ChannelCrashed { topic } => format!("{topic} has crashed"),
        What::Closed { code: Some(code) } => format!("closed with {code}"),
        _ => "closed".to_owned(),
    };
    // A text of the application must not control the terminal.
    line.replace(|c: char| c.is_control(), " ")
}

fn span_of(first: usize, last: usize) -> String {
    match last.saturating_sub(first) {
        0 => format!("socket {last}"),
        _ => format!("sockets {first} to {last}"),
    }
}

pub(super) fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

const NOTES: &str =
    "IDS are 7, 1-1000, 1,5,9-12 or all; PARAMS and PAYLOAD are JSON, {} if left out.";

fn help(usage: Option<&'static Usage>) -> String {
    let line = |it: &Usage| {
        let written = format!("{} {}", it.name, it.takes);
        format!("{written:<34}{}", it.about)
    };
    match usage {
        Some(usage) => line(usage),
        None => {
            let lines: Vec<String> = ALL.iter().map(line).collect();
            format!("{}\n{NOTES}", lines.join("\n"))
        }
    }
}
