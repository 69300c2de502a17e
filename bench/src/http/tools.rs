//! wrk and `simurgh load http`, each with the same job, on the client's core.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde_json::Value;

use super::wrk;
use simurgh_bench_kit::process::{self, Process};
use simurgh_bench_kit::stats;
use simurgh_bench_kit::target::CLIENT_CORE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    Wrk,
    Simurgh,
}

/// The figures that a tool reports of its run, and the run's cost.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) requests: f64,
    pub(super) seconds: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// p50 and p99 without wrk's correction, which the others have.
    pub(super) measured_us: Option<(f64, f64)>,
    /// CPU time of its process from start to end, user and system, seconds.
    pub(super) cpu_s: f64,
}

/// Runs a tool in a closed loop over this many connections, on the client's core.
pub(super) fn run(
    tool: Tool,
    program: &Path,
    url: &str,
    connections: usize,
    time: Duration,
    scratch: &Path,
) -> Result<Figures> {
    let json = scratch.join("simurgh.json");
    let name = program.display();
    let mut words: Vec<OsString> = match tool {
        Tool::Wrk => vec!["--latency".into()],
        Tool::Simurgh => vec!["load".into(), "http".into(), "--json".into(), json.clone().into()],
    };
    words.extend(["-t1".into(), format!("-c{connections}").into()]);
    words.extend([format!("-d{}s", time.as_secs()).into(), url.into()]);
    let before = children_cpu()?;
    let mut command = process::command(program, Some(CLIENT_CORE), None)?;
    let process = Process::with_output(command.args(&words).stderr(Stdio::null()))?;
    let ended = process.finish(time + Duration::from_secs(20));
    let (status, text) = ended.with_context(|| name.to_string())?;
    let cpu_s = children_cpu()? - before;
    ensure!(status.success(), "{name} failed: {status}: {text}");
    ensure!(!text.contains("Socket errors"), "{name} had errors:\n{text}");
    let figures = match tool {
        Tool::Wrk => wrk::parse(&text, time).with_context(|| format!("not wrk's form:\n{text}")),
        Tool::Simurgh => of_json(&serde_json::from_slice(&fs::read(&json)?)?),
    };
    Ok(Figures { cpu_s, ..figures? })
}

/// CPU seconds of all children that have been waited for.
fn children_cpu() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(stats::per(u64::try_from(micros)?, 1_000_000))
}

fn of_json(run: &Value) -> Result<Figures> {
    let figure = |path: &str| {
        run.pointer(path).and_then(Value::as_f64).with_context(|| format!("no {path}"))
    };
    Ok(Figures {
        requests: figure("/requests")?,
        seconds: figure("/elapsed_s")?,
        p50_us: figure("/latency_as_wrk_us/p50")?,
        p99_us: figure("/latency_as_wrk_us/p99")?,
        measured_us: Some((figure("/latency_us/p50")?, figure("/latency_us/p99")?)),
        cpu_s: 0.0,
    })
}
