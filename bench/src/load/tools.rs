//! The load generators: the bare client and `simurgh load`, each given the same job in its own
//! language, on the client's core.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use simurgh_bench_kit::process::{self, Process};
use simurgh_bench_kit::target::CLIENT_CORE;
use simurgh_bench_kit::wait;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    /// The bare client, which is the baseline.
    Bare,
    Simurgh,
}

impl Tool {
    /// Both, in the order in which they take turns.
    pub(super) const ALL: [Self; 2] = [Self::Bare, Self::Simurgh];

    /// The beginning of the names of its figures.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::Bare => "bare ",
            Self::Simurgh => "",
        }
    }
}

/// The work of a load generator.
pub(super) struct Job {
    /// For `simurgh load`: a scenario, and the extension of its file's name.
    scenario: Option<(String, &'static str)>,
    /// Flags beside those of every run.
    flags: Vec<String>,
    workers: u32,
}

impl Job {
    /// A scenario in TOML for one worker.
    pub(super) fn toml(text: String) -> Self {
        Self::scenario(text, "toml")
    }

    pub(super) fn scenario(text: String, kind: &'static str) -> Self {
        Self { scenario: Some((text, kind)), flags: Vec::new(), workers: 1 }
    }

    /// Clients of the bare client that arrive at this rate, join and stay, without messages.
    pub(super) fn bare(server: SocketAddrV4, users: usize, rate: u32) -> Self {
        let flags = vec![format!("--server={server}"), format!("--users={users}")];
        Self { scenario: None, flags, workers: 1 }.with(&format!("--rate={rate}"))
    }

    pub(super) fn workers(self, workers: u32) -> Self {
        Self { workers, ..self }
    }

    pub(super) fn with(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }
}

/// The program, and a directory for its files.
pub(super) struct Kit {
    pub(super) simurgh: PathBuf,
    /// A directory of this measurement.
    pub(super) scratch: PathBuf,
}

/// A running load generator; killed when dropped.
pub(super) struct AtWork {
    pub(super) process: Process,
    /// When it was started: before the fork.
    pub(super) started: Instant,
    dir: PathBuf,
}

impl Kit {
    /// Starts the job's load generator on the client's core.
    pub(super) fn start(&self, job: &Job) -> Result<AtWork> {
        self.start_on(job, Some(CLIENT_CORE))
    }

    /// Starts the job's load generator on any core, or on all (`None`).
    pub(super) fn start_on(&self, job: &Job, core: Option<usize>) -> Result<AtWork> {
        // Always new: files of the last run would be taken for those of this one.
        let dir = (0..).map(|number| self.scratch.join(number.to_string())).find(|p| !p.exists());
        let dir = dir.context("no directory is free")?;
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let (program, words) = match &job.scenario {
            None => (std::env::current_exe().context("own path")?, vec!["bare".into()]),
            Some((text, kind)) => {
                let file = dir.join("job").with_extension(kind);
                fs::write(&file, text)?;
                let mut words: Vec<OsString> = vec!["load".into(), file.into()];
                words.extend(["--out".into(), dir.join("out").into()]);
                words.extend(["--dashboard", "off", "--quiet"].map(OsString::from));
                words.push(format!("--workers={}", job.workers).into());
                words.extend(core.map(|core| format!("--cores={core}").into()));
                (self.simurgh.clone(), words)
            }
        };
        let mut command = match core {
            None => Command::new(program),
            Some(core) => process::command(&program, Some(core), None)?,
        };
        let log = File::create(dir.join("log"))?;
        command.args(words).args(&job.flags).stdout(log.try_clone()?).stderr(log);
        let started = Instant::now();
        Ok(AtWork { process: Process::start(&mut command)?, started, dir })
    }
}

impl AtWork {
    /// An error if it has ended.
    pub(super) fn must_run(&mut self) -> Result<()> {
        match self.process.status()? {
            None => Ok(()),
            Some(status) => bail!("the load generator ended early, {status}; see its log"),
        }
    }

    pub(super) fn wait(&mut self, within: Duration) -> Result<()> {
        let poll = Duration::from_millis(20);
        wait::until("the load generator ends", within, poll, || {
            Ok(self.process.status()?.is_some())
        })
    }

    /// The report of `simurgh load`, written at its end.
    pub(super) fn report(&self) -> Result<Report> {
        let path = self.dir.join("out/report.json");
        let text = fs::read_to_string(&path).with_context(|| {
            let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            format!("no report.json; it printed: {}", log.trim())
        })?;
        let report = Report(serde_json::from_str(&text).context("report.json")?);
        ensure!(report.0["format"] == 1, "report.json has another format");
        Ok(report)
    }

    /// Ends it, and removes its directory.
    pub(super) fn end(self) {
        drop(self.process);
        // The directory of temporary files is removed later anyway.
        let _ = fs::remove_dir_all(self.dir);
    }
}

pub(super) struct Report(Value);

impl Report {
    /// A count; 0 if it is not in the report.
    pub(super) fn count(&self, name: &str) -> f64 {
        self.0["counts"][name].as_f64().unwrap_or(0.0)
    }

    pub(super) fn metric(&self, name: &str, value: &str) -> Option<f64> {
        let all = self.0["metrics"].as_array()?;
        all.iter().find(|metric| metric["name"] == name)?[value].as_f64()
    }

    /// The parts of it that are kept with the figures.
    pub(super) fn kept(&self) -> Value {
        let keys = ["counts", "metrics", "errors", "warnings", "cpu_s", "at_s", "ending"];
        keys.iter().map(|key| ((*key).to_owned(), self.0[*key].clone())).collect()
    }

    pub(super) fn complaints(&self) -> Vec<String> {
        let of = |list: &str, text: &str, count: &str| -> Vec<String> {
            let all = self.0[list].as_array().cloned().unwrap_or_default();
            all.iter().map(|one| format!("{list}: {} {}", one[text], one[count])).collect()
        };
        [of("errors", "kind", "count"), of("warnings", "text", "code")].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_reports_are_parsed_by_field_name() {
        let report = Report(serde_json::json!({
            "counts": { "joins": 5 },
            "metrics": [{ "name": "join", "p99": 7 }, { "name": "push", "p99": 9 }],
            "errors": [{ "kind": "reset", "count": 2 }],
            "warnings": [],
        }));
        assert!((report.count("joins") - 5.0).abs() < 1e-9 && report.count("leaves") < 1e-9);
        assert_eq!(report.metric("push", "p99"), Some(9.0));
        assert_eq!(report.metric("leave", "p99"), None);
        assert_eq!(report.complaints(), ["errors: \"reset\" 2"]);
    }
}
