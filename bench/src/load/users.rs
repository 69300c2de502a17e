//! Users that come, join and stay: their cost in CPU time when they come, in memory while they
//! stay, and in CPU time while they are idle.

use std::net::SocketAddrV4;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::scenario;
use super::tools::{AtWork, Job, Tool};
use super::{Bench, Side};
use simurgh_bench_kit::target::{Server, Target};
use simurgh_bench_kit::{stats, sys};

/// Users of `connect`, `memory` and `idle`.
pub(super) const USERS: usize = 15_000;
pub(super) const USERS_SHORT: usize = 1_500;
/// Users per second of `connect`: more than the server takes on one core.
const RATE: u32 = 40_000;
const POLL: Duration = Duration::from_millis(20);
/// The measurement is given up after this time without new users.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Users per second of `memory`: low enough for all.
const MEMORY_RATE: u32 = 2_000;
/// The same rate for many users.
const MEMORY_RATE_MANY: u32 = 5_000;
/// Clients of `memory` for a load generator that can hold them: so many that its fixed memory does
/// not affect the figure per client.
const MEMORY_USERS: usize = 100_000;
const IDLE_FULL: f64 = 65.0;

pub(super) fn joins(server: &Server) -> Result<u64> {
    counter(server, "simurgh_joins_total")
}

/// A counter, over all shards of the server.
pub(super) fn counter(server: &Server, name: &str) -> Result<u64> {
    // Counters are whole and far below 2⁵³.
    Ok(server.sum(name)? as u64)
}

/// Waits until `users` have joined; calls `first` once the first has joined, `look` before.
pub(super) fn joined(
    server: &Server,
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
        ensure!(changed.elapsed() < WAIT_MAX, "{seen} of {users} joined, then nobody more");
        work.must_run()?;
        if now == 0 {
            look(work);
        }
        thread::sleep(POLL);
    }
}

fn all_joined(server: &Server, work: &mut AtWork, users: usize) -> Result<()> {
    joined(server, work, u64::try_from(users)?, |_| (), |_, _| Ok(()))
}

/// `connect`: users come at a high rate, without a pause.
pub(super) fn connect(bench: &Bench<'_>, side: &mut Side<'_>) -> Result<()> {
    let users = bench.users();
    let server = bench.server.start(&bench.log)?;
    let come = Come { users, rate: RATE, first: 0, threads: 1 };
    let mut work = bench.kit.start(&come.job(side.tool, server.address))?;
    let mut begun = None;
    let all = u64::try_from(users)?;
    joined(
        &server,
        &mut work,
        all,
        |_| (),
        |work, already| {
            begun = Some((work.process.cpu()?, Instant::now(), already));
            Ok(())
        },
    )?;
    let (cpu, at, already) = begun.context("nobody was first")?;
    let took = at.elapsed();
    // The kernel counts a thread's time when it leaves the core.
    thread::sleep(Duration::from_millis(200));
    let (spent, vanished) = work.process.cpu()?.since(&cpu);
    let came = stats::per(all - already, 1);
    let spent = Duration::from_nanos(spent).as_secs_f64();
    side.put("connect per CPU s", came / spent);
    side.put("connect CPU s", spent);
    side.put("connect per s", came / took.as_secs_f64());
    side.note_vanished(vanished);
    ensure!(joins(&server)? == all, "more joined than were asked for");
    work.end();
    Ok(())
}

fn resident(work: &AtWork) -> Result<u64> {
    sys::resident(work.process.pid())
}

/// `memory`: no users, then some, then all, with time to become idle each time.
pub(super) fn memory(bench: &Bench<'_>, side: &mut Side<'_>) -> Result<()> {
    let many = side.tool == Tool::Simurgh && !bench.options.short;
    let each = bench.users();
    let users = if many { MEMORY_USERS.max(each) } else { each };
    let first = users.div_ceil(15);
    // One process of the server and one of the load generator hold all, this many on a thread.
    let threads = u32::try_from(users.div_ceil(each.max(1)))?;
    let server = Target::simurgh(&bench.kit.simurgh, threads)?.start(&bench.log)?;
    let rate = if many { MEMORY_RATE_MANY } else { MEMORY_RATE };
    let come = Come { users, rate, first, threads };
    side.put("memory clients", stats::per(u64::try_from(users)?, 1));
    let mut work = bench.kit.start(&come.job(side.tool, server.address))?;
    let mut base = None;
    joined(&server, &mut work, 1, |work| base = resident(work).ok().or(base), |_, _| Ok(()))?;
    all_joined(&server, &mut work, first)?;
    thread::sleep(scenario::PAUSE / 2);
    let early = resident(&work)?;
    let then = usize::try_from(joins(&server)?)?;
    if then != first {
        side.note(&format!("{then} and not {first} were there for the first figure"));
    }
    all_joined(&server, &mut work, users)?;
    thread::sleep(scenario::PAUSE / 2);
    let held = resident(&work)?;
    let base = base.context("its memory without users was not seen")?;
    let each = stats::difference(held, early) / stats::per(users - then, 1);
    side.put("memory bytes per client", each);
    // The fixed memory, which does not grow with clients.
    let once = stats::per(held, 1_000_000) - each * stats::per(users, 1_000_000);
    side.put("memory base in use MB", once);
    for (name, memory) in [("base", base), ("first", early), ("held", held)] {
        side.put(format!("memory {name} MB"), stats::per(memory, 1_000_000));
    }
    ensure!(usize::try_from(joins(&server)?)? == users, "more joined than were asked for");
    work.end();
    Ok(())
}

/// The arrival of users that then stay.
#[derive(Clone, Copy)]
struct Come {
    users: usize,
    rate: u32,
    /// This many come before a pause; 0: all without a pause.
    first: usize,
    threads: u32,
}

impl Come {
    fn job(self, tool: Tool, server: SocketAddrV4) -> Job {
        let Self { users, rate, first, threads } = self;
        match tool {
            Tool::Simurgh => Job::toml(scenario::hold(server, users, rate, first)).workers(threads),
            Tool::Bare => Job::bare(server, users, rate)
                .with("--wait-ms=2000")
                .with(&format!("--first={first}"))
                .with(&format!("--pause-ms={}", scenario::PAUSE.as_millis())),
        }
    }
}

/// `idle`: Tsung's file of the 2015 Phoenix benchmark.
pub(super) fn idle(bench: &Bench<'_>, side: &mut Side<'_>) -> Result<()> {
    let options = bench.options;
    let users = bench.users();
    let server = bench.server.start(&bench.log)?;
    let job = Job::scenario(scenario::SEED_FILE.to_owned(), "xml")
        .with("--local")
        .with(&format!("--map={}={}", scenario::SEED_SERVER, server.address))
        .with(&format!("--max-users={users}"));
    let mut work = bench.kit.start(&job)?;
    all_joined(&server, &mut work, users)?;
    thread::sleep(Duration::from_secs(2));
    let window = options.size(Duration::from_secs(65), Duration::from_secs(10));
    let (cpu, begun) = (work.process.cpu()?, Instant::now());
    thread::sleep(window);
    let (spent, vanished) = work.process.cpu()?.since(&cpu);
    let scale = IDLE_FULL / begun.elapsed().as_secs_f64();
    side.put("idle CPU s", Duration::from_nanos(spent).as_secs_f64() * scale);
    if options.short || users != 15_000 {
        side.note(&format!("{users} users, {window:?} scaled to 65 s"));
    }
    side.note_vanished(vanished);
    let held = counter(&server, "simurgh_sockets")?;
    ensure!(held == u64::try_from(users)?, "only {held} of {users} were there at the end");
    work.end();
    Ok(())
}
