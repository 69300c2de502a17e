//! A simulated run, for work on the dashboard and the report, and for their tests in a browser:
//!
//! ```sh
//! cargo run -p simurgh-load --example dashboard_demo                  # the live page
//! cargo run -p simurgh-load --example dashboard_demo -- --report DIR  # the report
//! ```
//!
//! `--second-ms N` makes seconds shorter, `--history N` starts after N of them, `--hostile` has
//! names that would break out of a page that does not escape them, `--overload` has warnings.

use std::path::Path;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use simurgh_load::control::{Command, Control};
use simurgh_load::dashboard::{self, Options, Target};
use simurgh_load::record::{
    Count, Ending, ErrorKind, Meta, Metric, Names, PhasePlan, Record, Recorder, WorkerId, figures,
};
use simurgh_load::report::{Exporter, HtmlReport};
use simurgh_load::scenario::Dump;

type Failure = Box<dyn std::error::Error>;

const SCENARIO: &str = "name = \"lobby\"\n\n[[target]]\nurl = \"ws://127.0.0.1:4000\"\n\n\
    [[phase]]\nname = \"ramp\"\nduration = \"60s\"\narrivals = { from = 20, to = 300 }\n";

const SCRIPT_END: &str = "</script><script>window.broken = true</script><img src=x onerror=x>";

struct Arguments {
    report: Option<String>,
    second: Duration,
    history: u64,
    hostile: bool,
    overload: bool,
    port: u16,
}

fn main() -> Result<(), Failure> {
    let arguments = arguments()?;
    let (control, commands) = Control::new();
    let mut demo = Demo::new(&arguments);
    let seconds = if arguments.report.is_some() { 180 } else { arguments.history };
    for _ in 0..seconds {
        demo.second();
    }
    if let Some(dir) = &arguments.report {
        demo.record.lock().map_err(|_| "poisoned")?.finish(180_400, Ending::Duration);
        let text = if arguments.hostile { SCRIPT_END } else { SCENARIO };
        let record = demo.record.lock().map_err(|_| "poisoned")?;
        let dir = Path::new(dir);
        std::fs::create_dir_all(dir)?;
        std::fs::write(dir.join("scenario.toml"), text)?;
        HtmlReport::new(dir).finish(&record)?;
        return Ok(());
    }
    let dashboard = dashboard::start(Options {
        address: ([127, 0, 0, 1], arguments.port).into(),
        record: Arc::clone(&demo.record),
        control,
        target: Target::default(),
    })?;
    println!("listening on http://{}", dashboard.address());
    demo.run(&commands, arguments.second)?;
    dashboard.finish();
    Ok(())
}

fn arguments() -> Result<Arguments, Failure> {
    let mut found = Arguments {
        report: None,
        second: Duration::from_secs(1),
        history: 75,
        hostile: false,
        overload: false,
        port: dashboard::DEFAULT_ADDRESS.port(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
        match word.as_str() {
            "--report" => found.report = Some(value()?),
            "--second-ms" => found.second = Duration::from_millis(value()?.parse()?),
            "--history" => found.history = value()?.parse()?,
            "--port" => found.port = value()?.parse()?,
            "--hostile" => found.hostile = true,
            "--overload" => found.overload = true,
            _ => return Err(format!("unknown argument {word}").into()),
        }
    }
    Ok(found)
}

struct Demo {
    record: Arc<Mutex<Record>>,
    workers: Vec<Recorder>,
    dice: fastrand::Rng,
    second: u64,
    users: u64,
    owed: f64,
    rate: f64,
    paused: bool,
    overload: bool,
}

impl Demo {
    fn new(arguments: &Arguments) -> Self {
        let meta = meta(arguments.hostile);
        let workers = (0..3).map(|thread| {
            Recorder::new(WorkerId { host: thread / 2, thread: thread % 2 }, &meta.names, false)
        });
        Self {
            workers: workers.collect(),
            record: Arc::new(Mutex::new(Record::new(meta))),
            dice: fastrand::Rng::with_seed(7),
            second: 0,
            users: 0,
            owed: 0.0,
            rate: 1.0,
            paused: false,
            overload: arguments.overload,
        }
    }

    fn run(&mut self, commands: &Receiver<Command>, second: Duration) -> Result<(), Failure> {
        let mut stopping = false;
        while !stopping && self.second < 180 {
            std::thread::sleep(second);
            for command in commands.try_iter() {
                match command {
                    Command::Pause => self.paused = true,
                    Command::Resume => self.paused = false,
                    Command::Rate { factor } => self.rate = factor,
                    Command::Stop => stopping = true,
                }
            }
            self.second();
        }
        let ending = if stopping { Ending::Stopped } else { Ending::Duration };
        let mut record = self.record.lock().map_err(|_| "poisoned")?;
        record.finish(self.second * 1000 + 400, ending);
        Ok(())
    }

    fn second(&mut self) {
        let at = self.second as f64;
        let (phase, asked) = match at {
            at if at < 60.0 => (0, 20.0 + 280.0 * at / 60.0),
            at if at < 150.0 => (1, 300.0),
            _ => (2, 300.0 - 280.0 * (at - 150.0) / 30.0),
        };
        self.owed += if self.paused { 0.0 } else { asked * self.rate };
        let due = self.owed as u64;
        self.owed -= due as f64;
        let slow = if (95.0..108.0).contains(&at) { 14.0 } else { 1.0 };
        for number in 0..due {
            self.user(phase, (number % 3) as usize, slow);
        }
        let leaving = (self.users as f64 * if at > 150.0 { 0.09 } else { 0.002 }) as u64;
        for number in 0..leaving {
            let life_us = 1_000_000 * self.dice.u64(20..=180);
            self.workers[(number % 3) as usize].user_finished(phase, 0, life_us);
        }
        self.users = self.users + due - leaving;
        self.messages(slow);
        self.close();
    }

    fn user(&mut self, phase: u16, worker: usize, slow: f64) {
        let failing = slow > 1.0 && self.dice.u8(..) < 14;
        let mut us = |typical: f64| (typical * slow / (1.0 - self.dice.f64()).powf(0.6)) as u64;
        let (lag, connect, upgrade, join) = (us(30.0), us(140.0), us(260.0), us(420.0));
        let recorder = &mut self.workers[worker];
        recorder.user_started(phase, u16::from(worker == 2), lag);
        for count in [Count::UsersDue, Count::ConnectsTried, Count::Connects, Count::Upgrades] {
            recorder.count(count, 1);
        }
        recorder.count(Count::Requests, 2);
        recorder.time(Metric::Connect, connect);
        recorder.time(Metric::Upgrade, upgrade);
        if failing {
            match join % 3 {
                0 => recorder.error(ErrorKind::UpgradeStatus(503), phase),
                1 => recorder.error_with(ErrorKind::JoinTimeout, phase, || {
                    "no reply to the join of rooms:lobby within 5s".to_owned()
                }),
                _ => recorder.error_with(ErrorKind::Closed(1013), phase, || {
                    format!("slow consumer {SCRIPT_END}")
                }),
            }
            return;
        }
        recorder.time(Metric::Join, join);
        recorder.count(Count::Joins, 1);
        recorder.count(Count::JoinsOk, 1);
    }

    /// Traffic of the present users; a part of the deliveries represents all.
    fn messages(&mut self, slow: f64) {
        let share = self.users / 3;
        let at_ns = self.second * 1_000_000_000;
        for number in 0..3_u32 {
            let dice = &mut self.dice;
            let recorder = &mut self.workers[number as usize];
            recorder.published(number, self.second as u32, at_ns, 0);
            for _ in 0..share.min(400) {
                let ns = 900_000.0 * slow / (1.0 - dice.f64()).powf(0.5);
                recorder.delivery(number, self.second as u32, at_ns, at_ns + ns as u64, None);
            }
            let frames = share * 3 + dice.u64(0..=share / 10);
            recorder.count(Count::FramesInText, frames);
            recorder.count(Count::FramesOutText, share / 5);
            recorder.count(Count::BytesIn, frames * 96);
            recorder.count(Count::BytesOut, share / 5 * 120);
            recorder.gauges(share, share - share / 200);
        }
    }

    fn close(&mut self) {
        self.second += 1;
        let busy = if self.overload { 940_000_000 } else { 90_000_000 };
        let Ok(mut record) = self.record.lock() else { return };
        for (number, recorder) in self.workers.iter_mut().enumerate() {
            let cpu_ns = self.second * (busy + number as u64 * 11_000_000);
            if let Some(delta) = recorder.take(cpu_ns + self.users / 3 * 20_000) {
                record.merge(delta);
            }
        }
        record.close_second(self.second * 1000);
    }
}

fn meta(hostile: bool) -> Meta {
    let wild = |name: &str| match hostile {
        true => format!("{name} {SCRIPT_END} \u{202e}\u{1f600} {}", "long".repeat(40)),
        false => name.to_owned(),
    };
    let phase = |name: &str, starts_s, duration_s, rate_from, rate_to| PhasePlan {
        name: wild(name),
        starts_s,
        duration_s,
        rate_from,
        rate_to,
        ..PhasePlan::default()
    };
    let phases = vec![
        phase("ramp up", 0.0, 60.0, 20.0, 300.0),
        phase("steady", 60.0, 90.0, 300.0, 300.0),
        phase("drain", 150.0, 30.0, 300.0, 20.0),
    ];
    let pass = [("join_p99", "< 50ms"), ("errors", "== 0"), ("connected", ">= 10000")];
    let names = Names {
        phases: phases.iter().map(|phase| phase.name.clone()).collect(),
        sessions: vec![wild("reader"), wild("speaker")],
        transactions: vec![wild("login")],
    };
    Meta {
        format: Meta::FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        scenario: wild("The lobby at noon"),
        seed: 42,
        started_unix_ms: 1_795_000_000_000,
        targets: vec![wild("127.0.0.1:4000")],
        hosts: vec!["local".to_owned(), wild("agent-1")],
        names,
        phases,
        duration_s: Some(180.0),
        users_max: None,
        pass: pass
            .iter()
            .filter_map(|(name, is)| figures::parse_threshold(name, is).ok())
            .collect(),
        full_stats: false,
        dump: Dump::Off,
    }
}
