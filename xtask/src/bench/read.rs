//! Reads the files of all tools into measures.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::record::{Better, Measure};

/// Rows of a table of `simurgh-bench` that are kept although they have no limit.
const KEPT: [&str; 3] =
    ["server CPU per heartbeat", "socket, file and epoll slabs", " connections: p99"];

pub(crate) fn json(path: &Path) -> Result<Value> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let text = fs::read_to_string(path).context(name.clone())?;
    serde_json::from_str(&text).context(name)
}

/// A raw file of `simurgh-bench`: the values of all runs, the floor's, and their ratios.
pub(crate) fn bench_table(raw: &Value, size: &str) -> Result<Vec<Measure>> {
    let rows = raw.get("table").and_then(Value::as_array).context("there is no table in it")?;
    let measures = rows.iter().filter_map(|row| {
        let name = row.get("measure")?.as_str()?.to_owned();
        let number = |key: &str| row.get(key).and_then(Value::as_f64);
        let (at_most, at_least) = (number("at_most"), number("at_least"));
        let is_kept = KEPT.iter().any(|kept| name.contains(kept));
        if at_most.is_none() && at_least.is_none() && !is_kept {
            return None;
        }
        let unit = row.get("unit").and_then(Value::as_str).unwrap_or_default().to_owned();
        // A row compared with a floor of another kind of run has a ratio to that.
        let ratios = numbers(row, "ratio");
        Some(Measure {
            steady: unit == "B",
            better: if at_least.is_some() { Better::Higher } else { Better::Lower },
            size: size.to_owned(),
            values: numbers(row, "simurgh"),
            floor: numbers(row, "floor"),
            ratios,
            limit: at_most.or(at_least),
            name,
            unit,
        })
    });
    some(measures.filter(|measure| !measure.values.is_empty()).collect())
}

fn some(measures: Vec<Measure>) -> Result<Vec<Measure>> {
    let has_values = measures.iter().all(|measure| !measure.values.is_empty());
    ensure!(!measures.is_empty() && has_values, "its table is not what it was");
    Ok(measures)
}

fn numbers(row: &Value, key: &str) -> Vec<f64> {
    let list = row.get(key).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_f64).collect()
}

/// The number at a path of keys and indices, such as `milestones/-1/server_bytes`; -1 is the last.
pub(crate) fn number(raw: &Value, path: &str) -> Result<f64> {
    let mut here = Some(raw);
    for step in path.split('/') {
        here = match (step, here) {
            ("-1", Some(Value::Array(list))) => list.last(),
            (key, Some(value)) => value.get(key),
            (_, None) => None,
        };
    }
    here.and_then(Value::as_f64).with_context(|| format!("there is no {path} in it"))
}

/// The figures that `simurgh drive --sockets N` prints, per socket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Drive {
    /// CPU of creating and joining, ns.
    pub(crate) created_ns: f64,
    /// CPU of a push and its answer, ns.
    pub(crate) pushed_ns: f64,
    /// CPU of a broadcast, ns a socket.
    pub(crate) broadcast_ns: f64,
    /// Resident memory once created and joined, bytes.
    pub(crate) bytes: f64,
}

/// Reads the report of `simurgh drive` with `sockets` sockets.
pub(crate) fn drive(text: &str, sockets: u32) -> Result<Drive> {
    let row = |start: &str| {
        let line = text.lines().find(|line| line.starts_with(start));
        line.with_context(|| format!("no line \"{start}…\" in what it printed"))
    };
    // After the label: time, CPU time, CPU each, rate per second, memory, memory each.
    let fields = |start: &str| -> Result<Vec<f64>> {
        let line = row(start)?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let quantities = words.windows(2).filter_map(|pair| match pair {
            [number, unit] => quantity(number, unit),
            _ => None,
        });
        Ok(quantities.collect())
    };
    let at = |start: &str, index: usize| {
        let found = fields(start)?.get(index).copied();
        found.with_context(|| format!("the line \"{start}…\" is too short"))
    };
    let each = |start: &str| Ok::<_, anyhow::Error>(at(start, 1)? / f64::from(sockets));
    let created = fields("created and joined")?;
    Ok(Drive {
        created_ns: each("created and joined")?,
        pushed_ns: each("pushed ")?,
        broadcast_ns: each("a broadcast to all")?,
        bytes: created.last().copied().context("no memory in what it printed")?,
    })
}

/// A number with a unit of time or memory, in ns or bytes.
fn quantity(number: &str, unit: &str) -> Option<f64> {
    let factor = match unit {
        "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "B" => 1.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return None,
    };
    Some(number.replace(',', "").parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(name: &str) -> std::path::PathBuf {
        crate::root().join("bench/runs/2026-11-21-amd-epyc").join(name)
    }

    #[test]
    fn a_table_of_the_bench_is_read_whole() {
        let measures = bench_table(&json(&kept("server.json")).unwrap(), "18,000").unwrap();
        let named =
            |start: &str| measures.iter().find(|measure| measure.name.starts_with(start)).unwrap();
        let memory = named("user-space bytes");
        assert_eq!((memory.values.len(), memory.ratios.len()), (5, 0));
        assert!(memory.steady && memory.limit == Some(350.0));
        let broadcast = named("server CPU per delivered");
        assert_eq!((broadcast.floor.len(), broadcast.ratios.len()), (6, 5));
        assert!(!broadcast.steady && broadcast.limit == Some(1.12));
        assert!(
            measures.iter().any(|measure| measure.name.starts_with("server CPU per heartbeat"))
        );
        assert!(measures.iter().all(|measure| !measure.name.starts_with("longest turn by")));
    }

    #[test]
    fn a_table_of_fairness_is_read_with_its_limits() {
        let day = crate::root().join("bench/runs/2026-11-22-amd-epyc");
        let raw = json(&day.join("fairness-before.json")).unwrap();
        let measures = bench_table(&raw, "").unwrap();
        let cut: Vec<_> = measures.iter().filter(|it| it.name.ends_with("members cut")).collect();
        assert!(cut.iter().all(|measure| measure.limit == Some(0.0)), "{cut:?}");
        assert_eq!(cut.len(), 5, "three floods and two bursts");
        assert!(measures.iter().all(|measure| measure.better == Better::Lower));
        let rows = raw["table"].as_array().unwrap();
        let limited = rows.iter().filter(|row| row["at_most"].is_number()).count();
        assert_eq!(measures.len(), limited, "each limit is a measure");
    }

    #[test]
    fn a_road_is_read_by_paths() {
        let road = json(&kept("road-18k-1.json")).unwrap();
        let number = |path| number(&road, path);
        assert_eq!(number("milestones/-1/members").unwrap(), 18_000.0);
        assert!(number("milestones/-1/broadcast/server_us").unwrap() > 1.0);
        assert!(number("milestones/-1/broadcast/nothing").is_err());
        assert!(number("milestones/7/members").is_err());
    }

    /// Compared with the real output of the command, from the kept run.
    #[test]
    fn what_drive_prints_is_read() {
        let text = fs::read_to_string(kept("drive.md")).unwrap();
        let (_, first) = text.split_once("drive --sockets 500000`, run 1\n").unwrap();
        let found = drive(first, 500_000).unwrap();
        let rounded = [found.created_ns, found.pushed_ns, found.broadcast_ns, found.bytes]
            .map(|value| (value * 10.0).round() / 10.0);
        assert_eq!(rounded, [450.8, 198.4, 14.8, 161.0]);
        assert!(drive("500,000 sockets on 2 shards\n", 1).is_err());
        assert!(drive(first.split_once("pushed").unwrap().0, 1).is_err());
    }

    #[test]
    fn what_is_no_table_is_said() {
        assert!(bench_table(&serde_json::json!({"rows": []}), "").is_err());
        assert!(bench_table(&serde_json::json!({"table": []}), "").is_err());
        assert!(json(Path::new("/nowhere/x.json")).unwrap_err().to_string() == "x.json");
    }
}
