//! `simurgh load`: runs a scenario, or says what it would do, or makes its reports again.
//!
//! What was typed (`flags`) becomes a checked scenario and a plain [`Run`](run::Run); nothing is
//! started before both are right. Standard output carries what was asked for (an explanation, a
//! scenario, a summary), standard error the rest.

mod commands;
mod flags;
mod http;
mod run;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use simurgh_load::scenario::{Diagnostic, Loaded, Machine, Overrides, explain};
use simurgh_load::{report, toml};
use simurgh_text::output::{complain, fail, print};

use crate::settings::Refusal;

pub(crate) use flags::Load;
use flags::{Command, ScenarioFlags};

/// Does what was asked for.
pub(crate) fn load(load: Load) -> ExitCode {
    let Some(command) = load.command else {
        return match read(&load.run.scenario) {
            Ok(loaded) => run::start(run::Run::new(load.run, loaded.scenario)),
            Err(refusal) => refusal.refuse("nothing was started"),
        };
    };
    match command {
        Command::Check { scenario, crew } => match read(&scenario) {
            Ok(Loaded { scenario, .. }) => {
                let (descriptors, _) = simurgh_reactor::raise_descriptor_limit();
                let machine = Machine::here(&scenario, crew.workers, descriptors);
                print(&explain(&scenario, &machine));
                ExitCode::SUCCESS
            }
            Err(refusal) => refusal.refuse("`simurgh load init` prints an example"),
        },
        Command::Init { file } => init(file),
        Command::Convert { scenario } => match read(&scenario) {
            Ok(loaded) => {
                print(&toml::write(&loaded.scenario));
                ExitCode::SUCCESS
            }
            Err(refusal) => refusal.refuse("nothing was converted"),
        },
        Command::Report { dir } => again(&dir),
        Command::Agent(agent) => run::agent(agent),
        Command::Http(flags) => http::http(*flags),
    }
}

/// A scenario with comments, to start from.
const EXAMPLE: &str = include_str!("example.toml");

fn init(file: Option<PathBuf>) -> ExitCode {
    let Some(path) = file else {
        print(EXAMPLE);
        return ExitCode::SUCCESS;
    };
    // Never over something that somebody wrote.
    let made = std::fs::OpenOptions::new().write(true).create_new(true).open(&path);
    match made.and_then(|mut file| std::io::Write::write_all(&mut file, EXAMPLE.as_bytes())) {
        Ok(()) => {
            let path = path.display();
            complain(&format!("{path} is written; `simurgh load check {path}` explains it"));
            ExitCode::SUCCESS
        }
        Err(error) => fail(&format!("cannot write {}: {error}", path.display())),
    }
}

fn again(dir: &Path) -> ExitCode {
    match report::make(dir) {
        Ok(record) => {
            print(&report::summary(&record));
            ExitCode::SUCCESS
        }
        Err(why) => fail(&why),
    }
}

/// Reads the scenario, with the flags put into effect; warnings are printed.
fn read(flags: &ScenarioFlags) -> Result<Loaded, Refusal> {
    // Clap has seen to it that there is one.
    let path = flags.file.as_deref().unwrap_or(Path::new(""));
    let overrides: Overrides = flags.overrides();
    match simurgh_load::load(path, &overrides) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                complain(&format!("warning: {}", place(path, warning)));
            }
            Ok(loaded)
        }
        Err(faults) => Err(Refusal(faults.0.iter().map(|fault| place(path, fault)).collect())),
    }
}

/// `file:line: what (help)`.
fn place(path: &Path, fault: &Diagnostic) -> String {
    let Diagnostic { line, what, help } = fault;
    let path = path.display();
    let line = if *line > 0 { format!(":{line}") } else { String::new() };
    let help = if help.is_empty() { String::new() } else { format!(" ({help})") };
    format!("{path}{line}: {what}{help}")
}
