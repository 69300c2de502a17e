//! Users that come, join and stay: what they cost in CPU time when they come, in memory while they
//! are there, and in CPU time while they only think.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::bare::Bare;
use super::process::Memory;
use super::scenario;
use super::tools::{AtWork, Job, Tool};
use super::{Bench, Sample};
use crate::stats;
use crate::target::{self, Running};

/// How often the server is asked.
const POLL: Duration = Duration::from_millis(20);
/// Without anybody new for so long it is given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Tsung freezes for seconds at a time above this rate.
const TSUNG_RATE_MAX: u32 = 2_000;
const IDLE_FULL: f64 = 65.0;

/// Joins that the server has counted.
pub(super) fn joins(server: &Running) -> Result<u64> {
    counter(server, "simurgh_joins_total")
}

/// A counter of the server's only shard.
pub(super) fn counter(server: &Running, name: &str) -> Result<u64> {
    let value = target::metric(&server.metrics()?, &format!("{name}{{shard=\"0\"}}"));
    match value {
        // Counters are whole and far below 2⁵³.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Some(value) if value >= 0.0 => Ok(value as u64),
        _ => bail!("/metrics has no {name}"),
    }
}

/// Waits until `users` have joined; calls `first` when the first is there, `look` before.
pub(super) fn joined(
    server: &Running,
    work: &mut AtWork,
    users: u64,
    mut look: impl FnMut(&AtWork),
    mut first: impl FnMut(&AtWork, u64) -> Result<()>,
) -> Result<()> {
    let (mut seen, mut changed) = (0, Instant::now());
    loop {
        let now = joins(server)?;
        if seen == 0 && now > 0 {
            first(work, now)?;
        }
        if now >= users {
            return Ok(());
        }
        if now > seen {
            (seen, changed) = (now, Instant::now());
        }
        ensure!(changed.elapsed() < PATIENCE, "{seen} of {users} joined, then nobody more");
        work.process.must_run()?;
        if now == 0 {
            look(work);
        }
        thread::sleep(POLL);
    }
}

/// `connect` and `memory`.
pub(super) fn hold(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let options = bench.options;
    let (users, mut rate) = (options.users, options.rate);
    let server = bench.server.start(&bench.log)?;
    let job = match sample.tool {
        Tool::Simurgh => Job::toml(scenario::hold(server.address, users, rate)),
        Tool::Bare => Job::Bare(Bare {
            server: server.address,
            users,
            rate,
            wait: Duration::from_secs(2),
            hold: None,
            join: true,
            say: 0,
            messages: 0,
        }),
        Tool::Tsung => {
            rate = rate.min(TSUNG_RATE_MAX);
            let steps = format!("{}{}", scenario::tsung_join(), scenario::tsung_think(600.0));
            Job::Tsung(scenario::tsung(
                server.address,
                &scenario::one_node(),
                &scenario::tsung_phase(1, 240, rate, users, ""),
                &scenario::tsung_session("member", 100, &steps),
            ))
        }
    };
    let mut work = bench.kit.start(&job)?;
    let mut base: Option<Memory> = None;
    let mut begun = None;
    let all = u64::try_from(users)?;
    joined(
        &server,
        &mut work,
        all,
        |work| base = work.process.memory().or(base),
        |work, already| {
            begun = Some((work.process.cpu()?, Instant::now(), already));
            Ok(())
        },
    )?;
    let took = begun.as_ref().map(|(_, at, _)| at.elapsed());
    thread::sleep(Duration::from_millis(200));
    if let (Some((cpu, _, already)), Some(took)) = (begun, took) {
        let (spent, vanished) = work.process.cpu()?.since(&cpu);
        let came = stats::per(all - already, 1);
        sample.put("connect per CPU s", came / spent);
        sample.put("connect CPU s", spent);
        sample.put("connect per s", came / took.as_secs_f64());
        sample.put("connect rate asked", f64::from(rate));
        if vanished > 0 {
            sample.note(format!("{vanished} threads ended meanwhile: CPU understated"));
        }
    }
    thread::sleep(options.size(Duration::from_secs(2), Duration::from_millis(500)));
    if let (Some(base), Some(held)) = (base, work.process.memory()) {
        let grown = stats::per(held.rss, 1) - stats::per(base.rss, 1);
        sample.put("memory bytes per client", grown / stats::per(users, 1));
        for (name, value) in [
            ("memory base MB", base.rss),
            ("memory held MB", held.rss),
            ("memory base private MB", base.private),
            ("memory held private MB", held.private),
            ("memory base PSS MB", base.pss),
            ("memory held PSS MB", held.pss),
        ] {
            sample.put(name, stats::per(value, 1_000_000));
        }
    }
    ensure!(joins(&server)? == all, "more joined than were asked for");
    work.forget();
    Ok(())
}

/// `idle`: the seeds' own file.
pub(super) fn idle(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let options = bench.options;
    let users = options.users;
    let server = bench.server.start(&bench.log)?;
    let job = match sample.tool {
        Tool::Tsung => match scenario::seed_for_tsung(server.address, users) {
            Some(text) => Job::Tsung(text),
            None => bail!("the seeds' file has changed"),
        },
        _ => Job::Simurgh {
            text: scenario::SEED_FILE.to_owned(),
            kind: "xml",
            flags: vec![
                "--local".to_owned(),
                format!("--map={}={}", scenario::SEED_SERVER, server.address),
                format!("--max-users={users}"),
            ],
            workers: 1,
        },
    };
    let mut work = bench.kit.start(&job)?;
    joined(&server, &mut work, u64::try_from(users)?, |_| (), |_, _| Ok(()))?;
    thread::sleep(Duration::from_secs(2));
    let window = options.size(Duration::from_secs(65), Duration::from_secs(10));
    let (cpu, begun) = (work.process.cpu()?, Instant::now());
    thread::sleep(window);
    let (spent, vanished) = work.process.cpu()?.since(&cpu);
    let scale = IDLE_FULL / begun.elapsed().as_secs_f64();
    sample.put("idle CPU s", spent * scale);
    if options.quick || users != 15_000 {
        sample.note(format!("{users} users, {window:?} scaled to 65 s"));
    }
    if vanished > 0 {
        sample.note(format!("{vanished} threads ended meanwhile: CPU understated"));
    }
    let held = counter(&server, "simurgh_sockets")?;
    ensure!(held == u64::try_from(users)?, "only {held} of {users} were there at the end");
    work.forget();
    Ok(())
}
