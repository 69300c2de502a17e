//! Rows of machines that are too small, large enough, or cannot be read.

use super::super::fake_machine::FakeMachine;
use super::row::bytes;
use super::*;

fn report_of(fake: &FakeMachine, connections: u64, local_clients: bool) -> Report {
    let machine = Machine::read(fake.root(), 2).unwrap();
    Report::new(&machine, Wanted { connections, local_clients })
}

#[track_caller]
fn row<'a>(report: &'a Report, name: &str) -> &'a Row {
    report.rows.iter().find(|row| row.name == name).expect(name)
}

fn limits(fake: &FakeMachine, soft: &str, hard: &str) {
    let text = format!("Max processes 9 unlimited x\nMax open files {soft} {hard} files\n");
    fake.set("proc/self/limits", &text);
}

/// Names of the rows in a state.
fn named(report: &Report, state: State) -> Vec<&str> {
    let rows = report.rows.iter().filter(|row| row.state == state);
    rows.map(|row| row.name.as_str()).collect()
}

#[test]
fn thousand_connections_need_no_changes() {
    let report = report_of(&FakeMachine::usual(), 1_000, false);
    assert!(report.is_enough(), "{:#?}", report.rows);
    assert_eq!((report.shards, report.changes()), (2, vec![]));
    assert!(report.rows.iter().all(|row| !row.why.is_empty()));
}

#[test]
fn two_million_connections_with_local_clients_need_most_changes() {
    let report = report_of(&FakeMachine::usual(), 2_000_000, true);
    assert!((105..=107).contains(&report.shards), "{}", report.shards);
    assert_eq!(
        named(&report, State::TooSmall),
        [
            "fs.file-max",
            "net.ipv4.tcp_mem",
            "net.core.netdev_max_backlog",
            "net.ipv4.tcp_max_orphans",
            "net.ipv4.tcp_max_tw_buckets",
            "TCP hash table",
        ]
    );
    assert_eq!(named(&report, State::CannotTell), [""; 0]);
    let files = row(&report, "fs.file-max");
    assert!(files.how.starts_with("sysctl -w fs.file-max=40"), "{}", files.how);
    assert!(files.caps.unwrap() < 1_300_000);
    // At most half of 24 GiB, in pages of 4 KiB.
    let memory = row(&report, "net.ipv4.tcp_mem");
    assert_eq!(memory.change().unwrap().after, [1_572_864, 2_097_152, 3_145_728]);
    assert!(memory.why.contains("1,572,864 connections can have a message"), "{}", memory.why);
    let table = row(&report, "TCP hash table");
    assert_eq!(table.need, "1,048,576");
    assert!(!table.is_changeable() && table.caps.is_none());
    assert!(table.how.contains("thash_entries=1048576") && table.why.contains("chains of 15.3"));
    assert_eq!(report.holds.first_limit, "fs.file-max (for all but root)");
    assert!(report.holds.connections < 1_300_000);
    assert!(report.would_hold.connections >= 2_000_000);
}

#[test]
fn remote_clients_halve_the_needs_of_the_machine() {
    let report = report_of(&FakeMachine::usual(), 2_000_000, false);
    assert_eq!(row(&report, "fs.file-max").state, State::Enough);
    assert_eq!(row(&report, "net.core.netdev_max_backlog").state, State::Enough);
    assert_eq!(row(&report, "net.ipv4.ip_local_port_range").need, "-");
    assert!(row(&report, "memory").need.starts_with("8.9 GB"));
}

#[test]
fn low_descriptor_limit_raises_shards_and_very_low_one_caps_connections() {
    let fake = FakeMachine::usual();
    limits(&fake, "1024", "4096");
    let report = report_of(&fake, 1_000_000, false);
    let hard = row(&report, "RLIMIT_NOFILE hard");
    assert_eq!(hard.state, State::Enough);
    assert!(report.shards > 250, "{}", report.shards);
    limits(&fake, "256", "1024");
    let report = report_of(&fake, 1_000_000, false);
    let hard = row(&report, "RLIMIT_NOFILE hard");
    assert_eq!(hard.state, State::TooSmall);
    assert!(hard.how.contains("LimitNOFILE=") && !hard.is_changeable());
    let caps = hard.caps.unwrap();
    assert!((100_000..250_000).contains(&caps), "{caps}");
    assert_eq!(row(&report, "shards").state, State::TooSmall);
    assert_eq!(report.holds.first_limit, "RLIMIT_NOFILE hard");
    assert_eq!(report.holds.connections, caps);
    // The wanted number would be enough.
    let need = hard.need.replace(',', "");
    limits(&fake, "1024", &need);
    assert!(!report_of(&fake, 1_000_000, false).rows[..3].iter().any(Row::is_too_small));
    // Few descriptors must not lead to a division by zero.
    for tiny in ["0", "1", "20"] {
        limits(&fake, tiny, tiny);
        let report = report_of(&fake, 80_000_000, true);
        assert!(report.holds.connections < 2_000, "{tiny}: {:?}", report.holds);
    }
}

impl Row {
    fn is_too_small(&self) -> bool {
        self.state == State::TooSmall
    }
}

#[test]
fn nr_open_caps_every_descriptor_table() {
    let fake = FakeMachine::usual();
    limits(&fake, "1024", "1048576");
    fake.set("proc/sys/fs/nr_open", "512\n");
    let report = report_of(&fake, 1_000_000, false);
    let open_max = row(&report, "fs.nr_open");
    assert!(open_max.is_changeable() && open_max.caps.unwrap() < 100_000);
    assert_eq!(report.holds.first_limit, "fs.nr_open");
    limits(&fake, "1024", "512");
    let report = report_of(&fake, 1_000_000, false);
    let allowed = row(&report, "fs.nr_open").setting.clone().unwrap().target;
    assert_eq!(allowed, [report.descriptors_good], "a login must not fail");
}

#[test]
fn unreadable_value_has_state_cannot_tell() {
    let fake = FakeMachine::usual();
    fake.remove("proc/sys/fs/file-max");
    fake.remove("proc/sys/net/ipv4/tcp_ehash_entries");
    fake.remove("proc/self/limits");
    fake.set("proc/meminfo", "nothing");
    fake.set("proc/sys/net/ipv4/tcp_wmem", "a b c\n");
    let report = report_of(&fake, 2_000_000, true);
    assert_eq!(
        named(&report, State::CannotTell),
        [
            "RLIMIT_NOFILE soft",
            "RLIMIT_NOFILE hard",
            "fs.file-max",
            "memory",
            "RLIMIT_NPROC",
            "net.ipv4.tcp_mem",
            "net.ipv4.tcp_wmem",
            "TCP hash table",
        ]
    );
    for row in report.rows.iter().filter(|row| row.state == State::CannotTell) {
        assert!(!row.how.is_empty() && row.caps.is_none() && !row.is_changeable(), "{row:?}");
    }
    assert!(row(&report, "net.ipv4.tcp_wmem").how.contains("\"a b c\""));
}

#[test]
fn conntrack_limit_is_checked_only_if_conntrack_is_active() {
    let fake = FakeMachine::usual();
    let name = "net.netfilter.nf_conntrack_max";
    let has_row = |report: &Report| report.rows.iter().any(|row| row.name == name);
    assert!(!has_row(&report_of(&fake, 1_000_000, false)));
    fake.set("proc/sys/net/netfilter/nf_conntrack_max", "262144\n");
    fake.set("proc/sys/net/netfilter/nf_conntrack_count", "0\n");
    let report = report_of(&fake, 1_000_000, false);
    assert_eq!(row(&report, name).state, State::CannotTell);
    assert!(row(&report, name).how.contains("sysctl -w net.netfilter.nf_conntrack_max=1010000"));
    fake.set("proc/sys/net/netfilter/nf_conntrack_count", "44\n");
    let report = report_of(&fake, 1_000_000, false);
    let tracked = row(&report, name);
    assert!(tracked.is_changeable() && tracked.why.contains("NOTRACK"));
    assert_eq!(tracked.caps, Some(262_100));
    assert_eq!(report.holds.first_limit, name);
}

#[test]
fn cgroups_cap_memory_and_threads() {
    let fake = FakeMachine::usual();
    fake.set("proc/self/cgroup", "0::/box\n");
    fake.set("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    fake.set("sys/fs/cgroup/box/memory.max", "1000000000\n");
    fake.set("sys/fs/cgroup/box/memory.current", "0\n");
    fake.set("sys/fs/cgroup/box/pids.max", "80\n");
    fake.set("sys/fs/cgroup/box/pids.current", "6\n");
    let report = report_of(&fake, 1_000_000, false);
    let memory = row(&report, "cgroup memory");
    assert_eq!(memory.state, State::TooSmall);
    assert!((220_000..224_500).contains(&memory.caps.unwrap()), "{memory:?}");
    assert!(memory.how.contains("MemoryMax=") && memory.why.contains("box/memory.max"));
    let threads = row(&report, "cgroup pids");
    assert_eq!((threads.state, threads.have.as_str()), (State::TooSmall, "74"));
    assert!((180_000..200_000).contains(&threads.caps.unwrap()), "{threads:?}");
    assert_eq!(report.holds.first_limit, "cgroup pids");
    assert_eq!(report.holds, report.would_hold, "nothing here changes it");
}

#[test]
fn each_number_of_small_queues_and_buffers_is_raised() {
    let fake = FakeMachine::usual();
    fake.set("proc/sys/net/core/somaxconn", "128\n");
    fake.set("proc/sys/net/ipv4/tcp_wmem", "8192 9000 30000\n");
    fake.set("proc/sys/net/ipv4/tcp_mem", "900000 1000 2000\n");
    let report = report_of(&fake, 100_000, false);
    let after = |name: &str| row(&report, name).change().unwrap().after;
    assert_eq!(after("net.core.somaxconn"), [4_096]);
    assert_eq!(row(&report, "net.core.somaxconn").how, "sysctl -w net.core.somaxconn=4096");
    assert_eq!(after("net.ipv4.tcp_wmem"), [8_192, 16_384, 65_536]);
    assert_eq!(after("net.ipv4.tcp_mem"), [900_000, 66_667, 100_000]);
    let how = &row(&report, "net.ipv4.tcp_wmem").how;
    assert_eq!(how, "sysctl -w net.ipv4.tcp_wmem=\"8192 16384 65536\"");
}

#[test]
fn syn_backlog_is_raised_only_without_syn_cookies() {
    let fake = FakeMachine::usual();
    let name = "net.ipv4.tcp_max_syn_backlog";
    let report = report_of(&fake, 1_000_000, false);
    assert_eq!(row(&report, name).state, State::Enough);
    assert!(row(&report, name).how.contains("tcp_syncookies is 1"));
    fake.set("proc/sys/net/ipv4/tcp_syncookies", "0\n");
    let report = report_of(&fake, 1_000_000, false);
    assert_eq!(row(&report, name).change().unwrap().after, [4_096]);
}

#[test]
fn applied_limits_leave_room_for_other_processes() {
    let fake = FakeMachine::usual();
    for (setting, used, before, after) in [
        ("fs/file-max", "proc/sys/fs/file-nr", "544 0 9", "1544 0 9"),
        ("kernel/pid_max", "proc/loadavg", "0 0 0 1/300 5", "0 0 0 1/420 5"),
    ] {
        fake.set(&format!("proc/sys/{setting}"), "301\n");
        fake.set(used, before);
        let name = setting.replace('/', ".");
        let change = row(&report_of(&fake, 1_000_000, false), &name).change().unwrap();
        fake.set(&format!("proc/sys/{setting}"), &plain(&change.after));
        fake.set(used, after);
        let report = report_of(&fake, 1_000_000, false);
        assert_eq!(row(&report, &name).state, State::Enough, "{name}");
    }
}

#[test]
fn port_range_is_widened_and_never_narrowed() {
    let fake = FakeMachine::usual();
    let name = "net.ipv4.ip_local_port_range";
    fake.set("proc/sys/net/ipv4/ip_local_port_range", "50000 50999\n");
    assert_eq!(row(&report_of(&fake, 100_000, false), name).state, State::Enough);
    let report = report_of(&fake, 100_000, true);
    assert_eq!(row(&report, name).change().unwrap().after, [32_768, 60_999]);
    fake.set("proc/sys/net/ipv4/ip_local_port_range", "10 1009\n");
    let report = report_of(&fake, 100_000, true);
    assert_eq!(row(&report, name).change().unwrap().after, [10, 60_999]);
    fake.set("proc/sys/net/ipv4/ip_local_port_range", "60999 10\n");
    let _ = report_of(&fake, 100_000, true);
}

/// Values of all sizes.
#[test]
fn tune_never_lowers_a_setting() {
    let mut seed = 7_u64;
    let mut random = move || {
        // Xorshift.
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..30 {
        let fake = FakeMachine::usual();
        let fields = |name: &str| fake.text(name).split_whitespace().count();
        for (name, _) in fake.snapshot() {
            if !name.starts_with("proc/sys") || random() % 4 == 0 {
                continue;
            }
            let mut values: Vec<u64> =
                (0..fields(name)).map(|_| random() >> (random() % 64)).collect();
            values.sort_unstable();
            fake.set(name, &plain(&values));
        }
        limits(&fake, "1024", &(random() >> (random() % 64)).to_string());
        let connections = 1 + random() % [1_000, 100_000, 80_000_000][round % 3];
        let report = report_of(&fake, connections, random() % 2 == 0);
        for Change { name, before, after } in report.changes() {
            assert_ne!(before, after, "{name}");
            let mut pairs: Vec<_> = before.iter().zip(&after).collect();
            if name == "net.ipv4.ip_local_port_range" {
                let (before, after) = pairs.remove(0);
                assert!(after <= before, "{name}: {before} became {after}");
            }
            assert!(pairs.iter().all(|(before, after)| after >= before), "{name}: {pairs:?}");
            assert!(after.is_sorted(), "{name}: {after:?}");
        }
        // Once the changes are made, no setting is left to change.
        for Change { name, after, .. } in report.changes() {
            fake.set(&format!("proc/sys/{}", name.replace('.', "/")), &plain(&after));
        }
        let again = report_of(&fake, connections, report.wanted.local_clients);
        assert_eq!(again.changes(), [], "round {round}");
    }
}

#[test]
fn numbers_are_formatted_for_people() {
    assert_eq!(grouped(0), "0");
    assert_eq!(grouped(999), "999");
    assert_eq!(grouped(1_000), "1,000");
    assert_eq!(grouped(12_345_678), "12,345,678");
    assert_eq!(grouped(i64::MAX as u64), "unlimited");
    assert_eq!((about(0), about(999), about(2_466_177)), (0, 999, 2_460_000));
    assert_eq!(bytes(17_568_000_000), "17.6 GB");
}
