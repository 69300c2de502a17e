//! Pinning, limits, and the counters under /proc that the figures come from.
//!
//! Nothing here lists /proc/PID/fd: that would add about 0.9 kB of kernel memory to every
//! descriptor and so spoil the very figure it is used for.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::CpuSet;
use serde::Serialize;

/// Descriptors kept free beside the connections of one process.
pub const FD_RESERVE: u64 = 200;

/// Pins the calling thread (and what it starts from now on) to one core.
pub fn pin(core: usize) -> Result<()> {
    ensure!(core < CpuSet::MAX_CPU, "there is no core {core}");
    let mut set = CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("pin to core {core}"))
}

/// Asks the kernel to kill this process when the thread that started it ends, for whatever reason.
pub fn die_with_parent() -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context("PDEATHSIG")
}

/// Limits the address space of this process, and of the program it executes, to this many bytes.
pub fn limit_address_space(bytes: u64) -> Result<()> {
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    rustix::process::setrlimit(Resource::As, limit).context("set RLIMIT_AS")
}

/// Raises the soft descriptor limit to the hard one and returns it.
pub fn raise_descriptor_limit() -> Result<u64> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(Resource::Nofile, raised).context("raise RLIMIT_NOFILE")?;
    Ok(limit.maximum.unwrap_or(1 << 20))
}

/// CPU time of every thread of a process.
#[derive(Clone, Debug, Default)]
pub struct Cpu(BTreeMap<u32, u64>);

impl Cpu {
    /// Reads the exact run time of each thread. The scheduler updates it when a thread leaves the
    /// CPU, so read it while the process is idle.
    pub fn of(pid: u32) -> Result<Self> {
        let mut threads = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{pid}/task")).context("server has gone")? {
            let name = entry?.file_name();
            let Some(tid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            // A thread may end between the listing and this read.
            let Ok(text) = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")) else {
                continue;
            };
            let nanos = text.split_whitespace().next().and_then(|field| field.parse().ok());
            threads.insert(tid, nanos.context("schedstat is not a number")?);
        }
        Ok(Self(threads))
    }

    /// Reads only the threads whose name begins with `name`.
    pub fn of_threads(pid: u32, name: &str) -> Result<Self> {
        let mut all = Self::of(pid)?;
        all.0.retain(|tid, _| {
            let comm = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
            comm.is_ok_and(|it| it.starts_with(name))
        });
        Ok(all)
    }

    /// Nanoseconds run since `earlier`, and the threads that ended in between (their last run time
    /// is lost, so the caller must say so).
    pub fn since(&self, earlier: &Self) -> (u64, usize) {
        let ran = self
            .0
            .iter()
            .map(|(tid, now)| now.saturating_sub(earlier.0.get(tid).copied().unwrap_or(0)))
            .sum();
        (ran, earlier.0.keys().filter(|tid| !self.0.contains_key(tid)).count())
    }
}

/// Resident bytes of a process (exact: smaps_rollup walks the page tables; statm only estimates).
pub fn resident(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).context("smaps_rollup")?;
    kilobytes(&text, "Rss:").context("smaps_rollup has no Rss")
}

/// Resident bytes of a process now and at most so far, by the kernel's own counters: off by some
/// pages, but read without stopping the process.
pub fn resident_quickly(pid: u32) -> Result<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).context("it has gone")?;
    let field = |name| kilobytes(&text, name).with_context(|| format!("no {name} in status"));
    Ok((field("VmRSS:")?, field("VmHWM:")?))
}

/// Resets the highest resident size of a process.
pub fn forget_peak(pid: u32) -> Result<()> {
    // proc(5): 5 resets VmHWM and nothing else.
    fs::write(format!("/proc/{pid}/clear_refs"), "5").context("clear_refs")
}

/// The value in bytes of a "Name:   123 kB" line.
pub fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kb| kb * 1024)
}

/// Kernel memory and sockets of the machine at one moment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Kernel {
    /// SReclaimable of /proc/meminfo, bytes.
    pub slab_reclaimable: u64,
    /// SUnreclaim of /proc/meminfo, bytes.
    pub slab_unreclaimable: u64,
    /// `TCP: inuse` of /proc/net/sockstat.
    pub tcp_inuse: u64,
    /// `TCP: … tw` of /proc/net/sockstat.
    pub tcp_time_wait: u64,
    /// Bytes of each slab cache (needs root, else empty): shows which memory changed.
    #[serde(skip)]
    caches: BTreeMap<String, i64>,
}

impl Kernel {
    /// Reads all of them.
    pub fn now() -> Result<Self> {
        let memory = fs::read_to_string("/proc/meminfo")?;
        let sockets = fs::read_to_string("/proc/net/sockstat")?;
        let tcp = sockets.lines().find(|line| line.starts_with("TCP:")).unwrap_or_default();
        let field = |name: &str| {
            let mut words = tcp.split_whitespace().skip_while(|word| *word != name);
            words.nth(1).and_then(|word| word.parse().ok())
        };
        Ok(Self {
            slab_reclaimable: kilobytes(&memory, "SReclaimable:").context("no SReclaimable")?,
            slab_unreclaimable: kilobytes(&memory, "SUnreclaim:").context("no SUnreclaim")?,
            tcp_inuse: field("inuse").context("sockstat has no TCP inuse")?,
            tcp_time_wait: field("tw").context("sockstat has no TCP tw")?,
            caches: fs::read_to_string("/proc/slabinfo").map_or_else(|_| BTreeMap::new(), caches),
        })
    }

    /// All slab bytes.
    pub fn slab(&self) -> u64 {
        self.slab_reclaimable + self.slab_unreclaimable
    }

    /// The caches that changed by more than 64 KiB since `earlier`, bytes.
    pub fn caches_since(&self, earlier: &Self) -> BTreeMap<String, i64> {
        let moved = |(name, bytes): (&String, &i64)| {
            let by = bytes - earlier.caches.get(name).copied().unwrap_or(0);
            (by.abs() > 65_536).then(|| (name.clone(), by))
        };
        self.caches.iter().filter_map(moved).collect()
    }
}

/// Bytes of `moved` caches that a process caused by listing /proc/PID/fd of ours (port monitors
/// do): one inode of /proc, with its dentry and its security blob, per descriptor listed.
pub fn listing_bytes(moved: &BTreeMap<String, i64>) -> f64 {
    const INODE: f64 = 696.0;
    const DENTRY_AND_BLOB: f64 = 192.0 + 40.0;
    let inodes = moved.get("proc_inode_cache").copied().unwrap_or(0);
    f64::from(i32::try_from(inodes).unwrap_or(0)) * (1.0 + DENTRY_AND_BLOB / INODE)
}

/// Bytes of `moved` caches of sockets: the kernel memory that other processes do not disturb.
pub fn socket_bytes(moved: &BTreeMap<String, i64>) -> Option<f64> {
    let caches = ["TCP", "sock_inode_cache", "filp", "eventpoll_epi", "ep_head"];
    let bytes: i64 = caches.iter().filter_map(|name| moved.get(*name)).sum();
    i32::try_from(bytes).ok().filter(|bytes| *bytes > 0).map(f64::from)
}

/// Pages held by each cache × page size, from the text of /proc/slabinfo.
fn caches(text: String) -> BTreeMap<String, i64> {
    let bytes = |line: &str| -> Option<(String, i64)> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let pages_per_slab: i64 = words.get(5)?.parse().ok()?;
        let slabs: i64 = words.get(14)?.parse().ok()?;
        Some(((*words.first()?).to_owned(), slabs * pages_per_slab * 4096))
    };
    text.lines().skip(2).filter_map(bytes).collect()
}

/// Waiting and running tasks of the machine, averaged over a minute; NaN if that cannot be read.
pub fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN)
}

/// Ticks (1/100 s) the whole machine was busy, and had stolen by its host, since boot.
pub fn machine_ticks() -> (u64, u64) {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = first.split_whitespace().skip(1).flat_map(str::parse).collect();
    let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
    // user, nice, system, irq and softirq are work; idle and iowait are not.
    (at(0) + at(1) + at(2) + at(5) + at(6), at(7))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_counts_only_the_measured_interval() {
        let before = Cpu(BTreeMap::from([(1, 100), (2, 50)]));
        let after = Cpu(BTreeMap::from([(1, 175), (3, 5)]));
        assert_eq!(after.since(&before), (80, 1));
    }

    #[test]
    fn slabinfo_lines_become_bytes() {
        let text = "slabinfo - version: 2.1\n# name\n\
                    TCP 26 26 2368 13 8 : tunables 0 0 0 : slabdata 2 2 0\n";
        assert_eq!(caches(text.to_owned()), BTreeMap::from([("TCP".to_owned(), 2 * 8 * 4096)]));
    }

    #[test]
    fn directory_listing_memory_is_separated_from_socket_memory() {
        let moved =
            BTreeMap::from([("proc_inode_cache".to_owned(), 696_000), ("TCP".to_owned(), 99)]);
        assert!((listing_bytes(&moved) - 928_000.0).abs() < 1.0);
        assert_eq!(socket_bytes(&moved), Some(99.0));
        assert_eq!(socket_bytes(&BTreeMap::new()), None);
    }

    #[test]
    fn statistics_of_the_own_process_are_readable() {
        let pid = std::process::id();
        assert!(resident(pid).unwrap() > 100_000);
        let (now, most) = resident_quickly(pid).unwrap();
        assert!(now > 100_000 && most >= now / 2);
        let large = vec![1_u8; 64 << 20];
        let most = resident_quickly(pid).unwrap().1;
        assert!(large.iter().all(|it| *it == 1));
        drop(large);
        forget_peak(pid).unwrap();
        assert!(resident_quickly(pid).unwrap().1 < most);
        let before = Cpu::of(pid).unwrap();
        assert_eq!(Cpu::of(pid).unwrap().since(&before).1, 0);
        assert!(Kernel::now().unwrap().slab() > 0);
    }
}
