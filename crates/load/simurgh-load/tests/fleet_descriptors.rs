//! The descriptors of an agent's runs; a process of its own, because it counts its descriptors.
//!
//! None may stay open after a run, and its workers must not have any of the process's own.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use simurgh_load::engine::{Options, Run};
use simurgh_load::fleet::Agent;
use simurgh_load::record::Ending;
use simurgh_load::report::Outputs;
use simurgh_load::scenario::Overrides;
use simurgh_load::toml;

/// The open descriptors in the table of a thread of this process, by what they are.
fn open(thread: &Path) -> Vec<String> {
    let entries = fs::read_dir(thread.join("fd")).into_iter().flatten().flatten();
    let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.map(|link| link.to_string_lossy().into_owned()).collect()
}

fn threads() -> Vec<(String, std::path::PathBuf)> {
    let entries = fs::read_dir("/proc/self/task").unwrap().flatten();
    let named = entries.filter_map(|entry| {
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        Some((name.trim().to_owned(), entry.path()))
    });
    named.collect()
}

/// Waits until ending threads have ended; returns descriptors in the process's table, and threads.
fn settled() -> (usize, usize) {
    let start = Instant::now();
    loop {
        let names = threads();
        let busy = |name: &str| name.starts_with("worker-") || name.starts_with("agent");
        let own = open(Path::new("/proc/self/task").join(std::process::id().to_string()).as_path());
        if !names.iter().any(|(name, _)| busy(name)) {
            return (own.len(), names.len());
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{names:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn twenty_runs_leave_no_descriptor_open_or_visible_to_workers() {
    let any = "127.0.0.1:0".parse().unwrap();
    let agent = Agent::bind(any, "t".into(), Arc::new(|_: &str| ())).unwrap();
    let address = agent.address().unwrap();
    thread::spawn(move || agent.run());
    let text = format!(
        "[target]\nurl = \"ws://127.0.0.1:9\"\n[[phase]]\nduration = \"100ms\"\nrate = 100\n\
         [[session]]\nsteps = [{{ think = \"10ms\" }}]\n\
         [[agent]]\naddress = \"{address}\"\ntoken = \"t\"\n[[agent]]\naddress = \"local\"\n"
    );
    let scenario = toml::read(&text, Path::new(""), &Overrides::default()).unwrap().scenario;
    let mut after_two = None;
    for round in 0..20 {
        let run = Run::prepare(scenario.clone(), &Options::default()).unwrap();
        let workers: Vec<_> = threads();
        let workers: Vec<_> =
            workers.iter().filter(|(name, _)| name.starts_with("worker-")).collect();
        assert_eq!(workers.len(), 2);
        for (name, path) in workers {
            // Its only socket is the end of the hand-off.
            let open = open(path);
            let sockets = open.iter().filter(|what| what.starts_with("socket:")).count();
            assert_eq!(sockets, 1, "{name}: {open:?}");
        }
        assert_eq!(run.go(Outputs::new()).ending, Ending::Finished);
        let now = settled();
        // The second set of shards of a process starts a thread that stays.
        if round == 1 {
            after_two = Some(now);
        }
        if round > 1 {
            assert_eq!(Some(now), after_two, "in round {round}");
        }
    }
}
