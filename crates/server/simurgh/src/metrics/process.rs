//! Memory and CPU of the process, from /proc. Nothing here lists /proc/self/fd: that would cost 0.9
//! kB of kernel memory per descriptor.

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Process {
    /// CPU time used, seconds.
    pub(crate) cpu_s: f64,
    /// Resident memory, bytes.
    pub(crate) resident_bytes: u64,
}

/// Zeros where the system has no value.
pub(crate) fn read() -> Process {
    std::fs::read_to_string("/proc/self/stat")
        .ok()
        .and_then(|stat| parse(&stat))
        .unwrap_or_default()
}

fn parse(stat: &str) -> Option<Process> {
    /// Ticks per second and bytes per page, on every Linux that was tried.
    const TICKS: f64 = 100.0;
    const PAGE_BYTES: u64 = 4096;
    // The name in parentheses may contain spaces; fields are counted after it.
    let (_, fields) = stat.rsplit_once(')')?;
    let field = |at: usize| fields.split_whitespace().nth(at)?.parse::<u64>().ok();
    Some(Process {
        cpu_s: (field(11)? + field(12)?) as f64 / TICKS,
        resident_bytes: field(21)? * PAGE_BYTES,
    })
}

/// Bytes in the buffers of all TCP sockets of this host; 0 if the system does not report it.
pub(crate) fn tcp_buffer_bytes() -> u64 {
    std::fs::read_to_string("/proc/net/sockstat")
        .ok()
        .and_then(|text| parse_sockstat(&text))
        .unwrap_or(0)
}

fn parse_sockstat(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:"))?;
    let mut words = line.split_whitespace();
    words.by_ref().find(|word| *word == "mem")?;
    Some(words.next()?.parse::<u64>().ok()? * 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        let stat = "12 (a b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 13 14 15 16 17 18 19 20 5 22";
        let expected = Process { cpu_s: 2.0, resident_bytes: 5 * 4096 };
        assert_eq!(parse(stat), Some(expected));
        assert_eq!(parse("12 (a"), None);
        let sockstat = "sockets: used 5\nTCP: inuse 3 orphan 0 tw 0 alloc 4 mem 7\nUDP: mem 1\n";
        assert_eq!(parse_sockstat(sockstat), Some(7 * 4096));
        assert_eq!(parse_sockstat(""), None);
    }
}
