//! Attacks of hostile clients: each row of [`ATTACKS`] runs against a fresh server. The table shows
//! the server's memory, its longest turn, other clients, and how it ends. bench/README.md says more.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddrV4;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use simurgh_bench_kit::process::Signal;
use simurgh_bench_kit::rounds::table::{Limit, Recipe};
use simurgh_bench_kit::rounds::{Bench, Job, Options, Sample, Suite};
use simurgh_bench_kit::stats;
use simurgh_bench_kit::target::{Server, Target};

use crate::fairness::memory::MemoryWatch;
use crate::fairness::probe::{Activity, Probe};
use wire::Crowd;

mod kinds;
mod server;
mod wire;

/// Address space of the server: an attack must not take the machine's memory.
const WIDE: u64 = 3 << 30;
/// Time for the memory to come back.
const CALM: Duration = Duration::from_secs(40);
/// Time that the server has to end, at most; the limit is shorter.
const END_MAX: Duration = Duration::from_secs(40);
const MB: f64 = 1e6;

/// What an attack works with.
struct Field<'a> {
    address: SocketAddrV4,
    /// The last part of its address.
    host: u8,
    until: Instant,
    /// A good token.
    token: &'a str,
    /// Figures of this attack alone.
    extra: Mutex<BTreeMap<&'static str, usize>>,
}

impl Field<'_> {
    fn put(&self, name: &'static str, count: usize) {
        self.extra.lock().unwrap_or_else(PoisonError::into_inner).insert(name, count);
    }
}

struct Attack {
    row: &'static str,
    run: fn(&Field<'_>) -> Result<()>,
    /// Shards, all on one core: with several, the home shard of a topic has less of the core than
    /// the shards that send to it have together.
    shards: u32,
    /// ES256 keys; more than one have no `kid`.
    keys: usize,
    history_mib: u32,
    /// Well-behaved clients, each in a topic of its own with a message in its history.
    others: usize,
    /// Further lines of the settings.
    extra: &'static str,
    /// The directory for the histories at the end, if they are saved: `full` is a full disk.
    save: &'static str,
}

const fn usual(row: &'static str, run: fn(&Field<'_>) -> Result<()>) -> Attack {
    Attack { row, run, shards: 1, keys: 1, history_mib: 64, others: 50, extra: "", save: "" }
}

const ATTACKS: [Attack; 19] = [
    Attack { shards: 4, ..usual("tracks", kinds::tracks) },
    Attack { shards: 4, ..usual("new-keys", kinds::rejoins_with_keys) },
    usual("unread-polls", kinds::unread_polls),
    usual("bodies", kinds::unfinished_bodies),
    usual("renewals", kinds::renewals),
    usual("sample", kinds::samples),
    usual("es256", kinds::bad_tokens),
    Attack { keys: 64, ..usual("es256-64", kinds::bad_tokens) },
    usual("changes", kinds::changes),
    usual("rejoins-10", kinds::rejoins_of_10),
    usual("rejoins-50", kinds::rejoins_of_50),
    usual("metas", kinds::large_metas),
    usual("evictions", kinds::evictions),
    Attack { history_mib: 512, ..usual("name-table", kinds::evictions) },
    usual("large-history", kinds::large_joins_history),
    usual("large-token", kinds::large_joins_token),
    Attack { extra: "http_connections_max = 400", ..usual("slots", kinds::http_slots) },
    Attack { history_mib: 256, save: "disk", ..usual("save", kinds::histories) },
    Attack { history_mib: 256, save: "full", ..usual("save-full", kinds::histories) },
];
const ALL: Attack = Attack { shards: 2, others: 1_000, ..usual("all", kinds::all) };

fn attacks() -> impl Iterator<Item = &'static Attack> {
    ATTACKS.iter().chain([&ALL])
}

const ROWS: [&str; ATTACKS.len() + 1] = {
    let mut rows = [ALL.row; ATTACKS.len() + 1];
    let mut at = 0;
    while at < ATTACKS.len() {
        rows[at] = ATTACKS[at].row;
        at += 1;
    }
    rows
};
const JOBS: [Job; ROWS.len()] = {
    let mut jobs = [const { Job::new(ALL.row, run) }; ROWS.len()];
    let mut at = 0;
    while at < ROWS.len() {
        jobs[at].row = ROWS[at];
        at += 1;
    }
    jobs
};

pub(crate) const SUITE: Suite = Suite {
    name: "attacks",
    jobs: &JOBS,
    usual: &ROWS,
    runs: 1,
    clients: (5_000, 5_000),
    order: "a fresh server for each attack; a limit holds for the worst round",
    is_each_judged: true,
    recipes,
};

/// The lines of the table: the same figures for each attack.
fn recipes(_: &Options) -> Result<Vec<Recipe>> {
    let mut all = Vec::new();
    for attack in attacks() {
        let most = server::memory_limit_mb(attack);
        let saves = !attack.save.is_empty();
        let mut line = |figure: &str, measure: &str, unit: &'static str, limit: Option<f64>| {
            all.push(Recipe {
                row: attack.row,
                figure: figure.to_owned(),
                others: None,
                measure: format!("{}: {measure}", attack.row),
                unit,
                digits: 1,
                limit: limit.map(Limit::AtMost),
            });
        };
        line("ended", "server ended in the attack", "", Some(0.0));
        line("idle_mb", "memory before", "MB", None);
        line("over_mb", "most memory over that", "MB", Some(most));
        line("kept_ratio", "memory 40 s later ÷ permitted", "", Some(1.1));
        line("cpu_after_percent", "CPU 40 s later", "%", Some(2.0));
        line("turn_cpu_ms", "longest turn, CPU time", "ms", Some(5.0));
        line("heartbeat_p50_ms", "another client's heartbeat, p50", "ms", None);
        line("heartbeat_p99_ms", "another client's heartbeat, p99", "ms", Some(10.0));
        line("heartbeat_max_ms", "another client's heartbeat, longest", "ms", None);
        line("others_closed", "other clients closed", "", Some(0.0));
        line("histories_lost", "other clients' histories lost", "", Some(0.0));
        line("end_s", "from SIGTERM to the end", "s", Some(6.0));
        if saves {
            line("save_ratio", "most memory while saving ÷ before", "", Some(1.1));
            line("save_wrong", "wrong exit status, or a file left half written", "", Some(0.0));
        }
        if attack.row == "slots" {
            line("others_refused", "other clients' long polls refused", "", Some(0.0));
        }
    }
    Ok(all)
}

fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let attack = attacks().find(|it| it.row == sample.row).context("no such attack")?;
    let save = bench.scratch.join(if attack.save.is_empty() { "none" } else { attack.save });
    fs::create_dir_all(&save)?;
    let is_mounted = attack.save == "full" && is_done("mount", &save);
    if attack.save == "full" && !is_mounted {
        sample.note("no small file system could be mounted: needs root");
        return Ok(());
    }
    let outcome = attacked(bench, attack, &save, sample);
    if is_mounted && !is_done("umount", &save) {
        sample.note(format!("{} is still mounted", save.display()));
    }
    outcome
}

/// Mounts a file system of 8 MB at this place, or takes it away.
fn is_done(program: &str, place: &Path) -> bool {
    let mut command = Command::new(program);
    if program == "mount" {
        command.args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"]);
    }
    command.arg(place).status().is_ok_and(|status| status.success())
}

fn attacked(bench: &Bench<'_>, attack: &Attack, save: &Path, sample: &mut Sample) -> Result<()> {
    let token = server::token(&bench.program, &bench.scratch)?;
    let file = bench.scratch.join("attacks.toml");
    fs::write(&file, server::settings(attack, &bench.scratch)?)?;
    let target = Target::simurgh(&bench.program, attack.shards)?.with_settings(&file).within(WIDE);
    let mut server = target.start(&bench.scratch.join("server-log"))?;
    let memory = MemoryWatch::start(server.pid())?;
    let mut others = others(&server, attack.others)?;
    let idle = memory.idle()?;
    sample.put("idle_mb", idle as f64 / MB);

    let probe = Probe::start(server.address, Activity::Heartbeat)?;
    let begun = Instant::now();
    let options = bench.options;
    let lasts = Duration::from_secs(options.seconds.unwrap_or(options.size(60, 10)));
    let (address, until) = (server.address, begun + lasts);
    let field = Field { address, host: 1, until, token: &token, extra: Mutex::default() };
    if let Err(error) = (attack.run)(&field) {
        sample.note(format!("the attack ended early: {error:#}"));
        // What was begun has its time to do harm.
        simurgh_bench_kit::wait::sleep_until(until);
    }
    let ended = Instant::now();
    for (name, count) in field.extra.into_inner().unwrap_or_else(PoisonError::into_inner) {
        sample.put_count(name, count);
    }
    probe.end()?.put(sample, "heartbeat", begun, ended);
    others.pump(Duration::ZERO)?;
    sample.put_count("others_closed", attack.others - others.open_count());
    let status = server.process.status()?;
    sample.put_count("ended", usize::from(status.is_some()));
    sample.put("over_mb", memory.most().0.saturating_sub(idle) as f64 / MB);
    if let Some(status) = status {
        sample.note(format!("the server ended in the attack: {status}"));
        return Ok(());
    }
    after(&server, attack, idle, sample)?;
    others.pump(Duration::ZERO)?;
    sample.put_count("others_closed", attack.others - others.open_count());
    end(server, &memory, attack, save, sample)
}

/// Well-behaved clients, each in its own topic, where a message is kept.
fn others(server: &Server, count: usize) -> Result<Crowd> {
    let path = "/socket/websocket?vsn=2.0.0";
    let mut crowd = Crowd::sockets(server.address, 200, path, count)?;
    for at in 0..count {
        crowd.push(at, &format!("[\"1\",\"1\",\"rooms:other-{at}\",\"phx_join\",{{}}]"));
    }
    crowd.flush(Duration::from_secs(10))?;
    crowd.rest(Instant::now() + Duration::from_millis(500))?;
    server.publish((0..count).map(|at| format!("rooms:other-{at}")), "{\"body\":\"kept\"}")?;
    crowd.rest(Instant::now() + Duration::from_secs(1))?;
    Ok(crowd)
}

/// Waits for calm; then memory, CPU, turns and histories.
fn after(server: &Server, attack: &Attack, idle: u64, sample: &mut Sample) -> Result<()> {
    // A history may keep what was published.
    let keeps = ["evictions", "name-table", "large-history", "save", "save-full", "all"];
    let kept_mib = if keeps.contains(&attack.row) { attack.history_mib * 2 } else { 0 };
    let permitted = idle as f64 + f64::from(kept_mib) * 1_048_576.0;
    let begun = Instant::now();
    loop {
        let before = server.cpu()?;
        sleep(Duration::from_secs(1));
        let percent = stats::per(usize::try_from(server.spent(&before).unwrap_or(0))?, 10_000_000);
        let kept = server.resident()? as f64;
        sample.put("kept_ratio", kept / permitted);
        sample.put("cpu_after_percent", percent);
        if (kept <= permitted * 1.1 && percent < 2.0) || begun.elapsed() > CALM {
            break;
        }
    }
    sample.put("calm_s", begun.elapsed().as_secs_f64());
    match server.metrics() {
        Ok(lines) => {
            let turns = lines.iter().filter(|it| it.starts_with("simurgh_shard_turn_cpu_max_sec"));
            let turns = turns.filter_map(|it| it.rsplit_once(' ')?.1.parse::<f64>().ok());
            sample.put_some("turn_cpu_ms", turns.reduce(f64::max).map(|it| it * 1e3));
        }
        Err(error) => sample.note(format!("no /metrics: {error:#}")),
    }
    let is_kept = |at: usize| {
        let path = format!("/api/history?topic=rooms:other-{at}");
        server.get(&path).is_ok_and(|answer| answer.to_string().contains("\"kept\""))
    };
    sample.put_count("histories_lost", (0..attack.others).filter(|at| !is_kept(*at)).count());
    Ok(())
}

/// SIGTERM, and how the server ends.
fn end(
    mut server: Server,
    memory: &MemoryWatch,
    attack: &Attack,
    save: &Path,
    sample: &mut Sample,
) -> Result<()> {
    let before = memory.idle()?;
    let begun = Instant::now();
    server.process.signal(Signal::TERM)?;
    let status = loop {
        match server.process.status()? {
            Some(status) => break Some(status),
            None if begun.elapsed() > END_MAX => break None,
            None => sleep(Duration::from_millis(20)),
        }
    };
    sample.put("end_s", begun.elapsed().as_secs_f64());
    let Some(status) = status else {
        sample.note("SIGTERM did not end the server");
        return Ok(());
    };
    if !attack.save.is_empty() {
        sample.put("save_ratio", memory.most().0 as f64 / before as f64);
        let half = fs::read_dir(save)?.flatten().any(|it| it.file_name() != "history");
        let is_wrong = half || status.success() != (attack.save == "disk");
        sample.put_count("save_wrong", usize::from(is_wrong));
        sample.note(format!("saving: {status}, half-written files: {half}"));
    }
    ensure!(attack.save != "disk" || save.join("history").exists(), "nothing was saved");
    Ok(())
}
