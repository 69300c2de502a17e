//! A made-up run with all kinds of events, the same for the same seed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::time::{Duration, UNIX_EPOCH};

use simurgh_load::record::figures::parse_threshold;
use simurgh_load::record::{
    Count, Delta, Ending, ErrorKind, MatchLine, Meta, Metric, Names, PhasePlan, Record, Recorder,
    Seen, Tick, Warning, WorkerId,
};

pub fn names() -> Names {
    let texts = |all: &[&str]| all.iter().map(|&one| one.to_owned()).collect();
    Names {
        phases: texts(&["ramp", "hold"]),
        sessions: texts(&["chat", "lurker"]),
        transactions: texts(&["login", "odd name/with blanks"]),
    }
}

pub fn meta() -> Meta {
    let started = UNIX_EPOCH + Duration::from_millis(1_700_000_000_250);
    let plan = |name: &str, starts_s, rate_to| PhasePlan {
        name: name.to_owned(),
        starts_s,
        duration_s: 10.0,
        rate_to,
        ..PhasePlan::default()
    };
    let pass = [
        ("join_p99", "< 10s"),
        ("errors_connect_refused", "> 0"),
        ("http_p99", "< 50ms"),
        ("late_arrivals", "< 0.5%"),
    ];
    Meta {
        format: Meta::FORMAT,
        version: "0.1.0".to_owned(),
        scenario: "made up".to_owned(),
        seed: 7,
        started_unix_ms: started.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64,
        targets: vec!["127.0.0.1:4000".to_owned()],
        hosts: vec!["local".to_owned(), "agent.example:9000".to_owned()],
        names: names(),
        phases: vec![plan("ramp", 0.0, 50.0), plan("hold", 10.0, 5.0)],
        pass: pass.iter().map(|(name, text)| parse_threshold(name, text).unwrap()).collect(),
        duration_s: Some(25.4),
        users_max: Some(1000),
        ..Meta::default()
    }
}

pub struct Hand {
    pub recorder: Recorder,
    random: fastrand::Rng,
    users: u64,
    seq: u32,
    seen: Seen,
    cpu_ns: u64,
}

impl Hand {
    pub fn new(host: u16, thread: u16, seed: u64) -> Self {
        Self {
            recorder: Recorder::new(WorkerId { host, thread }, &names(), true),
            random: fastrand::Rng::with_seed(
                seed << 32 | u64::from(host) << 16 | u64::from(thread),
            ),
            users: 0,
            seq: 0,
            seen: Seen::default(),
            cpu_ns: 0,
        }
    }

    pub fn work(&mut self, at_ms: u64) -> Option<Delta> {
        let random = &mut self.random;
        let recorder = &mut self.recorder;
        let names = names();
        for _ in 0..random.u32(1..60) {
            let (phase, session) = (u16::from(at_ms > 10_000), random.u16(0..2));
            recorder.count(Count::UsersDue, 1);
            recorder.user_started(phase, session, random.u64(0..300));
            recorder.count(Count::ConnectsTried, 1);
            if random.u8(..) < 20 {
                let kinds = [
                    ErrorKind::ConnectRefused,
                    ErrorKind::UpgradeStatus(404),
                    ErrorKind::Closed(1011),
                ];
                let kind = kinds[random.usize(..3)];
                recorder.error_with(kind, phase, || format!("it said \"{}\"", random.u8(..4)));
                recorder.user_aborted(phase, session, random.u64(..100_000));
                continue;
            }
            self.users += 1;
            recorder.count(Count::Connects, 1);
            recorder.count(Count::Upgrades, 1);
            recorder.count(Count::Requests, 3);
            recorder.time(Metric::Connect, random.u64(40..4_000));
            recorder.time(Metric::Upgrade, random.u64(40..4_000));
            recorder.time(Metric::Join, random.u64(100..9_000_000));
            recorder.time(names.transaction("login").unwrap(), random.u64(100..90_000));
            recorder.time(names.metric("tr_odd name/with blanks").unwrap(), 5);
            recorder.count(Count::BytesOut, random.u64(100..500));
            recorder.count(Count::BytesIn, random.u64(100..500));
            recorder.count(Count::FramesInText, 2);
            recorder.count(Count::FramesOutBinary, 1);
            recorder.count(Count::Matches, 1);
            recorder.count(Count::RequestsNoAck, 1);
            recorder.status(if random.bool() { 200 } else { 503 });
        }
        let line = MatchLine {
            at_us: at_ms * 1000 - random.u64(..900_000),
            user: random.u64(1..100),
            session: 0,
            request: 2,
            event: "nomatch".to_owned(),
            transaction: names.transaction("login"),
            name: "a name".to_owned(),
        };
        recorder.match_line(line);
        self.seq += 1;
        let sent_ns = at_ms * 1_000_000 - 900_000_000;
        recorder.published(9, self.seq, sent_ns, 0);
        for receiver in 0..20 {
            let received_ns = sent_ns + receiver * 1_000_000 + random.u64(..500_000);
            let seen = (receiver == 0).then_some(&mut self.seen);
            recorder.delivery(9, self.seq, sent_ns, received_ns, seen);
        }
        recorder.gauges(self.users, self.users);
        self.cpu_ns += random.u64(10_000_000..200_000_000);
        recorder.take(self.cpu_ns)
    }
}

/// A run of 25.4 s with three workers on two hosts, given to `each` second by second.
pub fn run_with(seed: u64, mut each: impl FnMut(&mut Record, &Tick)) -> Record {
    let mut record = Record::new(meta());
    let mut hands = [Hand::new(0, 0, seed), Hand::new(0, 1, seed), Hand::new(1, 0, seed)];
    for second in 1..=25 {
        for hand in &mut hands {
            if let Some(delta) = hand.work(second * 1000) {
                record.merge(delta);
            }
        }
        if second == 20 {
            record.warn(Warning::ClockSkew {
                host: "agent.example:9000".to_owned(),
                offset_us: -1500,
                bound_us: 80,
            });
        }
        let tick = record.close_second(second * 1000);
        each(&mut record, &tick);
    }
    let tick = record.finish(25_400, Ending::Duration);
    each(&mut record, &tick);
    record
}

pub fn run(seed: u64) -> Record {
    run_with(seed, |_, _| {})
}
