//! Any text as a scenario: it is read, or refused with a line number. A scenario that was read can
//! be checked and explained, and is the same when it is written and read again.
use std::path::Path;

use simurgh_load::scenario::{Machine, Overrides, check, explain};
use simurgh_load::toml;

/// Addresses instead of names: nothing is looked up while fuzzing.
const HOSTS: [&str; 2] = ["127.0.0.1", "::1"];

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // Names of hosts and files would make the outcome depend on the machine.
    let urls = text.matches("://").count();
    let known: usize = HOSTS.iter().map(|host| text.matches(&format!("//{host}")).count()).sum();
    let known = known + text.matches("//[::1]").count();
    if urls != known || text.contains("files") || text.contains("tls") {
        return;
    }
    let overrides = Overrides::default();
    let nowhere = Path::new("/nonexistent");
    let scenario = match toml::read(text, nowhere, &overrides) {
        Ok(loaded) => loaded.scenario,
        Err(faults) => {
            assert!(!faults.0.is_empty());
            let lines = text.lines().count().max(1) as u32 + 1;
            assert!(faults.0.iter().all(|fault| (1..=lines).contains(&fault.line)), "{faults}");
            return;
        }
    };
    let _ = check(&scenario);
    let machine = Machine { workers: 1, descriptors: 20_000, memory_bytes: None };
    assert!(!explain(&scenario, &machine).is_empty());
    let written = toml::write(&scenario);
    match toml::read(&written, nowhere, &overrides) {
        Ok(again) => assert_eq!(again.scenario.without_lines(), scenario.without_lines()),
        Err(faults) => panic!("{faults}\n{written}"),
    }
}
