//! Attacks of hostile clients: each row of [`ATTACKS`] runs against a fresh server. The table shows
//! the server's memory, its longest turn, other clients, and how it ends: see bench/README.md.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use simurgh_bench_kit::flood::{Crowd, SOCKET};
use simurgh_bench_kit::process::Signal;
use simurgh_bench_kit::rounds::table::{Recipe, read};
use simurgh_bench_kit::rounds::{Bench, Job, Options, Sample, Suite, USUAL};
use simurgh_bench_kit::target::{Server, Target};
use simurgh_bench_kit::wait::sleep_until;

use crate::fairness::probe::{Activity, Probe};

mod kinds;
mod server;

/// Address space of the server: an attack must not take the machine's memory.
const WIDE: u64 = 3 << 30;
/// Time for the memory to come back.
const CALM: Duration = Duration::from_secs(40);
/// Time that the server has to end, at most; the limit is shorter.
const END_MAX: Duration = Duration::from_secs(40);

/// The server under attack, the time and address of the attacker, and where its figures go.
#[derive(Clone, Copy)]
struct Field<'a> {
    server: &'a Server,
    /// The last part of its address.
    host: u8,
    until: Instant,
    /// A good token.
    token: &'a str,
    /// Bytes that the attackers have sent.
    sent: &'a AtomicU64,
    /// Figures of this attack alone.
    figures: &'a Mutex<BTreeMap<&'static str, usize>>,
}

impl Field<'_> {
    fn put(&self, name: &'static str, count: usize) {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner).insert(name, count);
    }
}

struct Attack {
    row: &'static str,
    run: fn(&Field<'_>) -> Result<()>,
    /// Shards, all on one core: with several, the home shard of a topic has less of the core than
    /// the shards that send to it have together.
    shards: u32,
    /// Well-behaved clients, each in a topic of its own with a message in its history.
    others: usize,
    /// Whether it fills histories, which stay.
    fills: bool,
}

const fn usual(row: &'static str, run: fn(&Field<'_>) -> Result<()>) -> Attack {
    Attack { row, run, shards: 1, others: 50, fills: false }
}

const ATTACKS: [Attack; 13] = [
    Attack { shards: 4, ..usual("tracks", kinds::tracks) },
    Attack { shards: 4, ..usual("new-keys", kinds::new_keys) },
    usual("unread-polls", kinds::unread_polls),
    usual("bodies", kinds::bodies),
    usual("renewals", kinds::renewals),
    usual("sample", kinds::sample),
    usual("es256", kinds::bad_tokens),
    usual("changes", kinds::changes),
    usual("rejoins", kinds::rejoins),
    usual("metas", kinds::metas),
    Attack { fills: true, ..usual("evictions", kinds::evictions) },
    Attack { fills: true, ..usual("large-joins", kinds::large_joins) },
    usual("slots", kinds::slots),
];
const ALL: Attack = Attack { shards: 2, others: 1_000, fills: true, ..usual("all", kinds::all) };

fn attacks() -> impl Iterator<Item = &'static Attack> {
    ATTACKS.iter().chain([&ALL])
}

pub(crate) const SUITE: Suite = Suite {
    name: "attacks",
    about: "What hostile clients do to `simurgh serve`",
    jobs: || attacks().map(|attack| Job::new(attack.row, run)).collect(),
    runs: 1,
    clients: (5_000, 5_000),
    order: "a fresh server for each attack; a limit holds for the worst round",
    is_each_judged: true,
    recipes,
    ..USUAL
};

/// The lines of the table: the same figures for each attack.
fn recipes(_: &Options) -> Result<Vec<Recipe>> {
    let mut all = Vec::new();
    for attack in attacks() {
        let after = if attack.fills { "" } else { "110" };
        let values = [
            ("{row}", attack.row.to_owned()),
            ("{over}", server::memory_limit_mb(attack).to_string()),
            ("{after}", after.to_owned()),
        ];
        let own = read(include_str!("table.txt"), &values)?.into_iter();
        let own = own.filter(|it| it.row == "each" || it.row == attack.row);
        all.extend(own.map(|recipe| Recipe { row: attack.row, ..recipe }));
    }
    Ok(all)
}

fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let attack = attacks().find(|attack| attack.row == sample.row).context("no such attack")?;
    let token = server::token(&bench.program, &bench.scratch)?;
    let file = bench.scratch.join("attacks.toml");
    fs::write(&file, server::settings(&bench.scratch)?)?;
    let target = Target::simurgh(&bench.program, attack.shards)?.with_settings(&file).within(WIDE);
    let mut server = target.start(&bench.scratch.join("server-log"))?;
    let sent = AtomicU64::new(0);
    let mut others = others(&server, attack.others, &sent)?;
    let idle = server.at_rest()?;
    sample.put("idle_mb", mb(idle));

    sent.store(0, Ordering::Relaxed);
    attacked(bench, attack, &server, &token, &sent, sample)?;
    sample.put("sent_mb", mb(sent.load(Ordering::Relaxed)));
    sample.put_some("over_mb", server.peak_mb(idle));
    let status = server.process.status()?;
    sample.put_count("ended", usize::from(status.is_some()));
    if let Some(status) = status {
        sample.note(format!("the server ended in the attack: {status}"));
        return Ok(());
    }
    after(&server, attack, idle, sample)?;
    others.rest(Instant::now() + Duration::from_millis(500))?;
    sample.put_count("others_closed", attack.others - others.open_count());
    end(server, sample)
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// The attack itself, and the heartbeats of another client meanwhile.
fn attacked(
    bench: &Bench<'_>,
    attack: &Attack,
    server: &Server,
    token: &str,
    sent: &AtomicU64,
    sample: &mut Sample,
) -> Result<()> {
    let probe = Probe::start(server.address, Activity::Heartbeat)?;
    let begun = Instant::now();
    let options = bench.options;
    let until = begun + Duration::from_secs(options.seconds.unwrap_or(options.size(60, 10)));
    let figures = Mutex::default();
    let field = Field { server, host: 1, until, token, sent, figures: &figures };
    if let Err(error) = (attack.run)(&field) {
        sample.note(format!("the attack ended early: {error:#}"));
        // The server has the rest of the time to show what became of it.
        sleep_until(until);
    }
    for (name, count) in figures.into_inner().unwrap_or_else(PoisonError::into_inner) {
        sample.put_count(name, count);
    }
    probe.end()?.put(sample, "heartbeat", begun, Instant::now());
    Ok(())
}

/// Well-behaved clients, each in its own topic, whose history has one message.
fn others<'a>(server: &Server, count: usize, sent: &'a AtomicU64) -> Result<Crowd<'a>> {
    let mut crowd = Crowd::http(server.address, 200, sent).at(SOCKET).open(count)?;
    let soon = Instant::now() + Duration::from_millis(500);
    crowd.flood(soon, |at, number| {
        (number == 0).then(|| format!("[\"1\",\"1\",\"rooms:other-{at}\",\"phx_join\",{{}}]"))
    })?;
    server.publish((0..count).map(|at| format!("rooms:other-{at}")), "{\"body\":\"kept\"}")?;
    crowd.rest(Instant::now() + Duration::from_secs(1))?;
    Ok(crowd)
}

/// The longest turn; then waits until the memory is back; then the histories.
fn after(server: &Server, attack: &Attack, idle: u64, sample: &mut Sample) -> Result<()> {
    let begun = Instant::now();
    loop {
        sleep(Duration::from_secs(1));
        let percent = server.resident()? as f64 / idle as f64 * 100.0;
        sample.put("after_percent", percent);
        if percent <= 110.0 || begun.elapsed() > CALM {
            break;
        }
    }
    // An older server may have neither this page nor this line.
    let lines = server.metrics().unwrap_or_default();
    let turns = lines.iter().filter(|line| line.starts_with("simurgh_shard_turn_cpu_max_seconds"));
    let seconds = turns.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    sample.put_some("turn_cpu_ms", seconds.reduce(f64::max).map(|most| most * 1e3));
    let mut lost = 0;
    for at in 0..attack.others {
        let answer = server.get(&format!("/api/history?topic=rooms:other-{at}"));
        lost += usize::from(!answer.is_ok_and(|found| found.to_string().contains("\"kept\"")));
    }
    sample.put_count("histories_lost", lost);
    Ok(())
}

/// SIGTERM, and how long the server takes to end.
fn end(mut server: Server, sample: &mut Sample) -> Result<()> {
    let begun = Instant::now();
    server.process.signal(Signal::TERM)?;
    while server.process.status()?.is_none() {
        if begun.elapsed() > END_MAX {
            sample.note("SIGTERM did not end the server");
            break;
        }
        sleep(Duration::from_millis(20));
    }
    sample.put("end_s", begun.elapsed().as_secs_f64());
    Ok(())
}
