//! A scenario run, and the sums that every run must have.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

use simurgh_load::engine::{Options, Run};
use simurgh_load::record::{Count, Ending, ErrorKind, Metric, MetricId, Record};
use simurgh_load::report::Outputs;
use simurgh_load::scenario::{AddressRange, Overrides, Scenario, check};

pub struct Ran {
    pub record: Record,
    pub ending: Ending,
    pub took: Duration,
}

#[track_caller]
pub fn scenario(text: &str) -> Scenario {
    let scenario = match simurgh_load::toml::read(text, Path::new(""), &Overrides::default()) {
        Ok(loaded) => loaded.scenario,
        Err(faults) => panic!("{faults}\n{text}"),
    };
    let scenario = over_tun(scenario);
    check(&scenario).unwrap_or_else(|faults| panic!("{faults}\n{text}"));
    scenario
}

/// With this variable in the environment, users of all tests have no sockets (needs root). The
/// devices of each run have their own names and network.
pub const TUN: &str = "SIMURGH_TEST_TUN";

fn over_tun(mut scenario: Scenario) -> Scenario {
    static RUNS: AtomicU8 = AtomicU8::new(0);
    let is_plain = scenario.targets.iter().all(|target| !target.tls && target.address.is_ipv4());
    if std::env::var_os(TUN).is_some() && is_plain && scenario.sources.addresses.is_empty() {
        let run = RUNS.fetch_add(1, Relaxed);
        let [first, last] = [0, 255].map(|last| Ipv4Addr::new(10, 202, run, last).into());
        scenario.sources.addresses.push(AddressRange { first, last });
        scenario.sources.tun = Some(format!("test{run}x"));
    }
    scenario
}

#[track_caller]
pub fn run(text: &str) -> Ran {
    run_with(text, 1)
}

#[track_caller]
pub fn run_with(text: &str, workers: usize) -> Ran {
    steered(text, workers, |_| ())
}

/// Runs a scenario with an operator, who gets the prepared run before the start.
#[track_caller]
pub fn steered(text: &str, workers: usize, operator: impl FnOnce(&Run)) -> Ran {
    let options = Options { workers: Some(workers), ..Options::default() };
    let run = Run::prepare(scenario(text), &options).expect("the workers start");
    let record = run.record();
    operator(&run);
    let began = Instant::now();
    let outcome = run.go(Outputs::new());
    let took = began.elapsed();
    let record = record.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let ran = Ran { record, ending: outcome.ending, took };
    ran.sums_are_right();
    ran
}

/// How long a test waits for what does not come.
pub const WAIT: Duration = Duration::from_secs(20);

#[track_caller]
pub fn eventually(awaited: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < WAIT, "waited {WAIT:?} in vain for: {awaited}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The metrics of requests that wait for an answer.
const ANSWERED: [Metric; 6] =
    [Metric::Upgrade, Metric::Join, Metric::Push, Metric::Leave, Metric::Message, Metric::Http];

impl Ran {
    pub fn count(&self, count: Count) -> u64 {
        self.record.counts()[count]
    }

    pub fn errors(&self, kind: ErrorKind) -> u64 {
        self.record.errors().of_kind(kind)
    }

    pub fn timed(&self, metric: impl Into<MetricId>) -> u64 {
        self.record.times(metric).map_or(0, |times| times.count())
    }

    #[track_caller]
    pub fn errors_are(&self, expected: &[(ErrorKind, u64)]) {
        let mut found: Vec<(ErrorKind, u64)> = Vec::new();
        for (kind, _, n) in self.record.errors().iter() {
            match found.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, sum)) => *sum += n,
                None => found.push((kind, n)),
            }
        }
        found.sort();
        let mut expected = expected.to_vec();
        expected.sort();
        assert_eq!(found, expected, "{}", self.text());
    }

    /// Asserts how many users finished their session, and how many aborted it.
    #[track_caller]
    pub fn users_are(&self, finished: u64, aborted: u64) {
        let found = (self.count(Count::UsersFinished), self.count(Count::UsersAborted));
        assert_eq!(found, (finished, aborted), "{}", self.text());
    }

    pub fn text(&self) -> String {
        let counts: Vec<String> =
            self.record.counts().iter().map(|(count, n)| format!("{count:?} {n}")).collect();
        let errors: Vec<String> = self
            .record
            .errors()
            .iter()
            .map(|(kind, phase, n)| {
                format!("{kind} in phase {phase}: {n} {:?}", self.record.details(kind))
            })
            .collect();
        format!(
            "{:?} after {:?}\n{}\n{}",
            self.ending,
            self.took,
            counts.join(", "),
            errors.join("\n")
        )
    }

    /// No users are left, and all users and requests are counted exactly once.
    #[track_caller]
    fn sums_are_right(&self) {
        let text = self.text();
        let count = |count| self.count(count);
        assert_eq!((self.record.users(), self.record.connected()), (0, 0), "{text}");
        let ended = count(Count::UsersFinished) + count(Count::UsersAborted);
        assert_eq!(count(Count::UsersStarted), ended, "{text}");
        assert_eq!(self.timed(Metric::Session), ended, "{text}");
        for users in [self.record.phases(), self.record.sessions()] {
            let sum =
                |of: fn(&simurgh_load::record::Users) -> u64| users.values().map(of).sum::<u64>();
            assert_eq!(sum(|users| users.started), ended, "{text}");
            assert_eq!(sum(|users| users.finished), count(Count::UsersFinished), "{text}");
            assert_eq!(sum(|users| users.aborted), count(Count::UsersAborted), "{text}");
        }
        assert_eq!(count(Count::Connects), count(Count::Disconnects), "{text}");
        assert!(count(Count::ConnectsTried) >= count(Count::Connects), "{text}");
        // The time waited for an answer that never came counts, too; not so if the request was sent
        // again, or the scenario itself cut the connection.
        let timed: u64 = ANSWERED.iter().map(|metric| self.timed(*metric)).sum();
        let heartbeats =
            self.record.details(ErrorKind::ReplyTimeout).iter().any(|t| t.contains("heartbeat"));
        let [requests, unanswered] = [Count::Requests, Count::RequestsUnanswered].map(&count);
        let others = [Count::HttpAnswers, Count::DropsReset, Count::DropsSilent];
        if others.iter().any(|name| count(*name) > 0) {
            assert!((timed..=timed + unanswered).contains(&requests), "{text}");
        } else if !heartbeats {
            assert_eq!(requests, timed, "{text}");
        }
        assert_eq!(self.record.workers().values().filter(|worker| worker.lost).count(), 0);
    }
}

/// A scenario of one session, `users` users within the first 100 ms.
pub fn of(server: SocketAddr, users: u32, protocol: &str, head: &str, steps: &str) -> String {
    format!(
        "{head}\n[target]\nurl = \"ws://{server}\"\n\
         [[phase]]\nduration = \"100ms\"\nrate = {rate}\n\
         [[session]]\nname = \"one\"\nprotocol = \"{protocol}\"\n{steps}\n",
        rate = users * 10,
    )
}
