//! A row of the comparison, and the values that rows are computed from.

use serde::Serialize;

use super::super::machine::{Machine, Reading};
use super::shards;

/// The number of connections to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The connections the server should hold.
    pub connections: u64,
    /// The clients run on the same machine, so that it has both ends of each connection.
    pub local_clients: bool,
}

/// Whether a limit is high enough.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    #[default]
    Enough,
    #[serde(rename = "too small")]
    TooSmall,
    #[serde(rename = "cannot tell")]
    CannotTell,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    /// The common name of the limit.
    pub(crate) name: String,
    /// The value now, for people.
    pub(crate) have: String,
    /// The value that is needed, for people.
    pub(crate) need: String,
    pub(crate) state: State,
    /// How to raise it; a hint if it is enough; the reason if it is unknown.
    pub(crate) how: String,
    /// The effect of the limit, and the trouble if it is too small.
    pub(crate) why: String,
    /// The most connections that it allows; `None` if unknown, or if it only slows connections
    /// down.
    pub(crate) caps: Option<u64>,
    /// The kind of process that is exempt, if this one is; else empty.
    pub(crate) exempt: &'static str,
    /// The setting of the system behind it, if there is one that may be written.
    pub(crate) setting: Option<Setting>,
}

/// A setting of the system that may be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Setting {
    /// The `sysctl` name.
    pub(crate) name: &'static str,
    /// `None`: cannot be read.
    pub(crate) now: Option<Vec<u64>>,
    /// Never less than `now`.
    pub(crate) target: Vec<u64>,
}

/// A new value for a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub(crate) name: &'static str,
    pub(crate) before: Vec<u64>,
    pub(crate) after: Vec<u64>,
}

impl Row {
    /// A row without a setting.
    pub(super) fn of(name: &str, have: impl Into<String>, need: String) -> Self {
        Self { name: name.to_owned(), have: have.into(), need, ..Self::default() }
    }

    /// A limit that must be at least `need`, and is not a setting that may be written here.
    pub(super) fn limit(
        name: &str,
        have: &Reading<u64>,
        need: u64,
        show: fn(u64) -> String,
        how: impl Into<String>,
    ) -> Self {
        match have {
            Ok(have) => Self::of(name, show(*have), show(need)).unless(*have >= need, how),
            Err(why) => Self::of(name, "?", show(need)).unknown(why),
        }
    }

    /// A setting whose numbers must each be at least that of `need`.
    pub(super) fn setting(machine: &Machine, name: &'static str, need: &[u64]) -> Self {
        let now = machine.sysctl(name);
        let target = match now {
            Ok(now) => now.iter().zip(need).map(|(now, need)| *now.max(need)).collect(),
            Err(_) => need.to_vec(),
        };
        Self::with_target(machine, name, shown(need), target)
    }

    /// A setting that must be at least `need`, and is shared with other programs. If it is too
    /// small, it gets `spare` more, so that it does not become too small again at once.
    pub(super) fn with_spare(machine: &Machine, name: &'static str, need: u64, spare: u64) -> Self {
        let target = match machine.number(name) {
            Ok(now) if now >= need => now,
            _ => need.saturating_add(spare),
        };
        Self::with_target(machine, name, grouped(need), vec![target])
    }

    pub(super) fn with_target(
        machine: &Machine,
        name: &'static str,
        need: String,
        target: Vec<u64>,
    ) -> Self {
        let now = machine.sysctl(name);
        let mut row = Self::of(name, now.as_deref().map_or("?".to_owned(), shown), need);
        match &now {
            Ok(now) if *now == target => {}
            Ok(_) => {
                row.state = State::TooSmall;
                row.how = command(name, &target);
            }
            Err(why) => row = row.unknown(why),
        }
        row.setting = Some(Setting { name, now: now.ok().map(<[u64]>::to_vec), target });
        row
    }

    pub(super) fn unknown(self, why: &str) -> Self {
        Self { state: State::CannotTell, how: why.to_owned(), ..self }
    }

    /// The remedy if `is_enough` does not hold.
    pub(super) fn unless(self, is_enough: bool, how: impl Into<String>) -> Self {
        if is_enough { self } else { Self { state: State::TooSmall, how: how.into(), ..self } }
    }

    pub(super) fn why(self, why: impl Into<String>) -> Self {
        Self { why: why.into(), ..self }
    }

    pub(super) fn caps(self, caps: Reading<u64>) -> Self {
        Self { caps: caps.ok(), ..self }
    }

    pub(super) fn change(&self) -> Option<Change> {
        let Setting { name, now, target } = self.setting.as_ref()?;
        let now = now.as_ref()?;
        let is_change = self.state == State::TooSmall && now != target;
        is_change.then(|| Change { name, before: now.clone(), after: target.clone() })
    }

    /// Whether `--apply` makes it enough.
    pub(crate) fn is_changeable(&self) -> bool {
        self.change().is_some()
    }
}

/// Values that several rows use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) wanted: Wanted,
    pub(super) cores: u64,
    /// Ends of each connection on this machine: 1, or 2 with the clients.
    pub(super) ends: u64,
    /// Descriptors of one table, that is, of one shard.
    pub(super) descriptors: u64,
    /// The same with the current settings.
    pub(super) descriptors_now: u64,
    pub(super) shards: u64,
    /// Threads of the clients, 0 where they are elsewhere.
    pub(super) workers: u64,
}

/// The kernel's default, used if the process's limit cannot be read.
const DESCRIPTORS_USUAL: u64 = 4_096;

/// Users that `simurgh load` gives one worker.
pub(super) const USERS_PER_WORKER: u64 = 18_000;

impl Plan {
    pub(super) fn new(machine: &Machine, wanted: Wanted) -> Self {
        let hard = machine.nofile.as_ref().map_or(DESCRIPTORS_USUAL, |limit| limit.hard);
        // No table grows beyond nr_open. Its own row shows if that is too small; the other rows
        // assume that it was raised.
        let open_max = machine.number("fs.nr_open").unwrap_or(u64::MAX);
        let descriptors = hard.min(open_max.max(shards::descriptors(wanted.connections)));
        let per_worker = descriptors.saturating_sub(64).clamp(1, USERS_PER_WORKER);
        let workers = match wanted.local_clients {
            true => wanted.connections.div_ceil(per_worker),
            false => 0,
        };
        Self {
            wanted,
            cores: machine.cores,
            ends: if wanted.local_clients { 2 } else { 1 },
            descriptors,
            descriptors_now: hard.min(open_max),
            shards: machine.cores.max(shards::shards(wanted.connections, descriptors)),
            workers,
        }
    }

    pub(super) fn sockets(&self) -> u64 {
        self.wanted.connections.saturating_mul(self.ends)
    }

    pub(super) fn threads(&self) -> u64 {
        self.shards.saturating_add(self.workers).saturating_add(THREADS_OTHER)
    }
}

/// Threads of server and generator beside shards and workers, with room to spare.
pub(super) const THREADS_OTHER: u64 = 64;

/// The command that writes a setting.
pub(crate) fn command(name: &str, target: &[u64]) -> String {
    match target {
        [one] => format!("sysctl -w {name}={one}"),
        several => format!("sysctl -w {name}=\"{}\"", plain(several)),
    }
}

/// As the kernel writes them, separated by one space.
pub(crate) fn plain(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
}

/// For people: a single number in groups of three digits.
pub(super) fn shown(numbers: &[u64]) -> String {
    match numbers {
        [one] => grouped(*one),
        several => plain(several),
    }
}

/// `1,234,567`; the largest number means no limit.
pub(crate) fn grouped(number: u64) -> String {
    // Settings have the largest signed number for "no limit".
    if number >= i64::MAX as u64 {
        return "unlimited".to_owned();
    }
    simurgh_text::format::grouped(number)
}

/// Rounded down to three digits: no figure here is more exact.
pub(crate) fn about(number: u64) -> u64 {
    let mut unit = 1_u64;
    while number / unit >= 1_000 {
        unit *= 10;
    }
    number / unit * unit
}

pub(super) fn bytes(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        bytes if bytes >= 1e9 => format!("{:.1} GB", bytes / 1e9),
        bytes if bytes >= 1e6 => format!("{:.0} MB", bytes / 1e6),
        bytes => format!("{:.0} kB", bytes / 1e3),
    }
}
