//! Members of many topics in the server's own process, on sockets without a network: what each
//! costs, and how soon the rest of its topic learns that one has left while others join and leave.
//!
//! ```text
//! simurgh-bench-driven MEMBERS SECONDS on|off [INTERVAL_MS]    prints one JSON object
//! ```
//!
//! Every topic has a hundred members. One of them is a watcher, whose events are kept and show when
//! its topic learns of a leave. The others are only counted.
//!
//! ```text
//! churn: 1,000 times a second   leave of one ──► its shard ──► home ──► diff ──► watcher: time
//!                               a member that left a second ago joins again
//! ```

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use simurgh::driver::{Driver, Error, Options, SocketId, What};
use simurgh::{Channel, Context, Endpoint, Join, Outcome, Payload, UserSocket};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TOPIC_MEMBERS: usize = 100;
/// Members that leave in a second; as many come back.
const LEAVES_PER_SECOND: u32 = 1_000;
/// How long a member that has left stays away, and then stays before it may leave again.
const AWAY: Duration = Duration::from_secs(1);
/// How many members are tried until one is found that may leave.
const TRIES: usize = 100;
const WAIT_MAX: Duration = Duration::from_secs(120);
/// Time for an allocator to give back unused memory.
const CALM: Duration = Duration::from_secs(4);
/// Time for a server to free a crowd's memory: 4 s after the last leave, and some for the work.
const GONE: Duration = Duration::from_secs(10);
const META: &str = r#"{"online_at":"1764000000"}"#;

/// Tracks itself under its own key; the keys of one run are equally long.
struct Room(Option<usize>);

impl Channel for Room {
    fn after_join(&mut self, ctx: &mut Context<'_>) {
        let Some(n) = self.0 else { return };
        // A refused track is counted, and the member is missing at the end.
        let _ = ctx.presence().track(&format!("user-{n:09}"), Payload::from_json(META));
        ctx.presence().push_state();
    }

    fn handle_in(&mut self, _: &mut Context<'_>, _: &str, _: Payload<'_>) -> Outcome {
        Outcome::NoReply
    }
}

#[derive(Debug, PartialEq)]
struct Plan {
    members: usize,
    churn: Duration,
    presence: bool,
    interval: Duration,
}

fn plan(words: &[String]) -> Result<Plan> {
    let [members, seconds, presence, interval @ ..] = words else {
        bail!("usage: simurgh-bench-driven MEMBERS SECONDS on|off [INTERVAL_MS]");
    };
    let members = members.parse().context("MEMBERS")?;
    ensure!(members >= 2 * TOPIC_MEMBERS, "at least two topics of {TOPIC_MEMBERS}");
    let interval = match interval {
        [] => 50,
        [interval] => interval.parse().context("INTERVAL_MS")?,
        _ => bail!("too many arguments"),
    };
    let presence = match presence.as_str() {
        "on" => true,
        "off" => false,
        other => bail!("{other}: on or off"),
    };
    let churn = Duration::from_secs(seconds.parse().context("SECONDS")?);
    Ok(Plan { members, churn, presence, interval: Duration::from_millis(interval) })
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    println!("{}", run(&plan(&words)?)?);
    Ok(())
}

struct Crowd {
    endpoint: Endpoint,
    driver: Driver,
    sockets: Vec<SocketId>,
    watching: Driver,
    watchers: Vec<SocketId>,
}

fn run(plan: &Plan) -> Result<Value> {
    let mut crowd = Crowd::open(plan)?;
    // Opening a crowd leaves memory behind that is used again and given back when one leaves, so
    // what follows is measured from there.
    crowd.join_all()?;
    crowd.leave_all()?;
    thread::sleep(GONE);
    let connected = resident()?;
    crowd.join_all()?;
    let present = crowd.count() as usize;
    let missing = if plan.presence { crowd.members() - present } else { present };
    thread::sleep(CALM);
    let joined = resident()?;
    let each = (joined.saturating_sub(connected)) as f64 / crowd.members() as f64;
    let mut said = json!({
        "member_bytes": each,
        "meta_bytes": META.len(),
        "presences_missing": missing,
        "connected_mb": connected as f64 / 1e6,
        "joined_mb": joined as f64 / 1e6,
    });
    let fields = said.as_object_mut().context("an object")?;
    if plan.presence && !plan.churn.is_zero() {
        let churned = crowd.churn(plan.churn)?;
        fields.extend(churned.as_object().cloned().unwrap_or_default());
    }
    crowd.leave_all()?;
    thread::sleep(GONE);
    let left = resident()?;
    fields.insert("left_mb".into(), json!(left as f64 / 1e6));
    let left = left.saturating_sub(connected) as f64;
    let rise = joined.saturating_sub(connected).max(1) as f64;
    fields.insert("left_percent".into(), json!(left / rise * 100.0));
    fields.insert("presences_left".into(), json!(crowd.count()));
    Ok(said)
}

impl Crowd {
    fn open(plan: &Plan) -> Result<Self> {
        let (next, presence) = (AtomicUsize::new(0), plan.presence);
        let user_socket = UserSocket::new("/socket").channel("room:*", move |_, _| {
            Join::ok(Room(presence.then(|| next.fetch_add(1, Relaxed))))
        });
        let endpoint = Endpoint::builder()
            .socket(user_socket)
            .configure(|config| {
                config.presence.interval = plan.interval;
                config.max_connections = Some(plan.members.saturating_add(1_000));
            })
            .start_local()?;
        let mut driver = Driver::with(&endpoint, {
            let mut options = Options::default();
            options.counts_only = true;
            options
        });
        let mut watching = Driver::start(&endpoint);
        let topics = plan.members / TOPIC_MEMBERS;
        let open = |driver: &mut Driver, count| -> Result<Vec<SocketId>> {
            let opened = driver.connect_many(count, "/socket", json!({}))?;
            Ok(opened.into_iter().collect::<Result<_, _>>()?)
        };
        let sockets = open(&mut driver, topics * (TOPIC_MEMBERS - 1))?;
        let watchers = open(&mut watching, topics)?;
        Ok(Self { endpoint, driver, sockets, watching, watchers })
    }

    fn members(&self) -> usize {
        self.sockets.len() + self.watchers.len()
    }

    fn count(&self) -> u64 {
        self.endpoint.handle().metrics().iter().map(|shard| shard.presences.value()).sum()
    }

    /// The members of a topic join together, one topic after the other.
    fn join_all(&mut self) -> Result<()> {
        for (topic, sockets) in self.sockets.chunks(TOPIC_MEMBERS - 1).enumerate() {
            let name = name(topic);
            patiently(|| self.driver.join_many(sockets, &name, json!({})))?;
            let watcher = *self.watchers.get(topic).context("a topic without a watcher")?;
            patiently(|| self.watching.join(watcher, &name, json!({})))?;
            while self.watching.try_recv().is_some() {}
        }
        self.settle()
    }

    fn leave_all(&mut self) -> Result<()> {
        for (topic, sockets) in self.sockets.chunks(TOPIC_MEMBERS - 1).enumerate() {
            let name = name(topic);
            patiently(|| self.driver.leave_many(sockets, &name))?;
            let watcher = *self.watchers.get(topic).context("a topic without a watcher")?;
            patiently(|| self.watching.leave(watcher, &name))?;
            while self.watching.try_recv().is_some() {}
        }
        self.settle()
    }

    /// Waits until no more events arrive, and takes those that have.
    fn settle(&mut self) -> Result<()> {
        patiently(|| self.driver.settle())?;
        let quiet = Duration::from_millis(500);
        let since = Instant::now();
        while self.watching.recv_timeout(quiet).is_some() {
            ensure!(since.elapsed() < WAIT_MAX, "something is said all the time");
        }
        patiently(|| self.driver.settle())
    }

    /// Members leave and come back; measures how long their topics took to learn of each leave.
    fn churn(&mut self, time: Duration) -> Result<Value> {
        let mut churn = Churn::of(self);
        let (began, mut leaves) = (Instant::now(), 0_u32);
        let pause = Duration::from_secs(1) / LEAVES_PER_SECOND;
        while began.elapsed() < time {
            if began.elapsed() >= pause * leaves {
                churn.one_leaves(self)?;
                leaves += 1;
            }
            churn.come_back(self)?;
            churn.listen(self, pause.saturating_sub(Duration::from_micros(500)));
        }
        let took = began.elapsed();
        let waited = Instant::now();
        while churn.pending > 0 && waited.elapsed() < Duration::from_secs(2) {
            churn.listen(self, Duration::from_millis(10));
        }
        let Churn { pending, mut latencies, .. } = churn;
        ensure!(pending == 0, "{pending} leaves were never told");
        latencies.sort_unstable();
        let at = |share: f64| -> Result<f64> {
            let place = (latencies.len() as f64 * share) as usize;
            let found = latencies.get(place.min(latencies.len().saturating_sub(1)));
            Ok(found.context("nobody has left")?.as_secs_f64() * 1e3)
        };
        Ok(json!({
            "leaves": latencies.len(),
            "rate": latencies.len() as f64 / took.as_secs_f64(),
            "leave_p50_ms": at(0.5)?,
            "leave_p99_ms": at(0.99)?,
            "leave_max_ms": at(1.0)?,
        }))
    }
}

/// Members that have left, and the leaves that watchers still have to see.
struct Churn {
    /// By topic: when the member left whose leave its watcher has not seen yet.
    left: Vec<Option<Instant>>,
    pending: usize,
    /// Members that are away, their topics, and since when, in that order.
    away: VecDeque<(usize, usize, Instant)>,
    /// Members that came back, and when: a leave is not reported before the return is.
    back: VecDeque<(usize, Instant)>,
    /// The members that are in one of these queues.
    rests: Vec<bool>,
    topics: std::collections::HashMap<SocketId, usize>,
    latencies: Vec<Duration>,
    rng: fastrand::Rng,
}

impl Churn {
    fn of(crowd: &Crowd) -> Self {
        let topics = crowd.watchers.iter().enumerate().map(|(topic, it)| (*it, topic)).collect();
        Self {
            left: vec![None; crowd.watchers.len()],
            pending: 0,
            away: VecDeque::new(),
            back: VecDeque::new(),
            rests: vec![false; crowd.sockets.len()],
            topics,
            latencies: Vec::new(),
            rng: fastrand::Rng::with_seed(1),
        }
    }

    /// A member leaves a topic that has learnt of all earlier leaves; none, if none is found soon.
    fn one_leaves(&mut self, crowd: &mut Crowd) -> Result<()> {
        let found = (0..TRIES).find_map(|_| {
            let index = self.rng.usize(..crowd.sockets.len());
            let topic = index / (TOPIC_MEMBERS - 1);
            let is_told = self.left.get(topic).is_some_and(Option::is_none);
            (is_told && self.rests.get(index) == Some(&false)).then_some((index, topic))
        });
        let Some((index, topic)) = found else { return Ok(()) };
        let now = Instant::now();
        let socket = *crowd.sockets.get(index).context("no such member")?;
        crowd.driver.leave(socket, &name(topic))?;
        if let (Some(left), Some(rests)) = (self.left.get_mut(topic), self.rests.get_mut(index)) {
            (*left, *rests) = (Some(now), true);
        }
        self.pending += 1;
        self.away.push_back((index, topic, now));
        Ok(())
    }

    fn come_back(&mut self, crowd: &mut Crowd) -> Result<()> {
        while let Some(&(index, topic, since)) = self.away.front()
            && since.elapsed() >= AWAY
        {
            self.away.pop_front();
            let socket = *crowd.sockets.get(index).context("no such member")?;
            crowd.driver.join(socket, &name(topic), json!({}))?;
            self.back.push_back((index, Instant::now()));
        }
        while let Some(&(index, since)) = self.back.front()
            && since.elapsed() >= AWAY
        {
            self.back.pop_front();
            if let Some(rests) = self.rests.get_mut(index) {
                *rests = false;
            }
        }
        Ok(())
    }

    /// Takes the watchers' events for this long.
    fn listen(&mut self, crowd: &mut Crowd, time: Duration) {
        let until = Instant::now() + time;
        while let Some(event) =
            crowd.watching.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            let now = Instant::now();
            let What::Message(message) = event.what else { continue };
            if message.event() != "presence_diff" || !has_leaves(message.payload()) {
                continue;
            }
            let topic = self.topics.get(&event.socket).and_then(|it| self.left.get_mut(*it));
            if let Some(since) = topic.and_then(Option::take) {
                self.latencies.push(now - since);
                self.pending -= 1;
            }
        }
    }
}

fn has_leaves(payload: &Payload<'_>) -> bool {
    payload.json().is_some_and(|text| !text.ends_with("\"leaves\":{}}"))
}

fn name(topic: usize) -> String {
    format!("room:{topic:06}")
}

/// Asks again while the server has too much in progress.
fn patiently<T>(mut ask: impl FnMut() -> Result<T, Error>) -> Result<T> {
    let since = Instant::now();
    loop {
        match ask() {
            Err(Error::Congested) if since.elapsed() < WAIT_MAX => {
                thread::sleep(Duration::from_millis(1));
            }
            done => return Ok(done?),
        }
    }
}

fn resident() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").context("smaps_rollup")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).context("no Rss")?;
    let kilobytes: u64 = line.split_whitespace().next().context("no number")?.parse()?;
    Ok(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_crowd_is_counted_told_and_gone() {
        let plan = Plan {
            members: 400,
            churn: Duration::from_secs(1),
            presence: true,
            interval: Duration::from_millis(20),
        };
        let mut crowd = Crowd::open(&plan).unwrap();
        crowd.join_all().unwrap();
        assert_eq!(crowd.count(), 400);
        let said = crowd.churn(plan.churn).unwrap();
        assert!(said["leaves"].as_u64().unwrap() > 50, "{said}");
        assert!(said["leave_p50_ms"].as_f64().unwrap() > 0.0, "{said}");
        crowd.leave_all().unwrap();
        assert_eq!(crowd.count(), 0);
    }

    #[test]
    fn arguments_are_read_and_wrong_ones_refused() {
        let plan = |text: &str| plan(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let wanted = plan("1000 5 on 40").unwrap();
        assert_eq!((wanted.members, wanted.presence), (1000, true));
        assert_eq!(wanted.interval, Duration::from_millis(40));
        for wrong in ["1000 5", "1000 5 yes", "10 5 on", "1000 x on", "1000 5 on 40 50"] {
            assert!(plan(wrong).is_err(), "{wrong}");
        }
    }
}
