//! Resources of processes and the kernel: memory, CPU time, sockets. Nothing here lists
//! /proc/PID/fd, which would cost 0.9 kB of kernel memory for each descriptor.

use std::fs;
use std::io;

use simurgh_tune::kilobytes;

use super::results::Host;

/// Memory and sockets of the machine at one moment, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Usage {
    /// MemTotal.
    pub(super) total: u64,
    /// MemAvailable less SReclaimable, which is mostly inodes and directory entries of open sockets
    /// and cannot be reclaimed.
    pub(super) available: u64,
    /// Slab: the kernel's records, those of sockets above all.
    pub(super) slab: u64,
    /// TCP sockets in use (sockstat).
    pub(super) sockets: u64,
    /// Pages of TCP's buffers (sockstat `mem`), in bytes.
    pub(super) buffers: u64,
}

impl Usage {
    pub(super) fn now() -> Result<Self, String> {
        let meminfo = read("/proc/meminfo")?;
        let sockstat = read("/proc/net/sockstat")?;
        Self::of(&meminfo, &sockstat)
            .ok_or_else(|| "/proc/meminfo or /proc/net/sockstat lacks a line".to_owned())
    }

    fn of(meminfo: &str, sockstat: &str) -> Option<Self> {
        let tcp = sockstat.lines().find(|line| line.starts_with("TCP:"))?;
        let field = |name: &str| -> Option<u64> {
            tcp.split_whitespace().skip_while(|word| *word != name).nth(1)?.parse().ok()
        };
        Some(Self {
            total: kilobytes(meminfo, "MemTotal:")?,
            available: kilobytes(meminfo, "MemAvailable:")?
                .saturating_sub(kilobytes(meminfo, "SReclaimable:")?),
            slab: kilobytes(meminfo, "Slab:")?,
            sockets: field("inuse")?,
            buffers: field("mem")? * 4096,
        })
    }
}

impl Host {
    pub(super) fn this(memory: u64) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
        let model = model.map(|rest| rest.trim_start_matches([' ', '\t', ':']).to_owned());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: model.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            memory,
            kernel: kernel.trim().to_owned(),
        }
    }
}

/// Resident bytes of a process, exactly: smaps_rollup walks the page tables.
pub(super) fn resident(pid: u32) -> Result<u64, String> {
    let path = format!("/proc/{pid}/smaps_rollup");
    kilobytes(&read(&path)?, "Rss:").ok_or_else(|| format!("{path} has no Rss"))
}

/// Resident bytes of a process by the kernel's counters: cheap, and off by some pages for each
/// core.
pub(super) fn resident_about(pid: u32) -> Result<u64, String> {
    let path = format!("/proc/{pid}/status");
    kilobytes(&read(&path)?, "VmRSS:").ok_or_else(|| format!("{path} has no VmRSS"))
}

/// CPU time of all threads of a process, nanoseconds.
pub(super) fn cpu_ns(pid: u32) -> Result<u64, String> {
    let path = format!("/proc/{pid}/task");
    let tasks = fs::read_dir(&path).map_err(|error| format!("{path}: {error}"))?;
    let mut sum = 0;
    for task in tasks.flatten() {
        // A thread may end between the listing and this.
        let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        sum += text.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum)
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error: io::Error| format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_socket_figures_are_parsed_by_name() {
        let meminfo = "MemTotal: 9 kB\nMemFree: 7 kB\nMemAvailable: 8 kB\nSlab: 2 kB\n\
                       SReclaimable: 1 kB\n";
        let sockstat = "sockets: used 9\nTCP: inuse 5 orphan 1 tw 2 alloc 6 mem 3\nUDP: inuse 1\n";
        let expected =
            Usage { total: 9 << 10, available: 7 << 10, slab: 2 << 10, sockets: 5, buffers: 12288 };
        assert_eq!(Usage::of(meminfo, sockstat), Some(expected));
        assert_eq!(Usage::of("", sockstat), None);
        assert!(Usage::now().is_ok() && resident(std::process::id()).is_ok_and(|n| n > 0));
        assert!(cpu_ns(std::process::id()).is_ok_and(|ns| ns > 0));
    }
}
