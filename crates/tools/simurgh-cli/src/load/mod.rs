//! `simurgh load`: runs, explains or converts a scenario, or makes the reports of a run again.
//!
//! Nothing is started before flags and scenario are valid. Standard output gets the result (an
//! explanation, a scenario, a summary), standard error the rest.

mod commands;
mod flags;
mod http;
mod remote_write;
mod run;
mod values;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use simurgh_load::scenario::{Diagnostic, Loaded, Machine, Overrides, explain};
use simurgh_load::{report, toml};
use simurgh_text::output::{complain, fail, print};

use crate::settings::Refusal;

pub(crate) use flags::Load;
use flags::{Command, ScenarioFlags};

/// Runs the command, and returns its exit status.
pub(crate) fn load(load: Load) -> ExitCode {
    let done = match load.command {
        None => match read(&load.run.scenario) {
            Ok(loaded) => run::start(load.run, loaded.scenario),
            Err(refusal) => Ok(refusal.refuse("nothing was started")),
        },
        Some(Command::Check { scenario, workers }) => match read(&scenario) {
            Ok(Loaded { scenario, .. }) => {
                let (descriptors, _) = simurgh_reactor::raise_descriptor_limit();
                printed(&explain(
                    &scenario,
                    &Machine::here(&scenario, workers.workers, descriptors),
                ))
            }
            Err(refusal) => Ok(refusal.refuse("`simurgh load reference` lists all keys")),
        },
        Some(Command::Init { file }) => init(file),
        Some(Command::Convert { scenario }) => match read(&scenario) {
            Ok(loaded) => printed(&toml::write(&loaded.scenario)),
            Err(refusal) => Ok(refusal.refuse("nothing was converted")),
        },
        Some(Command::Reference) => printed(&toml::reference()),
        Some(Command::Report { dir }) => {
            report::make(&dir).and_then(|record| printed(&report::summary(&record)))
        }
        Some(Command::Agent(agent)) => run::agent(&agent),
        Some(Command::Http(flags)) => http::http(&flags),
    };
    done.unwrap_or_else(|why| fail(&why))
}

fn printed(text: &str) -> Result<ExitCode, String> {
    print(text);
    Ok(ExitCode::SUCCESS)
}

const EXAMPLE: &str = include_str!("example.toml");

fn init(file: Option<PathBuf>) -> Result<ExitCode, String> {
    let Some(path) = file else { return printed(EXAMPLE) };
    let shown = path.display();
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(&path);
    file.and_then(|mut file| std::io::Write::write_all(&mut file, EXAMPLE.as_bytes()))
        .map_err(|error| format!("cannot write {shown}: {error}"))?;
    complain(&format!("wrote {shown}; `simurgh load check {shown}` explains it"));
    Ok(ExitCode::SUCCESS)
}

/// Reads the scenario and applies the flags; prints warnings.
fn read(flags: &ScenarioFlags) -> Result<Loaded, Refusal> {
    // Clap requires it.
    let path = flags.file.as_deref().unwrap_or(Path::new(""));
    let overrides: Overrides = flags.overrides();
    match simurgh_load::load(path, &overrides) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                complain(&format!("warning: {}", place(path, warning)));
            }
            let unknown = unknown_names(path, &overrides);
            if unknown.is_empty() { Ok(loaded) } else { Err(Refusal(unknown)) }
        }
        Err(faults) => Err(Refusal(faults.0.iter().map(|fault| place(path, fault)).collect())),
    }
}

/// Flags for hosts and tags that the file does not name: a run against other servers than those
/// that were meant.
fn unknown_names(path: &Path, overrides: &Overrides) -> Vec<String> {
    if overrides.map.is_empty() && overrides.exclude_tags.is_empty() {
        return Vec::new();
    }
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).to_ascii_lowercase();
    if text.contains("<!entity") {
        // It may be named in another file.
        return Vec::new();
    }
    let hosts = overrides.map.iter().map(|(name, _)| ("--map", name));
    let tags = overrides.exclude_tags.iter().map(|tag| ("--exclude-tag", tag));
    let unknown = hosts.chain(tags).filter(|(_, name)| {
        let host = name.rsplit_once(':').map_or(name.as_str(), |(host, _)| host);
        !text.contains(&host.to_ascii_lowercase())
    });
    unknown
        .map(|(flag, name)| {
            format!(
                "{flag} {name}: the scenario has no such name; check the \
        spelling"
            )
        })
        .collect()
}

/// `file:line: what (help)`.
fn place(path: &Path, fault: &Diagnostic) -> String {
    let Diagnostic { line, what, help } = fault;
    let path = path.display();
    let line = if *line > 0 { format!(":{line}") } else { String::new() };
    let help = if help.is_empty() { String::new() } else { format!(" ({help})") };
    format!("{path}{line}: {what}{help}")
}
