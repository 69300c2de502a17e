//! `simurgh load http`: the HTTP benchmark; flags and output only.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use simurgh_load::benchmark::{self, BenchmarkError, Job, Outcome, Plan, Row, Runner, Sweep};
use simurgh_load::report;
use simurgh_load::scenario::{AddressRange, Tls};
use simurgh_text::duration;
use simurgh_text::output::{complain, print};
use tracing_subscriber::filter::LevelFilter;

use super::values::{Cores, cores, map, seconds_or_duration, workers};
use crate::settings::Refusal;
use crate::settings::values::{self, LogFormat};
use crate::{logging, signals};

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct HttpFlags {
    /// URL to request, http:// or https://.
    url: String,
    /// Open connections.
    #[arg(short, long, value_name = "N", value_parser = values::count, default_value = "10")]
    connections: usize,
    /// Threads. Default: as many as the connections need.
    #[arg(short, long, value_name = "N", value_parser = workers)]
    threads: Option<usize>,
    /// Time to measure; a plain number is seconds.
    #[arg(short, long, value_name = "TIME", value_parser = seconds_or_duration,
          default_value = "10s")]
    duration: Duration,
    /// Requests per second, due at fixed times; latency counts from the due time. Also 60000/min.
    /// Default: each request follows the previous answer.
    #[arg(short = 'R', long, value_name = "RATE", value_parser = simurgh_load::toml::rate)]
    rate: Option<f64>,
    /// Measures these numbers of connections one after the other, and shows a table, a chart, and
    /// where the server saturates.
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = values::count,
          conflicts_with_all = ["connections", "rate"])]
    sweep: Vec<usize>,
    /// Header, "NAME: VALUE". Repeatable.
    #[arg(short = 'H', long = "header", value_name = "HEADER", value_parser = header)]
    headers: Vec<(String, String)>,
    /// Request method.
    #[arg(short = 'X', long, value_name = "NAME", default_value = "GET")]
    method: String,
    /// Request body: text, or @FILE.
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,
    /// Time limit for an answer or a connection.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2s")]
    timeout: Duration,
    /// Accepted for compatibility with wrk; the distribution is always shown.
    #[arg(long, hide = true)]
    latency: bool,
    /// Accepts any TLS certificate.
    #[arg(long)]
    insecure: bool,
    /// PEM file with more root certificates. Repeatable.
    #[arg(long, value_name = "FILE")]
    roots: Vec<PathBuf>,
    /// Connects to another host, or host:port, than the URL's. Repeatable.
    #[arg(long, value_name = "HOST=ADDR", value_parser = map)]
    map: Vec<(String, String)>,
    /// Source addresses: 10.0.0.2 or 10.0.0.2-10.0.0.9. Repeatable.
    #[arg(long, value_name = "RANGE", value_parser = simurgh_load::toml::address_range)]
    source: Vec<AddressRange>,
    /// Pins threads to these cores in turn: 2,3 or 4-7.
    #[arg(long, value_name = "LIST", value_parser = cores)]
    cores: Option<Cores>,
    /// Writes all figures and histograms to this JSON file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes the table and charts of a sweep to this HTML file.
    #[arg(long, value_name = "FILE", requires = "sweep")]
    html: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Exit status: 0 if it measured, 1 if no request was answered or results could not be written, 2 if\n\
a flag is wrong. The first SIGINT or SIGTERM ends the run and shows its results, a second one\n\
ends it at once.";

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) if !name.is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err(format!("{text:?} is not \"NAME: VALUE\"")),
    }
}

impl HttpFlags {
    fn plan(&self) -> Result<Plan, String> {
        let body = match self.body.as_deref().map(|body| (body, body.strip_prefix('@'))) {
            None => None,
            Some((_, Some(path))) => Some(read(Path::new(path))?),
            Some((text, None)) => Some(text.as_bytes().to_vec()),
        };
        let pem = |path: &PathBuf| {
            String::from_utf8(read(path)?)
                .map_err(|_| format!("{} is not a PEM file", path.display()))
        };
        let roots_pem: Vec<String> = self.roots.iter().map(pem).collect::<Result<_, _>>()?;
        Ok(Plan {
            url: self.url.clone(),
            connections: self.connections,
            threads: self.threads,
            duration: self.duration,
            rate: self.rate,
            timeout: self.timeout,
            method: self.method.clone(),
            headers: self.headers.clone(),
            body,
            tls: Tls { insecure: self.insecure, roots_pem, ..Tls::default() },
            map: self.map.clone(),
            sources: self.source.clone(),
            cores: self.cores.clone().map(|cores| cores.0).unwrap_or_default(),
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

pub(super) fn http(flags: &HttpFlags) -> Result<ExitCode, String> {
    let signals = signals::block()?;
    let _log = logging::start(LevelFilter::WARN, LogFormat::Text);
    let job = match flags.plan().and_then(Job::new) {
        Ok(job) => job,
        Err(why) => return Ok(Refusal(vec![why]).refuse("nothing was sent")),
    };
    if flags.threads.is_some_and(|threads| flags.sweep.is_empty() && threads > flags.connections) {
        let why = "-t must not exceed -c: a thread without a connection does nothing. Lower -t or \
            raise -c."
            .to_owned();
        return Ok(Refusal(vec![why]).refuse("nothing was sent"));
    }
    let mut runner = Runner::default();
    let control = runner.control();
    let listening = signals.first_then_exit(move |_| control.stop(), || ());
    listening.map_err(signals::no_thread)?;
    print(&benchmark::head(job.plan()));
    let has_answers = match flags.sweep.as_slice() {
        [] => one(&mut runner, &job, flags)?,
        rows => sweep(&mut runner, &job, rows, flags)?,
    };
    if has_answers { Ok(ExitCode::SUCCESS) } else { Err("no request was answered".to_owned()) }
}

/// Whether there was any response.
type Measured = Result<bool, String>;

fn one(runner: &mut Runner, job: &Job, flags: &HttpFlags) -> Measured {
    let outcome = runner.run(job, flags.connections).map_err(|error| error.to_string())?;
    print(&benchmark::text(&outcome));
    write_json(flags.json.as_deref(), &outcome)?;
    Ok(has_answers(&outcome))
}

fn sweep(runner: &mut Runner, job: &Job, rows: &[usize], flags: &HttpFlags) -> Measured {
    let mut sweep = Sweep::default();
    let mut failed: Option<BenchmarkError> = None;
    for connections in rows.iter().copied() {
        let expected = sweep.predict(connections);
        if let Some(expected) = &expected {
            print(&benchmark::prediction(connections, expected));
        }
        match runner.run(job, connections) {
            Ok(outcome) => {
                print(&benchmark::text(&outcome));
                sweep.add(outcome, expected);
            }
            // Stopped between two rows: the previous rows are the result.
            Err(BenchmarkError::Stopped) if !sweep.rows().is_empty() => break,
            Err(error) => failed = Some(error),
        }
        let last = sweep.rows().last().filter(|_| failed.is_none());
        if let Some(by) = last.and_then(Row::deviation) {
            print(&format!("Measured average latency: {:+.1} % off the prediction\n", by * 100.0));
        }
        print("\n");
        // The previous rows are shown nevertheless.
        if failed.is_some() || runner.is_stopped() {
            break;
        }
    }
    if !sweep.rows().is_empty() {
        print(&benchmark::table(&sweep));
        print("\n");
        print(&benchmark::chart(&sweep));
        write_json(flags.json.as_deref(), &sweep.report())?;
        if let Some(path) = &flags.html {
            let page = sweep.page(&job.plan().url, &facts(job.plan()));
            written(path, page.as_bytes())?;
        }
    }
    match failed {
        Some(error) => Err(error.to_string()),
        None => Ok(sweep.rows().iter().any(|row| has_answers(&row.outcome))),
    }
}

/// The parameters of the measurement, below the page's title.
fn facts(plan: &Plan) -> String {
    let seconds = plan.duration.as_secs_f64();
    let version = env!("CARGO_PKG_VERSION");
    format!("{} requests, {seconds} s for each row, simurgh {version}", plan.method)
}

fn has_answers(outcome: &Outcome) -> bool {
    outcome.requests > 0
}

fn write_json(path: Option<&Path>, value: &impl serde::Serialize) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(value).map_err(|error| error.to_string())?;
    written(path, text.as_bytes())
}

fn written(path: &Path, bytes: &[u8]) -> Result<(), String> {
    report::write_whole(path, bytes)
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    complain(&format!("wrote {}", path.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_a_name_and_a_value() {
        let pair = |name: &str, value: &str| Ok((name.to_owned(), value.to_owned()));
        assert_eq!(header("X-A: b: c"), pair("X-A", "b: c"));
        assert_eq!(header("X-A:"), pair("X-A", ""));
        for wrong in ["", ":", "X-A", ": b"] {
            assert!(header(wrong).is_err(), "{wrong}");
        }
    }
}
