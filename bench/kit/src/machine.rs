//! When, where and from which sources something was measured.

use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Model of the processor.
    pub processor: String,
    /// Cores of the machine, also when the process is pinned to fewer.
    pub cores: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// Version of the kernel.
    pub kernel: String,
}

impl Machine {
    /// This machine.
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let memory = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        Self {
            processor: field(&cpuinfo, "model name")
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            memory: memory.unwrap_or(0) * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }

    /// The processor as part of a file's name: `amd-epyc`.
    pub fn slug(&self) -> String {
        let processor = self.processor.to_lowercase();
        let words = processor.split(|c: char| !c.is_ascii_alphanumeric());
        let words = words.filter(|word| !word.is_empty() && !["r", "tm", "cpu"].contains(word));
        words.take(4).collect::<Vec<_>>().join("-")
    }

    /// The directory below `bench/runs` for today's runs on this machine.
    pub fn runs_of_today(&self) -> String {
        format!("{}-{}", date(), self.slug())
    }
}

fn field(text: &str, name: &str) -> Option<String> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(rest.trim_start_matches([' ', '\t', ':']).trim_end().to_owned())
}

/// The first line of a program's output; `None` if the program fails.
pub fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    output.status.success().then(|| text.lines().next().unwrap_or_default().trim().to_owned())
}

/// The commit, and whether the sources differ from it.
pub fn commit() -> String {
    let Some(head) = first_line("git", &["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    match first_line("git", &["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => head,
        _ => format!("{head} with uncommitted changes"),
    }
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Today in UTC, `yyyy-mm-dd`.
pub fn date() -> String {
    first_line("date", &["--utc", "+%F"]).unwrap_or_else(|| "unknown-day".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_description_has_a_short_name() {
        let named = |processor: &str| Machine { processor: processor.into(), ..Machine::default() };
        assert_eq!(named("AMD EPYC").slug(), "amd-epyc");
        let intel = "Intel(R) Xeon(R) CPU E5-2676 v3 @ 2.40GHz";
        assert_eq!(named(intel).slug(), "intel-xeon-e5-2676");
    }

    #[test]
    fn proc_fields_are_parsed() {
        assert_eq!(field("model name\t: AMD EPYC\n", "model name"), Some("AMD EPYC".into()));
        assert_eq!(field("MemTotal:       24683 kB\n", "MemTotal"), Some("24683 kB".into()));
        assert_eq!(field("x", "y"), None);
    }

    #[test]
    fn own_machine_is_described() {
        let here = Machine::here();
        assert!(here.cores > 0 && here.memory > 0 && !here.slug().is_empty());
        assert_eq!(date().len(), 10);
    }
}
