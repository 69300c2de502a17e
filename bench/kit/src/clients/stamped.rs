//! Clients that publish at random times, whatever the server does, and measure how much later than
//! it was due each message reaches each member of its topic.

use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use memchr::memmem::Finder;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use super::{Connections, IN_FLIGHT, Receiver};
use crate::stats::{self, Histogram};
use crate::{frames, net};

/// Stands before the number of a message.
const MARK: &str = "@at";
const DIGITS: usize = 8;
/// Events taken at once: a publish that is due waits for no more than these.
const EVENTS: usize = 32;
/// Less time than it takes to sleep and wake.
const SPIN: Duration = Duration::from_micros(50);
const JOIN_MAX: Duration = Duration::from_secs(90);
/// How long deliveries may take after the last publish.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// The messages of a kind of server's clients. Topics are numbers.
#[derive(Clone, Copy)]
pub struct Language {
    /// Path and query of the upgrade.
    pub path: &'static str,
    /// Further header lines of it, each with CRLF.
    pub header: &'static str,
    /// The text of the first message; a join may follow in the same one.
    pub connect: &'static str,
    /// A join.
    pub join: fn(usize) -> String,
    /// In each answer to a join that is accepted, once.
    pub joined: &'static str,
    /// A publish with this body.
    pub publish: fn(usize, &str) -> String,
    /// Whether the publisher receives its own message.
    pub is_echoed: bool,
}

/// The members of topics: there are one or two sets of topics of equal size, and each client is in
/// one topic of each set.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Clients in all.
    pub clients: usize,
    /// Members of a topic.
    pub members: usize,
    /// Topics of a client.
    pub topics_each: usize,
}

impl Layout {
    fn topics_of_set(self) -> usize {
        self.clients / self.members
    }

    /// The topic of a client in a set. The second set has other neighbours than the first.
    fn topic(self, client: usize, set: usize) -> usize {
        let topics = self.topics_of_set();
        set * topics + if set == 0 { client / self.members } else { client % topics }
    }

    fn member(self, topic: usize, nth: usize) -> usize {
        let topics = self.topics_of_set();
        if topic < topics { topic * self.members + nth } else { topic % topics + nth * topics }
    }
}

/// A rate, and how long it lasts.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    /// Deliveries per second of all clients together.
    pub rate: f64,
    /// Time in which messages are due.
    pub time: Duration,
    /// It ends early if the deliveries of so much time are outstanding.
    pub backlog_max: Duration,
}

/// The results of a level.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Deliveries, µs after their message was due.
    latencies_us: Histogram,
    /// Publishes, µs after they were due: the clients' own lateness.
    lags_us: Histogram,
    /// Deliveries that did not come in time.
    pub missing: u64,
    /// Whether the backlog ended it.
    pub is_overrun: bool,
    /// The share of the time in which the clients' thread ran.
    pub busy: f64,
}

impl Outcome {
    /// A quantile of the latencies, milliseconds.
    pub fn latency_ms(&self, share: f64) -> f64 {
        self.latencies_us.quantile(share) / 1e3
    }

    /// A quantile of the clients' own lateness, milliseconds.
    pub fn lag_ms(&self, share: f64) -> f64 {
        self.lags_us.quantile(share) / 1e3
    }

    /// Deliveries that came.
    pub fn deliveries(&self) -> u64 {
        self.latencies_us.total()
    }
}

struct Published {
    due: Instant,
    missing: u32,
}

struct Stamps {
    language: Language,
    layout: Layout,
    finder: Finder<'static>,
    hello: Vec<u8>,
    joined: usize,
    published: Vec<Published>,
    /// The first message of the current level.
    first: usize,
    latencies_us: Histogram,
    outstanding: u64,
}

/// All clients of a server.
pub struct StampedClients {
    connections: Connections<Stamps>,
    /// Ends the wait for events when a message is due: the wait's own limit has milliseconds.
    timer: OwnedFd,
    random: fastrand::Rng,
}

impl StampedClients {
    /// Connects all clients, and has them join.
    pub fn join(server: SocketAddrV4, language: Language, layout: Layout) -> Result<Self> {
        let host = server.to_string();
        let stamps = Stamps::new(language, layout);
        let request = move |_| frames::upgrade_request(language.path, &host, language.header);
        let mut connections = Connections::new(server, Box::new(request), stamps)?;
        connections.events = Vec::with_capacity(EVENTS);
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        net::add(&connections.epoll, &timer, usize::MAX, EventFlags::IN | EventFlags::ET)?;
        let mut clients = Self { connections, timer, random: fastrand::Rng::with_seed(0) };
        clients.join_all()?;
        Ok(clients)
    }

    fn join_all(&mut self) -> Result<()> {
        let Layout { clients, topics_each, .. } = self.stamps().layout;
        let deadline = Instant::now() + JOIN_MAX;
        while self.stamps().joined < clients * topics_each {
            let joined = self.stamps().joined;
            let open = self.connections.len();
            if open < clients && open.saturating_sub(joined / topics_each) < IN_FLIGHT {
                self.connections.open()?;
                continue;
            }
            ensure!(Instant::now() < deadline, "{joined} joins of {clients} × {topics_each}");
            self.connections.pump(Duration::from_millis(100))?;
        }
        Ok(())
    }

    fn stamps(&self) -> &Stamps {
        &self.connections.receiver
    }

    /// Publishes at the level's rate, each message by a random member of a random topic. A seed
    /// stands for the same times, topics and publishers each time.
    pub fn run(&mut self, level: Level, seed: u64) -> Result<Outcome> {
        let Layout { members, .. } = self.stamps().layout;
        let receivers = members - usize::from(!self.stamps().language.is_echoed);
        ensure!(receivers > 0, "nobody receives these messages");
        let mean_s = stats::per(receivers, 1) / level.rate;
        let backlog_max = level.rate * level.backlog_max.as_secs_f64() + stats::per(members, 1);
        self.random.seed(seed);
        let stamps = &mut self.connections.receiver;
        (stamps.first, stamps.outstanding) = (stamps.published.len(), 0);
        let mut outcome = Outcome::default();
        let (begun, cpu) = (Instant::now(), thread_time());
        let end = begun + level.time;
        let mut due = begun + self.interval(mean_s);
        loop {
            let now = Instant::now();
            if now >= end {
                break;
            }
            while due <= now.min(end) {
                self.publish(due, receivers)?;
                outcome.lags_us.add(micros(due, Instant::now()));
                due += self.interval(mean_s);
            }
            if stats::per(self.stamps().outstanding, 1) > backlog_max {
                outcome.is_overrun = true;
                break;
            }
            self.wait(due.min(end).saturating_duration_since(Instant::now()))?;
        }
        let ran = thread_time().saturating_sub(cpu);
        outcome.busy = ran.as_secs_f64() / begun.elapsed().as_secs_f64();
        self.drain()?;
        outcome.missing = self.stamps().outstanding;
        outcome.latencies_us = std::mem::take(&mut self.connections.receiver.latencies_us);
        Ok(outcome)
    }

    /// Handles events, waiting at most for `time`.
    fn wait(&mut self, time: Duration) -> Result<()> {
        if time < SPIN {
            return self.connections.pump(Duration::ZERO);
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let once = Itimerspec { it_interval: zero, it_value: time.try_into()? };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        self.connections.pump(time + Duration::from_millis(10))
    }

    /// Reads until all deliveries of the level have come, or have had time to.
    fn drain(&mut self) -> Result<()> {
        let deadline = Instant::now() + DRAIN_MAX;
        while self.stamps().outstanding > 0 && Instant::now() < deadline {
            self.connections.pump(Duration::from_millis(10))?;
        }
        Ok(())
    }

    fn publish(&mut self, due: Instant, receivers: usize) -> Result<()> {
        let Stamps { layout, language, published, .. } = self.stamps();
        let (layout, language, number) = (*layout, *language, published.len());
        let topic = self.random.usize(..layout.topics_of_set() * layout.topics_each);
        let client = layout.member(topic, self.random.usize(..layout.members));
        let body = format!("{MARK}{number:0DIGITS$}");
        let frame = frames::text((language.publish)(topic, &body).as_bytes());
        self.connections.send(client, &frame)?;
        let stamps = &mut self.connections.receiver;
        stamps.published.push(Published { due, missing: u32::try_from(receivers)? });
        stamps.outstanding += u64::try_from(receivers)?;
        Ok(())
    }

    /// Time until the next arrival of a Poisson process.
    fn interval(&mut self, mean_s: f64) -> Duration {
        Duration::from_secs_f64(-(1.0 - self.random.f64()).ln() * mean_s)
    }
}

fn micros(since: Instant, now: Instant) -> u32 {
    u32::try_from(now.saturating_duration_since(since).as_micros()).unwrap_or(u32::MAX)
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

impl Receiver for Stamps {
    fn opened(&mut self) {}

    fn upgraded(&mut self, index: usize) -> &[u8] {
        let Self { language, layout, hello, .. } = self;
        let joins = (0..layout.topics_each).map(|set| (language.join)(layout.topic(index, set)));
        hello.clear();
        for text in [language.connect.to_owned()].into_iter().chain(joins) {
            if !text.is_empty() {
                frames::masked(frames::TEXT, text.as_bytes(), hello);
            }
        }
        hello
    }

    fn received(&mut self, index: usize, input: &[u8]) -> Result<usize> {
        let (now, mut used) = (Instant::now(), 0);
        while let Some(frame) = frames::frame(input.get(used..).unwrap_or_default()) {
            used += frame.len;
            match frame.opcode {
                frames::TEXT => self.message(frame.payload, now)?,
                frames::CLOSE => bail!("client {index} was closed: {}", frame.close_code()),
                opcode => bail!("client {index} got a frame with opcode {opcode}"),
            }
        }
        Ok(used)
    }

    fn ended(&mut self, index: usize, error: Option<Errno>) -> Result<()> {
        bail!("the server closed client {index}: {error:?}")
    }
}

impl Stamps {
    fn new(language: Language, layout: Layout) -> Self {
        Self {
            language,
            layout,
            finder: Finder::new(MARK),
            hello: Vec::new(),
            joined: 0,
            published: Vec::new(),
            first: 0,
            latencies_us: Histogram::default(),
            outstanding: 0,
        }
    }

    fn message(&mut self, payload: &[u8], now: Instant) -> Result<()> {
        let Self { finder, published, first, latencies_us, outstanding, .. } = self;
        let mut is_stamped = false;
        for at in finder.find_iter(payload) {
            is_stamped = true;
            let digits = payload.get(at + MARK.len()..at + MARK.len() + DIGITS);
            let number = digits.and_then(frames::numeral).context("a stamp without a number")?;
            let number = usize::try_from(number)?;
            let message = published.get_mut(number).context("a message that nobody sent")?;
            message.missing = message.missing.checked_sub(1).context("a message came twice")?;
            if number >= *first {
                latencies_us.add(micros(message.due, now));
                *outstanding = outstanding.saturating_sub(1);
            }
        }
        if !is_stamped && published.is_empty() {
            let text = String::from_utf8_lossy(payload);
            self.joined += text.matches(self.language.joined).count();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANGUAGE: Language = Language {
        path: "/",
        header: "",
        connect: "hello",
        join: |topic| format!("join {topic}"),
        joined: "joined",
        publish: |topic, body| format!("{topic} {body}"),
        is_echoed: true,
    };

    fn clients(layout: Layout) -> StampedClients {
        let stamps = Stamps::new(LANGUAGE, layout);
        let server = "127.0.0.1:1".parse().unwrap();
        let connections = Connections::new(server, Box::new(|_| Vec::new()), stamps).unwrap();
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::empty()).unwrap();
        StampedClients { connections, timer, random: fastrand::Rng::with_seed(7) }
    }

    #[test]
    fn each_topic_has_its_members_and_each_client_its_topics() {
        let layout = Layout { clients: 40, members: 8, topics_each: 2 };
        for topic in 0..10 {
            for nth in 0..8 {
                let client = layout.member(topic, nth);
                let topics = [layout.topic(client, 0), layout.topic(client, 1)];
                assert!(client < 40 && topics.contains(&topic), "{topic} {nth}");
            }
        }
    }

    #[test]
    fn arrivals_are_a_poisson_process_of_the_rate() {
        let mut clients = clients(Layout { clients: 1, members: 1, topics_each: 1 });
        let times: Vec<f64> = (0..100_000).map(|_| clients.interval(0.01).as_secs_f64()).collect();
        let mean = times.iter().sum::<f64>() / 1e5;
        let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / 1e5;
        assert!((mean - 0.01).abs() < 2e-4, "{mean}");
        // The standard deviation of an exponential distribution is its mean.
        assert!((variance.sqrt() - 0.01).abs() < 3e-4, "{variance}");
    }

    #[test]
    fn deliveries_are_timed_from_when_the_message_was_due() {
        let mut clients = clients(Layout { clients: 2, members: 2, topics_each: 1 });
        let stamps = &mut clients.connections.receiver;
        let now = Instant::now();
        let due = now.checked_sub(Duration::from_millis(30)).unwrap();
        stamps.message(b"{\"joined\"}\n{\"joined\"}", now).unwrap();
        assert_eq!(stamps.joined, 2);
        stamps.published.push(Published { due, missing: 2 });
        stamps.outstanding = 2;
        stamps.message(b"{\"@at00000000\"}\n{\"@at00000000\"}", now).unwrap();
        let median = stamps.latencies_us.quantile(0.5);
        assert!((29_000.0..=30_000.0).contains(&median), "{median}");
        assert_eq!((stamps.latencies_us.total(), stamps.outstanding), (2, 0));
        assert!(stamps.message(b"@at00000000", now).is_err(), "it came a third time");
        assert!(stamps.message(b"@at00000001", now).is_err(), "nobody sent it");
    }
}
