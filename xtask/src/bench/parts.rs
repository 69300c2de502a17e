//! The parts of the whole table: the commands they run, and the measures these yield.

use std::path::Path;

use anyhow::{Context, Result};

use super::instructions;
use super::read::{self, Drive};
use super::record::{Better, Measure};
use super::session::Session;
use crate::engine;

pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) run: fn(&mut Session) -> Result<Vec<Measure>>,
}

/// In the order in which they are run: the longest, most likely to be interrupted, last.
pub(crate) const PARTS: &[Part] = &[
    Part {
        name: "instructions",
        about: "instructions of fixed pieces of work (callgrind)",
        run: count_instructions,
    },
    Part {
        name: "server",
        about: "memory per connection, connect and join, broadcast, heartbeat (simurgh-bench)",
        run: server,
    },
    Part {
        name: "fairness",
        about: "what one client can take from the others (simurgh-bench fairness)",
        run: |session| in_rounds(session, "fairness"),
    },
    Part {
        name: "attacks",
        about: "what hostile clients do to the server (simurgh-bench attacks)",
        run: |session| in_rounds(session, "attacks"),
    },
    Part {
        name: "presence",
        about: "a crowd whose members are present, and a leave (simurgh-bench presence)",
        run: |session| in_rounds(session, "presence"),
    },
    Part {
        name: "history",
        about: "broadcasts that are kept, and a crowd that resumes (simurgh-bench history)",
        run: |session| in_rounds(session, "history"),
    },
    Part {
        name: "cluster",
        about: "several nodes over an engine that may go (simurgh-bench cluster)",
        run: cluster,
    },
    Part {
        name: "timing",
        about: "when simurgh load sends, and what it reports (simurgh-bench-timing)",
        run: timing,
    },
    Part { name: "driver", about: "sockets without a network (simurgh drive)", run: driver },
    Part {
        name: "page",
        about: "hello_page beside nginx (simurgh-bench page)",
        run: |session| requests(session, "page", "page"),
    },
    Part {
        name: "load",
        about: "load http beside wrk (simurgh-bench http-load)",
        run: |session| requests(session, "load", "http-load"),
    },
    Part { name: "road", about: "the road of --size connections (simurgh road)", run: road },
];

/// Runs of the bare loop, and of Simurgh between them.
fn server(session: &mut Session) -> Result<Vec<Measure>> {
    let clients = if session.short { 2_000 } else { 18_000 };
    let (count, runs) = (clients.to_string(), session.runs.to_string());
    let raw = bench_file(session, "server", &["--clients", &count, "--runs", &runs])?;
    read::bench_table(&raw, &format!("{clients} clients"))
}

/// Several nodes, compared with one, and with a bare client of their engine.
fn cluster(session: &mut Session) -> Result<Vec<Measure>> {
    session.engine = Some(engine::installed()?);
    in_rounds(session, "cluster")
}

/// Two rounds are enough: most figures are counts, and each round has both parts of a ratio.
fn in_rounds(session: &mut Session, name: &str) -> Result<Vec<Measure>> {
    let runs = session.runs.min(2).to_string();
    let mut arguments = vec![name, "--runs", &runs];
    arguments.extend(session.short.then_some("--short"));
    let raw = bench_file(session, name, &arguments)?;
    read::bench_table(&raw, if session.short { "short" } else { "" })
}

/// Once: every limit holds for each of thousands of requests.
fn timing(session: &mut Session) -> Result<Vec<Measure>> {
    let out = session.path("timing");
    let mut arguments = vec!["--out", &out];
    arguments.extend(session.short.then_some("--short"));
    let done = session.timing(&arguments, 40);
    let raw = kept(session, "timing", done)?;
    read::bench_table(&raw, if session.short { "short" } else { "" })
}

/// The cost of a request: one side of a pair that is compared.
fn requests(session: &mut Session, name: &str, command: &str) -> Result<Vec<Measure>> {
    let runs = session.runs.to_string();
    let mut arguments = vec![command, "--runs", &runs];
    arguments.extend(session.short.then_some(["--seconds", "1"]).into_iter().flatten());
    let raw = bench_file(session, name, &arguments)?;
    read::bench_table(&raw, "")
}

/// Runs `simurgh-bench`, and keeps the two files that it writes under the part's name.
fn bench_file(session: &mut Session, name: &str, arguments: &[&str]) -> Result<serde_json::Value> {
    let out = session.path(name);
    let arguments: Vec<&str> = arguments.iter().copied().chain(["--out", &out]).collect();
    let done = session.bench(&arguments, 40);
    kept(session, name, done)
}

/// The raw file of a program that has ended like this.
fn kept(session: &mut Session, name: &str, done: Result<String>) -> Result<serde_json::Value> {
    // With faults in the figures it fails but has written its files.
    session.take_text(name, "md")?;
    let file = session.take_text(name, "json")?;
    done?;
    read::json(&file.with_context(|| format!("simurgh-bench has left no file for {name}"))?)
}

/// The built-in chat without the history of its rooms.
fn chat() -> String {
    crate::root().join("bench/chat.toml").display().to_string()
}

/// Sockets by value and through serializer V2. The floor is a fixed piece of similar work without
/// Simurgh code: as many records are made, looked up, traversed and freed.
fn driver(session: &mut Session) -> Result<Vec<Measure>> {
    let sockets: u32 = if session.short { 50_000 } else { 500_000 };
    let (count, chat) = (sockets.to_string(), chat());
    let ways: [(&str, &[&str]); 2] = [("values", &[]), ("V2", &["--serializer", "v2"])];
    let mut floors = Vec::new();
    let mut found: [Vec<Drive>; 2] = Default::default();
    // The first of a series depends on the state of caches and free memory.
    session.bench(&["reference", "--records", &count], 5)?;
    for run in 1..=session.runs {
        let printed = session.bench(&["reference", "--records", &count], 5)?;
        let printed: serde_json::Value =
            serde_json::from_str(printed.trim()).context("reference")?;
        floors.push(read::number(&printed, "record_ns")?);
        for ((way, more), found) in ways.iter().zip(&mut found) {
            let mut arguments = vec!["drive", "--sockets", &count, "--config", &chat];
            arguments.extend(*more);
            let text = session.simurgh(&arguments, 5)?;
            session.keep(&format!("drive-{}-{run}.txt", way.to_lowercase()), &text)?;
            found.push(read::drive(&text, sockets)?);
        }
    }
    let size = format!("{sockets} sockets");
    let measure = |way: &str, what: &str, figure: fn(&Drive) -> f64, runs: &[Drive]| Measure {
        name: format!("{what}, {way}"),
        unit: "ns".to_owned(),
        size: size.clone(),
        values: runs.iter().map(figure).collect(),
        ..Measure::default()
    };
    let mut measures = Vec::new();
    for ((way, _), runs) in ways.iter().zip(&found) {
        for (what, figure) in [
            ("CPU per socket created and joined", (|it| it.created_ns) as fn(&Drive) -> f64),
            ("CPU per push and its answer", |it| it.pushed_ns),
            ("CPU per delivery of a broadcast", |it| it.broadcast_ns),
        ] {
            measures.push(measure(way, what, figure, runs).over_floor(floors.clone()));
        }
        let memory = measure(way, "memory per socket", |it| it.bytes, runs);
        measures.push(Measure { unit: "B".to_owned(), steady: true, ..memory });
    }
    Ok(measures)
}

/// Short roads, each compared with one of the bare server.
fn road(session: &mut Session) -> Result<Vec<Measure>> {
    let size = session.size;
    let runs = session.runs.min(if size > 100_000 { 1 } else { 4 });
    let bare = format!("{} bare-server", session.program("simurgh-bench"));
    let serve = format!("{} serve --config {}", session.program("simurgh"), chat());
    let mut floors = Vec::new();
    let mut roads = Vec::new();
    for run in 1..=runs {
        floors.push(walk(session, size, &format!("road-bare-{run}"), &bare)?);
        roads.push(walk(session, size, &format!("road-{run}"), &serve)?);
    }
    // Figures of the road's file: name, unit, path, whether it is the same on each machine.
    const FIGURES: [(&str, &str, &str, bool); 6] = [
        ("server CPU per connect and join", "µs", "server_us_per_join", false),
        ("server CPU per delivery", "µs", "broadcast/server_us", false),
        ("last of all has the broadcast after", "µs", "broadcast/last_us", false),
        ("a bystander's heartbeat meanwhile, p99", "µs", "broadcast/heartbeats/p99", false),
        ("server memory per connection", "B", "server_bytes", true),
        ("kernel memory per socket", "B", "kernel_bytes", true),
    ];
    let size = format!("{size} connections");
    let measures = FIGURES.iter().map(|(name, unit, path, steady)| {
        // A bare server has almost no memory, and delays heartbeats until a broadcast is over.
        let has_floor = !["server_bytes", "broadcast/heartbeats/p99"].contains(path);
        let path = format!("milestones/-1/{path}");
        let values = |files: &[serde_json::Value]| {
            files.iter().map(|road| read::number(road, &path)).collect::<Result<Vec<f64>>>()
        };
        let measure = Measure {
            name: (*name).to_owned(),
            unit: (*unit).to_owned(),
            better: Better::Lower,
            size: size.clone(),
            values: values(&roads)?,
            steady: *steady,
            ..Measure::default()
        };
        let floor = values(&floors)?;
        Ok(if has_floor { measure.over_floor(floor) } else { Measure { floor, ..measure } })
    });
    measures.collect()
}

/// Runs one road; its file is kept under `name`.
fn walk(session: &mut Session, size: u64, name: &str, server: &str) -> Result<serde_json::Value> {
    let (size, out) = (size.to_string(), session.path(name));
    let mut arguments = vec!["road", "--connections", &size, "--out", &out, "--no-storm"];
    arguments.extend(["--heartbeats", "off", "--dashboard", "off", "--server", server]);
    session.simurgh(&arguments, 60)?;
    let kept = session.take_file(&format!("{name}/road.json"), &format!("{name}.json"))?;
    session.remove(Path::new(&out));
    read::json(&kept)
}

/// The counts that CI compares with their baseline too.
fn count_instructions(session: &mut Session) -> Result<Vec<Measure>> {
    session.note("cargo xtask bench --instructions");
    let counts = instructions::count(&[], 1)?;
    let text = serde_json::to_string_pretty(&counts)? + "\n";
    session.keep("instructions.json", &text)?;
    Ok(instructions::measures(&counts))
}
