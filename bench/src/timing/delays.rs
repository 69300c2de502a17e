//! Percentiles of a server whose delays are known, and the request times of a file of Tsung.

use std::fs;
use std::net::SocketAddrV4;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::stats;

use super::recorder::{self, Record};
use super::{Recorder, load, us};

/// 50 users who each repeat a request.
fn http(server: SocketAddrV4, rounds: u32) -> String {
    format!(
        "[target]\nurl = \"http://{server}\"\n[[phase]]\nduration = \"100ms\"\nusers = 50\n\
         max_users = 50\n[[session]]\nprotocol = \"raw\"\nsteps = [{{ loop = {rounds}, steps = [\
         {{ think = \"3ms\" }}, {{ get = \"/0/{{{{user_id}}}}/x/drawn\" }}] }}]\n"
    )
}

/// 100 users a second, each with some messages.
fn messages(server: SocketAddrV4, seconds: u32) -> String {
    format!(
        "[target]\nurl = \"ws://{server}\"\n[[phase]]\nduration = \"{seconds}s\"\nrate = 100\n\
         [[session]]\nprotocol = \"raw\"\nsteps = [\
         {{ connect = \"/0/{{{{user_id}}}}/upgrade/0\" }}, {{ loop = 20, steps = [\
         {{ think = \"3ms\" }}, {{ send = \"/0/{{{{user_id}}}}/x/drawn\", reply = true }}] }}]\n"
    )
}

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let recorder = Recorder::start()?;
    let (rounds, seconds) = bench.options.size((100, 2), (20, 1));
    for (metric, text) in
        [("http", http(recorder.address, rounds)), ("message", messages(recorder.address, seconds))]
    {
        let ran = load(bench, &text, "toml")?;
        ensure!(ran.status == 0, "status {}: {}", ran.status, ran.printed);
        let log = recorder::log(recorder.address)?;
        let delays = true_delays(&log);
        let report = ran.report.context("no report.json")?;
        let found = of_metric(&report, metric).with_context(|| format!("no {metric}"))?;
        sample.put_count(format!("{metric}_count"), delays.len());
        let count = found["count"].as_u64().unwrap_or(0);
        ensure!(usize::try_from(count)? == delays.len(), "{count} of {} requests", delays.len());
        for (name, of) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)] {
            let reported = found[name].as_f64().context(name)?;
            let truth = stats::quantile(&delays, of).context("nothing was logged")?;
            sample.put(format!("{metric}_{name}_us"), reported);
            sample.put(format!("{metric}_{name}_true_us"), truth);
            let off = 100.0 * (reported / truth - 1.0);
            sample.put(format!("{metric}_{name}_off_percent"), off.abs());
        }
    }
    Ok(())
}

fn true_delays(log: &[Record]) -> Vec<f64> {
    let measured = log.iter().filter(|record| record.part(2) == "x");
    measured.map(|record| us(record.answered_ns[0].saturating_sub(record.at_ns))).collect()
}

fn of_metric<'a>(report: &'a Value, name: &str) -> Option<&'a Value> {
    report["metrics"].as_array()?.iter().find(|metric| metric["name"] == name)
}

fn mean_ms(delays_us: &[f64]) -> f64 {
    delays_us.iter().sum::<f64>() / stats::per(delays_us.len(), 1) / 1e3
}

/// 50 users a second, who think twice and ask for something that takes 20 ms.
fn toml(server: SocketAddrV4) -> String {
    format!(
        "[target]\nurl = \"http://{server}\"\n[[phase]]\nduration = \"4s\"\nrate = 50\n\
         [[session]]\nprotocol = \"raw\"\nsteps = [{{ think = \"10ms\" }}, {{ think = \"10ms\" }}, \
         {{ get = \"/0/0/x/20000\" }}]\n"
    )
}

/// The same number of users, as Tsung has it: think times of which some are random, in a loop.
fn xml(server: SocketAddrV4) -> String {
    format!(
        r#"<?xml version="1.0"?>
<!DOCTYPE tsung SYSTEM "/usr/share/tsung/tsung-1.0.dtd">
<tsung loglevel="warning" version="1.0">
  <clients><client host="localhost" use_controller_vm="true" maxusers="64000"/></clients>
  <servers><server host="{}" port="{}" type="tcp"/></servers>
  <load duration="5" unit="minute"><arrivalphase phase="1" duration="4" unit="second">
    <users maxnumber="200" arrivalrate="50" unit="second"/></arrivalphase></load>
  <sessions><session name="visitor" probability="100" type="ts_http">
    <thinktime value="1"/>
    <for var="i" from="1" to="3" incr="1">
      <thinktime value="0.5" random="true"/><thinktime value="0.01"/>
      <request><http url="/0/0/x/20000" method="GET" version="1.1"/></request>
    </for>
  </session></sessions>
</tsung>
"#,
        server.ip(),
        server.port()
    )
}

/// Mean of the requests in ms, and their number, as Tsung reports them.
fn own_report(tsung: &Path, dir: &Path, text: &str) -> Result<(f64, f64)> {
    fs::create_dir_all(dir)?;
    let file = dir.join("job.xml");
    fs::write(&file, text)?;
    let mut command = Command::new(tsung);
    command.arg("-n").arg("-f").arg(&file).arg("-l").arg(dir.join("out")).arg("start");
    let output = command.env("HOME", dir).output().context("start Tsung")?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    // In a directory named after the minute.
    let mut below = fs::read_dir(dir.join("out")).context(printed)?.flatten();
    let log = below.find_map(|one| fs::read_to_string(one.path().join("tsung.log")).ok());
    let log = log.context("Tsung left no tsung.log")?;
    // Of each ten seconds: count, mean in ms, and more.
    let (mut count, mut sum) = (0.0, 0.0);
    for line in log.lines().filter_map(|line| line.strip_prefix("stats: request ")) {
        let line: Vec<f64> = line.split_whitespace().flat_map(str::parse).collect();
        let [requests, mean, ..] = line.as_slice() else { bail!("tsung.log: {line:?}") };
        count += requests;
        sum += requests * mean;
    }
    Ok((sum / count, count))
}

pub(super) fn tsung(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let recorder = Recorder::start()?;
    let xml = xml(recorder.address);
    for (name, text, kind) in
        [("toml", toml(recorder.address), "toml"), ("xml", xml.clone(), "xml")]
    {
        let ran = load(bench, &text, kind)?;
        ensure!(ran.status == 0, "status {}: {}", ran.status, ran.printed);
        let report = ran.report.context("no report.json")?;
        let metric = of_metric(&report, "http").context("no requests")?;
        let reported = metric["mean"].as_f64().context("no mean")? / 1e3;
        let delays = true_delays(&recorder::log(recorder.address)?);
        let truth = mean_ms(&delays);
        sample.put(format!("tsung_{name}_ms"), reported);
        sample.put(format!("tsung_{name}_true_ms"), truth);
        sample.put(format!("tsung_{name}_off_percent"), 100.0 * (reported / truth - 1.0).abs());
        sample.put_count(format!("tsung_{name}_requests"), delays.len());
    }
    let program = Path::new("/usr/bin/tsung");
    if !program.is_file() {
        sample.note("Tsung is not there");
        return Ok(());
    }
    let (mean, count) = own_report(program, &bench.scratch.join("tsung"), &xml)?;
    sample.put("tsung_own_ms", mean);
    sample.put("tsung_own_requests", count);
    let delays = true_delays(&recorder::log(recorder.address)?);
    sample.put("tsung_own_true_ms", mean_ms(&delays));
    Ok(())
}
