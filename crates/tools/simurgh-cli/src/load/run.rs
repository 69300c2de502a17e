//! One run: its directory, its controls, and its exit status.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use simurgh_load::dashboard::{self, Dashboard, Target};
use simurgh_load::engine::{self, Options, Outcome};
use simurgh_load::meter::Meter;
use simurgh_load::record::{Count, Ending, Record, Warning, figures};
use simurgh_load::report::{self, HtmlReport, Outputs};
use simurgh_load::scenario::Scenario;
use simurgh_load::{fleet, progress};
use simurgh_text::output::{complain, print};
use tracing_subscriber::filter::LevelFilter;

use super::commands;
use super::flags::{AgentFlags, RunFlags, WorkerFlags};
use super::remote_write::RemoteWrite;
use crate::settings::values::LogFormat;
use crate::{logging, signals};

/// Makes the directory of the run; fails if it is not empty, unless `overwrite`.
fn make_directory(out: &Path, overwrite: bool) -> Result<(), String> {
    let shown = out.display();
    std::fs::create_dir_all(out).map_err(|error| format!("cannot make {shown}: {error}"))?;
    let mut entries =
        std::fs::read_dir(out).map_err(|error| format!("cannot read {shown}: {error}"))?;
    if entries.next().is_some() && !overwrite {
        return Err(format!("{shown} is not empty. Choose another --out, or add --overwrite."));
    }
    Ok(())
}

fn keep_scenario(source: Option<&Path>, out: &Path) {
    let Some(source) = source else { return };
    let is_toml = source.extension().is_some_and(|ext| ext.eq_ignore_ascii_case("toml"));
    let copy = out.join(if is_toml { "scenario.toml" } else { "scenario.xml" });
    let is_copy =
        source.canonicalize().is_ok_and(|from| copy.canonicalize().is_ok_and(|to| from == to));
    // A pipe cannot be read twice, and opening it again may block forever.
    if is_copy || !source.is_file() {
        return;
    }
    let kept = std::fs::read(source).and_then(|text| report::write_whole(&copy, &text));
    // The run continues without the copy.
    if let Err(error) = kept {
        complain(&format!("warning: no copy of the scenario in {}: {error}", out.display()));
    }
}

fn options(flags: WorkerFlags) -> Options {
    Options {
        workers: flags.workers,
        cores: flags.cores.map(|cores| cores.0).unwrap_or_default(),
        receive_stamps: flags.kernel_stamps,
    }
}

/// `simurgh-load-NAME-DATE-TIME` in the working directory, in UTC.
fn directory(name: &str, now: SystemTime) -> PathBuf {
    let plain = |char: char| if char.is_ascii_alphanumeric() { char } else { '-' };
    let name: String = name.chars().take(40).map(plain).collect();
    let time = humantime::format_rfc3339_seconds(now).to_string();
    let time = time.replace(['-', ':', 'Z'], "").replace('T', "-");
    Path::new(".").join(format!("simurgh-load-{name}-{time}"))
}

/// Results are written during the run, the summary at the end.
pub(super) fn start(flags: RunFlags, mut scenario: Scenario) -> Result<ExitCode, String> {
    scenario.pass.extend(flags.pass);
    let out = flags.out.unwrap_or_else(|| directory(&scenario.name, SystemTime::now()));
    let signals = signals::block()?;
    make_directory(&out, flags.overwrite)?;
    let _log = logging::start(LevelFilter::WARN, LogFormat::Text);
    let metered = flags.server_cpu.then(|| scenario.clone());
    let prepared = engine::Run::prepare(scenario, &options(flags.workers));
    let prepared = prepared.map_err(|error| error.to_string())?;
    let control = prepared.control();
    let stop = control.clone();
    let listening = signals.first_then_exit(move |_| stop.stop(), || ());
    listening.map_err(signals::no_thread)?;
    if flags.commands {
        commands::read(control.clone())
            .map_err(|error| format!("cannot start the thread that reads commands: {error}"))?;
    }
    let record = prepared.record();
    let target = Target::default();
    let mut outputs = Outputs::in_dir(&out, &mut lock(&record));
    if outputs.failed() {
        // Fails now rather than after hours of load.
        return Err(cannot_write(&out, &lock(&record)));
    }
    keep_scenario(flags.scenario.file.as_deref(), &out);
    outputs.add(HtmlReport::new(&out).with_target(target.clone()));
    if let Some(url) = flags.remote_write {
        outputs.add_or_warn("remote write", RemoteWrite::start(url), &mut lock(&record));
    }
    if !flags.quiet {
        complain(&format!("writing to {}", out.display()));
    }
    let page = flags.dashboard.value().and_then(|address| {
        let (record, control, target) = (Arc::clone(&record), control.clone(), target.clone());
        open_page(dashboard::Options { address, record, control, target })
    });
    // A failed view does not end the run.
    let view = (!flags.quiet).then(|| progress::start(Arc::clone(&record), control.clone()).ok());
    let meter = metered.map(|scenario| Meter::start(&scenario, Arc::clone(&record), target));
    if let Some(Err(error)) = &meter {
        complain(&format!("cannot ask the servers for their CPU time: {error}"));
    }
    let outcome = prepared.go(outputs);
    drop(meter);
    drop(view);
    if let Some(page) = page {
        page.finish();
    }
    let record = lock(&record);
    print(&report::summary(&record));
    Ok(ExitCode::from(status(&outcome, &record)))
}

/// The error of the first file that cannot be written.
fn cannot_write(out: &Path, record: &Record) -> String {
    let first = record.warnings().iter().find_map(|warning| match warning {
        Warning::OutputFailed { output, error } => Some((output, error)),
        _ => None,
    });
    let (file, why) = match first {
        Some((output, error)) => (out.join(output), error.as_str()),
        None => (out.to_owned(), "unknown reason"),
    };
    format!("cannot write {}: {why}; nothing was started, name another --out", file.display())
}

/// A failure to start the live page does not end the run.
fn open_page(options: dashboard::Options) -> Option<Dashboard> {
    match dashboard::start(options) {
        Ok(page) => {
            let address = page.address();
            match page.moved_from() {
                None => complain(&format!("dashboard on http://{address}")),
                Some(taken) => {
                    complain(&format!("dashboard on http://{address} ({taken} is taken)"));
                }
            }
            Some(page)
        }
        Err(error) => {
            complain(&format!("no dashboard: {error}. `--dashboard off` disables it."));
            None
        }
    }
}

fn lock(record: &Mutex<Record>) -> MutexGuard<'_, Record> {
    // Readers do not change the record, so a panic leaves it valid.
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Not done, or not written.
const FAILED: u8 = 1;
/// A condition of `[pass]` does not hold.
const NOT_PASSED: u8 = 3;

fn status(outcome: &Outcome, record: &Record) -> u8 {
    if outcome.outputs_failed || outcome.ending == Ending::Failed {
        return FAILED;
    }
    if outcome.ending == Ending::Finished && record.counts()[Count::UsersStarted] == 0 {
        complain("no user started: check rate and duration of the phases");
        return FAILED;
    }
    let verdicts = figures::verdicts(record, &record.meta().pass);
    if verdicts.is_empty() && figures::nothing_worked(record) {
        complain(
            "nothing worked: there are errors, and no upgrade, HTTP answer or finished user. \
            Is the server running at this address?",
        );
        return FAILED;
    }
    if verdicts.iter().all(|verdict| verdict.passed) { 0 } else { NOT_PASSED }
}

/// Takes part in other hosts' runs until it is stopped.
pub(super) fn agent(flags: &AgentFlags) -> Result<ExitCode, String> {
    let _log = logging::start(LevelFilter::WARN, LogFormat::Text);
    let token = fleet::token(&flags.token).map_err(|why| format!("--token: {why}"))?;
    let log = Arc::new(|line: &str| complain(line));
    let served = fleet::serve(flags.listen, token, log);
    served.map_err(|error| format!("cannot serve as an agent on {}: {error}", flags.listen))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn output_directory_is_named_after_scenario_and_time() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_264_216);
        let expected = Path::new("./simurgh-load-a-b--20261121-123016");
        assert_eq!(directory("a b/", now), expected);
    }
}
