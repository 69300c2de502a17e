//! Reads the limits of this machine from `/proc` and `/sys` below a root directory, which tests
//! make up.
//!
//! Each value is its own [`Reading`], so that the others remain if one cannot be read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A value, or the reason for its absence, for people.
pub(crate) type Reading<T> = Result<T, String>;

/// Everything that [`super::needs`] depends on.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    /// Cores this process may use.
    pub(crate) cores: u64,
    /// Bytes of a page, the unit of `tcp_mem`.
    pub(crate) page_bytes: u64,
    /// By `sysctl` name; each has as many numbers as in `SYSCTLS`.
    sysctls: BTreeMap<&'static str, Reading<Vec<u64>>>,
    /// `RLIMIT_NOFILE`.
    pub(crate) nofile: Reading<Limit>,
    /// `RLIMIT_NPROC`.
    pub(crate) nproc: Reading<Limit>,
    pub(crate) threads: Reading<u64>,
    pub(crate) memory: Reading<Memory>,
    /// Entries of the table of established connections.
    pub(crate) established_entries: Reading<u64>,
    /// Packets dropped since boot because a core's queue of received packets was full.
    pub(crate) backlog_drops: Reading<u64>,
    /// Memory limits of the control groups around this process, innermost first.
    pub(crate) memory_groups: Vec<Reading<Group>>,
    pub(crate) thread_groups: Vec<Reading<Group>>,
    /// Whether this process may change settings of the system; `None` if that is unknown.
    pub(crate) is_root: Option<bool>,
}

/// A limit of the process; `u64::MAX` is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) soft: u64,
    pub(crate) hard: u64,
}

/// In bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    /// The kernel's estimate of available memory without swapping.
    pub(crate) available: u64,
}

/// One limit of one control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    /// The path of the limit.
    pub(crate) file: String,
    pub(crate) limit: u64,
    /// Without reclaimable memory.
    pub(crate) used: u64,
}

impl Group {
    pub(crate) fn room(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// The settings that are read, how many numbers each has, and whether `--undo` may write it: the
/// file that root reads may come from any user.
pub(crate) const SYSCTLS: &[(&str, usize, bool)] = &[
    ("fs.epoll.max_user_watches", 1, true),
    ("fs.file-max", 1, true),
    ("fs.file-nr", 3, false),
    ("fs.nr_open", 1, true),
    ("kernel.pid_max", 1, true),
    ("kernel.threads-max", 1, true),
    ("net.core.netdev_max_backlog", 1, true),
    ("net.core.somaxconn", 1, true),
    ("net.ipv4.ip_local_port_range", 2, true),
    ("net.ipv4.tcp_max_orphans", 1, true),
    ("net.ipv4.tcp_max_syn_backlog", 1, true),
    ("net.ipv4.tcp_max_tw_buckets", 1, true),
    ("net.ipv4.tcp_mem", 3, true),
    ("net.ipv4.tcp_rmem", 3, true),
    ("net.ipv4.tcp_syncookies", 1, false),
    ("net.ipv4.tcp_wmem", 3, true),
    ("net.netfilter.nf_conntrack_count", 1, false),
    ("net.netfilter.nf_conntrack_max", 1, true),
    ("vm.max_map_count", 1, true),
];

impl Machine {
    /// Reads the files below `root`, which is `/` except in tests. Fails only without `/proc/sys`.
    pub(crate) fn read(root: &Path, cores: u64) -> Result<Self, String> {
        let at = Root(root);
        if !at.path("proc/sys").is_dir() {
            return Err(format!(
                "there is no {}: this command reads what Linux says there; mount proc, or run it \
                 on the machine that serves",
                at.path("proc/sys").display()
            ));
        }
        let sysctls = SYSCTLS.iter().map(|(name, fields, _)| (*name, at.sysctl(name, *fields)));
        let mounts = at.text("proc/self/mountinfo");
        let own = at.text("proc/self/cgroup");
        let groups = |kind: &Kind| match (&own, &mounts) {
            (Ok(own), Ok(mounts)) => at.groups(own, mounts, kind),
            // Without control groups nothing is limited.
            _ => Vec::new(),
        };
        let limits = at.text("proc/self/limits");
        let status = at.text("proc/self/status");
        Ok(Self {
            cores: cores.max(1),
            page_bytes: rustix::param::page_size() as u64,
            sysctls: sysctls.collect(),
            nofile: limits.clone().and_then(|text| limit(&text, "Max open files")),
            nproc: limits.and_then(|text| limit(&text, "Max processes")),
            threads: at.text("proc/loadavg").and_then(|text| threads(&text)),
            memory: at.text("proc/meminfo").and_then(|text| memory(&text)),
            established_entries: at.established_entries(),
            backlog_drops: at.text("proc/net/softnet_stat").and_then(|text| drops(&text)),
            memory_groups: groups(&MEMORY),
            thread_groups: groups(&THREADS),
            is_root: status.ok().and_then(|text| is_root(&text)),
        })
    }

    pub(crate) fn sysctl(&self, name: &str) -> Reading<&[u64]> {
        match self.sysctls.get(name) {
            Some(Ok(values)) => Ok(values),
            Some(Err(why)) => Err(why.clone()),
            None => Err(format!("{name} is not read")),
        }
    }

    /// The first number of a setting; most have only one.
    pub(crate) fn number(&self, name: &str) -> Reading<u64> {
        let values = self.sysctl(name)?;
        values.first().copied().ok_or_else(|| format!("{name} is empty"))
    }
}

pub(crate) fn sysctl_path(root: &Path, name: &str) -> PathBuf {
    root.join("proc/sys").join(name.replace('.', "/"))
}

/// The most bytes that are read of a file: more than a list of a few thousand mounts. A path may
/// lead to an endless file by mistake.
const TEXT_BYTES_MAX: u64 = 1 << 20;

pub(crate) fn read_text(path: &Path) -> Reading<String> {
    let mut text = String::new();
    let read =
        File::open(path).and_then(|file| file.take(TEXT_BYTES_MAX).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(format!("{} does not exist", path.display()))
        }
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

/// `fields` whole numbers separated by white space.
pub(crate) fn numbers(text: &str, fields: usize) -> Reading<Vec<u64>> {
    let text = text.trim();
    let values: Option<Vec<u64>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
    match values {
        Some(values) if values.len() == fields => Ok(values),
        _ => {
            let shown: String = text.chars().take(40).collect();
            let numbers = if fields == 1 { "number" } else { "numbers" };
            Err(format!("holds {shown:?}, not {fields} {numbers}"))
        }
    }
}

struct Root<'a>(&'a Path);

impl Root<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn text(&self, name: &str) -> Reading<String> {
        read_text(&self.path(name))
    }

    fn sysctl(&self, name: &str, fields: usize) -> Reading<Vec<u64>> {
        let path = sysctl_path(self.0, name);
        let text = read_text(&path).map_err(|why| match name.starts_with("net.") {
            // Some network settings exist once, and are shown only in the first name space.
            true => format!("{why}; in a container, look on the host"),
            false => why,
        })?;
        numbers(&text, fields).map_err(|why| format!("{} {why}", path.display()))
    }

    /// A name space that shares the table of the first one shows its size as a negative number.
    fn established_entries(&self) -> Reading<u64> {
        let path = sysctl_path(self.0, "net.ipv4.tcp_ehash_entries");
        let text = read_text(&path).map_err(|why| {
            format!(
                "{why} (before Linux 6.1): see dmesg for \"TCP established hash table entries\""
            )
        })?;
        match numbers(text.trim().trim_start_matches('-'), 1).as_deref() {
            Ok([entries]) if *entries > 0 => Ok(*entries),
            _ => Err(format!("{} holds {:?}, which is not a size", path.display(), text.trim())),
        }
    }

    /// The limits of one kind, from the group of this process up to the mounted root.
    fn groups(&self, own: &str, mounts: &str, kind: &Kind) -> Vec<Reading<Group>> {
        let mut found = Vec::new();
        for mount in mounts.lines().filter_map(Mount::parse) {
            let Some((files, is_v2)) = mount.files(kind) else { continue };
            let Some(path) = own.lines().find_map(|line| path_of(line, kind, is_v2)) else {
                continue;
            };
            let top = self.path(mount.point.trim_start_matches('/'));
            // A path outside the mount belongs to another name space.
            let below = Path::new(path).strip_prefix(mount.root).unwrap_or(Path::new(""));
            let is_plain =
                below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
            let mut directory = if is_plain { top.join(below) } else { top.clone() };
            loop {
                found.extend(files.limit(&directory));
                if directory == top || !directory.pop() {
                    break;
                }
            }
        }
        found
    }
}

/// A kind of limit, and its files in either version of control groups.
struct Kind {
    controller: &'static str,
    v1: Files,
    v2: Files,
}

struct Files {
    limit: &'static str,
    used: &'static str,
    /// The part of `used` that the kernel can reclaim: a file, and a line of it.
    reclaimable: Option<(&'static str, &'static str)>,
}

const MEMORY: Kind = Kind {
    controller: "memory",
    v1: Files {
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        reclaimable: Some(("memory.stat", "total_inactive_file")),
    },
    v2: Files {
        limit: "memory.max",
        used: "memory.current",
        reclaimable: Some(("memory.stat", "inactive_file")),
    },
};

const THREADS: Kind = Kind {
    controller: "pids",
    v1: Files { limit: "pids.max", used: "pids.current", reclaimable: None },
    v2: Files { limit: "pids.max", used: "pids.current", reclaimable: None },
};

/// Without a limit, version 1 has the largest number of whole pages.
const UNLIMITED: u64 = 1 << 60;

impl Files {
    fn limit(&self, directory: &Path) -> Option<Reading<Group>> {
        let file = directory.join(self.limit);
        // The root group, and groups whose controller is off, have no limit.
        let text = read_text(&file).ok()?;
        if text.trim() == "max" {
            return None;
        }
        let limit = match numbers(&text, 1).as_deref() {
            Ok([limit]) => *limit,
            Ok(_) => return None,
            Err(why) => return Some(Err(format!("{} {why}", file.display()))),
        };
        if limit >= UNLIMITED {
            return None;
        }
        let number = |name: &str| -> Option<u64> {
            numbers(&read_text(&directory.join(name)).ok()?, 1).ok()?.first().copied()
        };
        let reclaimable = self.reclaimable.and_then(|(name, line)| {
            let text = read_text(&directory.join(name)).ok()?;
            text.lines().find_map(|one| one.strip_prefix(line)?.trim().parse::<u64>().ok())
        });
        let used = number(self.used).unwrap_or(0).saturating_sub(reclaimable.unwrap_or(0));
        Some(Ok(Group { file: file.display().to_string(), limit, used }))
    }
}

/// A line of `mountinfo` (proc_pid_mountinfo(5)): the root of the mount within its file system,
/// where it is, and what it is.
struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1).unwrap_or(""));
        Some(Self { root, point, kind, options })
    }

    /// The files of a kind of limit, and whether they are those of version 2.
    fn files<'k>(&self, kind: &'k Kind) -> Option<(&'k Files, bool)> {
        match self.kind {
            "cgroup2" => Some((&kind.v2, true)),
            "cgroup" if self.options.split(',').any(|option| option == kind.controller) => {
                Some((&kind.v1, false))
            }
            _ => None,
        }
    }
}

/// The path in a line of `/proc/self/cgroup`, if it is of this hierarchy.
fn path_of<'a>(line: &'a str, kind: &Kind, is_v2: bool) -> Option<&'a str> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let is_it = match is_v2 {
        true => number == "0" && controllers.is_empty(),
        false => controllers.split(',').any(|controller| controller == kind.controller),
    };
    is_it.then_some(path)
}

/// A line of `/proc/self/limits`: name, soft, hard, unit.
fn limit(text: &str, name: &str) -> Reading<Limit> {
    let wrong = || format!("the process's limits have no readable line {name:?}");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or_else(wrong)?;
    let mut words = line.split_whitespace();
    let mut value = || match words.next()? {
        "unlimited" => Some(u64::MAX),
        word => word.parse().ok(),
    };
    match (value(), value()) {
        (Some(soft), Some(hard)) => Ok(Limit { soft, hard }),
        _ => Err(wrong()),
    }
}

/// The second number of the fourth word of `/proc/loadavg`.
fn threads(text: &str) -> Reading<u64> {
    let word = text.split_whitespace().nth(3).and_then(|word| word.split_once('/'));
    word.and_then(|(_, all)| all.parse().ok())
        .ok_or_else(|| "/proc/loadavg does not say how many threads there are".to_owned())
}

fn memory(text: &str) -> Reading<Memory> {
    let bytes = |name: &str| {
        kilobytes(text, name).ok_or_else(|| format!("/proc/meminfo has no readable line {name}"))
    };
    Ok(Memory { total: bytes("MemTotal:")?, available: bytes("MemAvailable:")? })
}

/// The value of a line such as `MemTotal:   123 kB`, in bytes.
pub fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    Some(kib.saturating_mul(1024))
}

/// The second column, in hexadecimal, of a line for each core.
fn drops(text: &str) -> Reading<u64> {
    let columns = text.lines().map(|line| line.split_whitespace().nth(1));
    columns
        .map(|column| u64::from_str_radix(column?, 16).ok())
        .sum::<Option<u64>>()
        .ok_or_else(|| "/proc/net/softnet_stat has an unknown format".to_owned())
}

/// Whether the effective user, the second of four, is root.
fn is_root(status: &str) -> Option<bool> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    Some(ids.split_whitespace().nth(1)? == "0")
}

#[cfg(test)]
mod tests {
    use super::super::fake_machine::FakeMachine;
    use super::*;

    fn read(fake: &FakeMachine) -> Machine {
        Machine::read(fake.root(), 2).unwrap()
    }

    /// Version 2, with the process in group `own` and `root` mounted at /sys/fs/cgroup.
    fn groups_v2(fake: &FakeMachine, own: &str, root: &str) {
        fake.set("proc/self/cgroup", &format!("0::{own}\n"));
        fake.set(
            "proc/self/mountinfo",
            &format!(
                "22 1 8:1 / / rw,relatime shared:1 - ext4 {0} rw\n\
                 31 23 0:28 {root} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n",
                "/dev/sda1"
            ),
        );
    }

    #[test]
    fn all_values_of_a_typical_machine_are_read() {
        let machine = read(&FakeMachine::usual());
        assert_eq!(machine.sysctl("net.ipv4.tcp_mem"), Ok([287_901, 383_868, 575_802].as_slice()));
        assert_eq!(machine.number("fs.file-nr"), Ok(544));
        assert_eq!(machine.nofile, Ok(Limit { soft: 1_024, hard: 20_000 }));
        assert_eq!(machine.threads, Ok(103));
        assert_eq!(machine.memory.unwrap().total, 24 << 30);
        assert_eq!(machine.established_entries, Ok(262_144));
        assert_eq!(machine.backlog_drops, Ok(0x8b1));
        assert_eq!(machine.is_root, Some(true));
        assert!(machine.memory_groups.is_empty() && machine.thread_groups.is_empty());
    }

    #[test]
    fn missing_or_malformed_values_are_named() {
        let fake = FakeMachine::usual();
        fake.remove("proc/sys/fs/file-max");
        fake.set("proc/sys/fs/nr_open", "many\n");
        fake.set("proc/sys/net/ipv4/tcp_mem", "1 2\n");
        fake.set("proc/sys/net/core/somaxconn", "-1\n");
        fake.set("proc/self/limits", "Max open files  many  20000 files\n");
        fake.set("proc/meminfo", "MemTotal: 5 kB\n");
        fake.set("proc/net/softnet_stat", "zz\n");
        fake.set("proc/loadavg", "1 2 3");
        fake.set("proc/self/status", "");
        fake.set("proc/sys/net/ipv4/tcp_ehash_entries", "0\n");
        let machine = read(&fake);
        let why = |reading: Reading<u64>| reading.unwrap_err();
        assert!(why(machine.number("fs.file-max")).ends_with(" does not exist"));
        let text = why(machine.number("fs.nr_open"));
        assert!(text.ends_with("nr_open holds \"many\", not 1 number"), "{text}");
        assert!(why(machine.number("net.ipv4.tcp_mem")).contains("\"1 2\", not 3 numbers"));
        assert!(why(machine.number("net.core.somaxconn")).contains("\"-1\""));
        assert!(machine.nofile.unwrap_err().contains("Max open files"));
        assert!(machine.nproc.unwrap_err().contains("Max processes"));
        assert!(machine.memory.unwrap_err().contains("MemAvailable"));
        assert!(machine.established_entries.unwrap_err().contains("\"0\""));
        assert!(machine.backlog_drops.is_err() && machine.threads.is_err());
        assert_eq!(machine.is_root, None);
    }

    #[test]
    fn missing_proc_leaves_values_unknown() {
        let empty = tempfile::tempdir().unwrap();
        let why = Machine::read(empty.path(), 1).unwrap_err();
        assert!(why.contains("proc/sys") && why.contains("mount proc"), "{why}");
    }

    #[test]
    fn reading_an_endless_file_stops() {
        let fake = FakeMachine::usual();
        fake.remove("proc/sys/fs/file-max");
        let link = fake.path("proc/sys/fs/file-max");
        std::os::unix::fs::symlink("/dev/zero", link).unwrap();
        assert!(read(&fake).number("fs.file-max").is_err());
    }

    #[test]
    fn negative_hash_table_size_is_read_as_its_absolute_value() {
        let fake = FakeMachine::usual();
        fake.set("proc/sys/net/ipv4/tcp_ehash_entries", "-262144\n");
        assert_eq!(read(&fake).established_entries, Ok(262_144));
    }

    #[test]
    fn cgroup_v2_limits_of_parent_groups_are_found() {
        let fake = FakeMachine::usual();
        groups_v2(&fake, "/a/b", "/");
        fake.set("sys/fs/cgroup/a/b/memory.max", "max\n");
        fake.set("sys/fs/cgroup/a/memory.max", "1000000\n");
        fake.set("sys/fs/cgroup/a/memory.current", "600000\n");
        fake.set("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 100000\n");
        fake.set("sys/fs/cgroup/a/b/pids.max", "100\n");
        fake.set("sys/fs/cgroup/a/b/pids.current", "7\n");
        fake.set("sys/fs/cgroup/a/pids.max", "lots\n");
        let machine = read(&fake);
        let [Ok(group)] = machine.memory_groups.as_slice() else {
            panic!("{:?}", machine.memory_groups)
        };
        assert_eq!((group.limit, group.used, group.room()), (1_000_000, 500_000, 500_000));
        assert!(group.file.ends_with("sys/fs/cgroup/a/memory.max"), "{}", group.file);
        let [Ok(group), Err(why)] = machine.thread_groups.as_slice() else {
            panic!("{:?}", machine.thread_groups)
        };
        assert_eq!(group.room(), 93);
        assert!(why.contains("a/pids.max holds \"lots\""), "{why}");
    }

    #[test]
    fn cgroup_of_a_container_is_read_as_root() {
        for (own, root) in [("/", "/"), ("/docker/abc", "/docker/abc"), ("/../elsewhere", "/x")] {
            let fake = FakeMachine::usual();
            groups_v2(&fake, own, root);
            fake.set("sys/fs/cgroup/memory.max", "5000\n");
            fake.set("sys/fs/cgroup/memory.current", "9000\n");
            // Outside of the mount.
            fake.set("sys/fs/elsewhere/memory.max", "1\n");
            let machine = read(&fake);
            let [Ok(group)] = machine.memory_groups.as_slice() else {
                panic!("{own}: {:?}", machine.memory_groups)
            };
            assert_eq!((group.limit, group.room()), (5_000, 0), "{own}");
        }
    }

    #[test]
    fn cgroup_v1_limits_are_found_by_controller() {
        let fake = FakeMachine::usual();
        fake.set("proc/self/cgroup", "9:name=systemd:/\n8:pids:/\n4:cpu,memory:/box\n0::/\n");
        fake.set(
            "proc/self/mountinfo",
            "34 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
             35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,cpu,memory\n\
             39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\nnonsense\n",
        );
        let memory = |name: &str| format!("sys/fs/cgroup/memory/{name}");
        fake.set(&memory("memory.limit_in_bytes"), "9223372036854771712\n");
        fake.set(&memory("box/memory.limit_in_bytes"), "4096000\n");
        fake.set(&memory("box/memory.usage_in_bytes"), "96000\n");
        fake.set(&memory("box/memory.stat"), "inactive_file 9\ntotal_inactive_file 6000\n");
        let machine = read(&fake);
        let [Ok(group)] = machine.memory_groups.as_slice() else {
            panic!("{:?}", machine.memory_groups)
        };
        assert_eq!((group.limit, group.room()), (4_096_000, 4_006_000));
        assert!(machine.thread_groups.is_empty(), "the root group has no limit");
    }
}
