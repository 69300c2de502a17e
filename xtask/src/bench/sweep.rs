//! `simurgh load http --sweep` against `hello_page`, and against nginx with a file of the same size
//! as the floor: requests a second and latency from 1 to 512 connections, and the servers' CPU.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use simurgh_bench_kit::process::Process;

use super::read;
use super::record::{Better, Measure};
use super::session::Session;
use crate::files;

/// The numbers of connections that the seeds used.
const CONNECTIONS: &str = "1,2,4,8,16,32,128,256,512";
/// The row that represents a busy server.
const BUSY: u64 = 32;
/// The rows whose tails are compared with nginx's, and the limit of their ratio by the median. With
/// more connections requests only queue.
const TAILS: [u64; 6] = [1, 2, 4, 8, 16, BUSY];
const TAIL_MAX: f64 = 1.2;
/// Bytes of the page, and so of the file.
const PAGE_BYTES: usize = 2_400;
const STARTS_WITHIN: Duration = Duration::from_secs(10);

struct Sweep {
    raw: Value,
    /// The server's CPU per request.
    cpu_us: f64,
}

pub(crate) fn run(session: &mut Session) -> Result<Vec<Measure>> {
    let mut floors = Vec::new();
    let mut pages = Vec::new();
    for run in 1..=session.runs {
        floors.push(sweep(session, "nginx", run)?);
        pages.push(sweep(session, "page", run)?);
    }
    let rate = |it: &Sweep| read::number(&it.raw, "greatest_rate");
    let busy = |path: &'static str| move |it: &Sweep| row(&it.raw, BUSY, path);
    let higher = Better::Higher;
    let mut measures = vec![
        measure("server CPU per request", "µs", &pages, &floors, |it| Ok(it.cpu_us))?,
        Measure {
            better: higher,
            ..measure("greatest rate", "requests/s", &pages, &floors, rate)?
        },
        measure("latency at one connection, p50", "µs", &pages, &floors, |it| {
            row(&it.raw, 1, "latency_us/p50")
        })?,
        measure("latency at 32, p50", "µs", &pages, &floors, busy("latency_us/p50"))?,
    ];
    for connections in TAILS {
        let latency = |it: &Sweep, what: &str| row(&it.raw, connections, what);
        let tail = |it: &Sweep| {
            Ok(latency(it, "latency_us/p99")? / latency(it, "latency_us/p50")?.max(1.0))
        };
        let name = format!("latency at {connections}, p99 ÷ p50");
        let measured = measure(&name, "", &pages, &floors, tail)?;
        measures.push(Measure { limit: Some(TAIL_MAX), ..measured });
    }
    Ok(measures)
}

fn measure(
    name: &str,
    unit: &str,
    pages: &[Sweep],
    floors: &[Sweep],
    figure: impl Fn(&Sweep) -> Result<f64>,
) -> Result<Measure> {
    let figures = |sweeps: &[Sweep]| sweeps.iter().map(&figure).collect::<Result<Vec<f64>>>();
    let measure = Measure {
        name: name.to_owned(),
        unit: unit.to_owned(),
        values: figures(pages)?,
        ..Measure::default()
    };
    Ok(measure.over_floor(figures(floors)?))
}

fn row(raw: &Value, connections: u64, path: &str) -> Result<f64> {
    let rows = raw.get("rows").and_then(Value::as_array).into_iter().flatten();
    let mut rows =
        rows.filter(|row| row.get("connections").and_then(Value::as_u64) == Some(connections));
    let found = rows.next().with_context(|| format!("there is no row of {connections} in it"))?;
    read::number(found, &format!("outcome/{path}"))
}

/// Starts the server on core 0, sweeps from core 1, and ends it.
fn sweep(session: &mut Session, name: &str, run: usize) -> Result<Sweep> {
    let directory = session.directory.join(format!("{name}-server"));
    let started = match name {
        "nginx" => nginx(session, &directory)?,
        _ => hello_page(session)?,
    };
    let (server, address) = started;
    let file = format!("sweep-{name}-{run}.json");
    let swept = measure_one(session, &server, &address, &file);
    drop(server);
    session.remove(&directory);
    swept
}

fn measure_one(
    session: &mut Session,
    server: &Process,
    address: &str,
    file: &str,
) -> Result<Sweep> {
    let (url, json) = (format!("http://{address}/"), session.path(file));
    let time = if session.short { "500ms" } else { "2s" };
    let mut arguments = vec!["load", "http", &url, "--sweep", CONNECTIONS, "--duration", time];
    arguments.extend(["--threads", "1", "--cores", "1", "--json", &json]);
    let before = cpu_ns(server.pid());
    session.simurgh(&arguments, 10)?;
    let spent = cpu_ns(server.pid()).saturating_sub(before);
    session.files.push(file.to_owned());
    let raw = read::json(&session.directory.join(file))?;
    let rows = raw.get("rows").and_then(Value::as_array).into_iter().flatten();
    let requests: f64 = rows.filter_map(|row| read::number(row, "outcome/requests").ok()).sum();
    ensure!(requests >= 1.0, "{file}: no request was answered");
    Ok(Sweep { raw, cpu_us: spent as f64 / requests / 1000.0 })
}

fn hello_page(session: &mut Session) -> Result<(Process, String)> {
    let program = session.program("hello_page");
    listening(session, &["exec", "--core", "0", "--", &program, "--listen", "127.0.0.1:0"])
}

/// The same nginx as in all benchmarks, on core 0, with a file of the page's size.
fn nginx(session: &mut Session, directory: &Path) -> Result<(Process, String)> {
    files::write(&directory.join("root/index.html"), "x".repeat(PAGE_BYTES), 0o644)?;
    let directory = directory.display().to_string();
    listening(session, &["nginx", "--directory", &directory, "--core", "0"])
}

/// Starts a server through `simurgh-bench`, to be killed with us, and waits for its address.
fn listening(session: &mut Session, words: &[&str]) -> Result<(Process, String)> {
    session.note(&format!("simurgh-bench {}", words.join(" ")));
    let mut command = Command::new(session.program("simurgh-bench"));
    let mut server =
        Process::with_output(command.args(words).stdin(Stdio::null()).process_group(0))?;
    let address = server.line("listening on http://", STARTS_WITHIN)?;
    Ok((server, address.split(['/', ' ']).next().unwrap_or_default().to_owned()))
}

/// CPU time of all processes of a group with their threads, ns.
fn cpu_ns(group: u32) -> u64 {
    let processes = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let of_group = processes.filter(|process| {
        let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // After the name in brackets: state, parent, group.
        let behind = stat.rsplit_once(')').map(|(_, behind)| behind.to_owned()).unwrap_or_default();
        behind.split_whitespace().nth(2).and_then(|word| word.parse().ok()) == Some(group)
    });
    let threads =
        of_group.flat_map(|process| fs::read_dir(process.path().join("task")).into_iter());
    let ran = threads.flatten().filter_map(Result::ok).filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    ran.sum()
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn rows_are_found_by_their_connections() {
        let outcome = |p50, p99| serde_json::json!({"latency_us": {"p50": p50, "p99": p99}});
        let raw = serde_json::json!({"greatest_rate": 5.0, "rows": [
            {"connections": 1, "outcome": outcome(70, 90)},
            {"connections": 32, "outcome": outcome(700, 1400)},
        ]});
        assert_eq!(row(&raw, 32, "latency_us/p99").unwrap(), 1400.0);
        assert!(row(&raw, 64, "latency_us/p99").unwrap_err().to_string().contains("row of 64"));
        assert!(row(&raw, 1, "latency_us/p98").is_err());
        let sweeps = [Sweep { raw, cpu_us: 4.0 }];
        let found = measure("x", "µs", &sweeps, &sweeps, |it| Ok(it.cpu_us)).unwrap();
        assert_eq!((found.values, found.ratios), (vec![4.0], vec![1.0]));
    }

    #[test]
    fn cpu_of_a_group_is_that_of_all_its_processes() {
        let script = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; sleep 20 & sleep 20";
        let mut command = Command::new("sh");
        let child = Process::start(command.args(["-c", script]).process_group(0)).unwrap();
        let until = Instant::now() + Duration::from_secs(15);
        while cpu_ns(child.pid()) < 1_000_000 && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
        let spent = cpu_ns(child.pid());
        assert!(spent >= 1_000_000, "{spent}");
        assert_eq!(cpu_ns(u32::MAX), 0);
    }
}
