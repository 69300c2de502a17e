//! Files that keep the needed values across boots, for sysctl.d, limits.d and systemd. They are
//! made from a [`Report`], and printed only. No value in them is lower than the machine's.

use std::fmt::Write;

use super::SHARDS_MAX;
use super::needs::{Report, Row, State, plain};

/// `TasksMax` of the packaged service: twice the shards that a server has at most, so that it never
/// decides how many there are. The clients of `--local-clients` run elsewhere.
const TASKS_MAX: u32 = 2 * SHARDS_MAX;

/// `/etc/sysctl.d/90-simurgh.conf`: all settings, even those that are enough now, since the values
/// of `--apply` are lost at the next boot.
pub(crate) fn sysctl(report: &Report) -> String {
    let mut out = head(report, "/etc/sysctl.d/90-simurgh.conf", "`sysctl --system` reads it");
    for row in &report.rows {
        let Some(setting) = &row.setting else { continue };
        let line = format!("{} = {}", setting.name, plain(&setting.target));
        let _ = match (&setting.now, row.state) {
            (Some(now), State::TooSmall) => writeln!(out, "# was {}\n{line}", plain(now)),
            (_, State::CannotTell) => writeln!(out, "# {}\n# {line}", row.how),
            _ => writeln!(out, "{line}"),
        };
    }
    out
}

/// `/etc/security/limits.d/90-simurgh.conf`.
pub(crate) fn limits(report: &Report) -> String {
    let mut out = head(
        report,
        "/etc/security/limits.d/90-simurgh.conf",
        "new logins have it; systemd's services do not",
    );
    let nofile = report.descriptors_good;
    // Only the hard limit: serve and load raise the soft one themselves, and some other programs
    // cannot handle many descriptors. The star does not include root.
    for who in ["*   ", "root"] {
        let _ = writeln!(out, "{who}  hard  nofile  {nofile}");
    }
    if let Some(row) = too_small(report, "RLIMIT_NPROC") {
        let _ = writeln!(out, "# {} threads are needed, {} are allowed", row.need, row.have);
        let _ = writeln!(out, "*     -     nproc   {}", report.threads);
    }
    out
}

/// `/etc/systemd/system/simurgh.service.d/limits.conf`.
pub(crate) fn systemd(report: &Report) -> String {
    let mut out = head(
        report,
        "/etc/systemd/system/simurgh.service.d/limits.conf",
        "`systemctl daemon-reload`, then restart the service",
    );
    let _ = writeln!(out, "[Unit]\nAfter=systemd-sysctl.service\n\n[Service]");
    let _ = writeln!(out, "LimitNOFILE={}", report.descriptors_good);
    let _ = writeln!(out, "LimitNPROC=infinity\nTasksMax={TASKS_MAX}");
    if let Some(row) = report.rows.iter().find(|row| row.name == "memory") {
        let _ =
            writeln!(out, "# if there is a MemoryMax=, at least {} and what data needs", row.need);
    }
    out
}

fn too_small<'a>(report: &'a Report, name: &str) -> Option<&'a Row> {
    report.rows.iter().find(|row| row.name == name && row.state == State::TooSmall)
}

fn head(report: &Report, path: &str, how: &str) -> String {
    let connections = report.wanted.connections;
    let clients = if report.wanted.local_clients { " --local-clients" } else { "" };
    format!(
        "# {path}\n# by `simurgh tune --connections {connections}{clients}`; {how}\n\
         # Nothing here is lower than what this machine had.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::super::fake_machine::FakeMachine;
    use super::super::{Wanted, report};
    use super::*;

    fn report_of(fake: &FakeMachine, connections: u64) -> Report {
        report(fake.root(), Wanted { connections, local_clients: false }).unwrap()
    }

    #[test]
    fn printed_settings_are_the_needed_or_the_current_values() {
        let fake = FakeMachine::usual();
        fake.remove("proc/sys/kernel/pid_max");
        let text = sysctl(&report_of(&fake, 1_000_000));
        for line in [
            "# was 131072\nnet.ipv4.tcp_max_orphans = 1000000\n",
            "\nnet.ipv4.tcp_rmem = 4096 131072 33554432\n",
            "\nnet.core.somaxconn = 4096\n",
            "\n# kernel.pid_max = ",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
        // Once these values are set, they must still be printed, since they have to last.
        for (name, value) in text.lines().filter_map(|line| line.split_once(" = ")) {
            if !name.starts_with('#') {
                fake.set(&format!("proc/sys/{}", name.replace('.', "/")), value);
            }
        }
        let again = sysctl(&report_of(&fake, 1_000_000));
        assert!(again.contains("\nnet.ipv4.tcp_max_orphans = 1000000\n"), "{again}");
        assert!(!again.contains("# was"), "{again}");
    }

    #[test]
    fn packaged_sysctl_example_equals_the_printed_settings() {
        let fake = FakeMachine::usual();
        let printed = sysctl(&report_of(&fake, 1_000_000));
        let example = include_str!("../../../../packaging/sysctl.conf");
        let settings: Vec<&str> =
            example.lines().filter_map(|line| line.strip_prefix("#net.")).collect();
        assert_eq!(settings.len(), 3, "all else is words");
        for setting in settings {
            assert!(
                printed.contains(&format!("\nnet.{setting}\n")),
                "{setting} is not in {printed}"
            );
        }
        assert!(example.lines().all(|line| line.is_empty() || line.starts_with('#')));
    }

    #[test]
    fn printed_service_settings_equal_those_of_the_packaged_service() {
        let fake = FakeMachine::usual();
        let printed = systemd(&report_of(&fake, 1_000_000));
        let unit = include_str!("../../../../packaging/simurgh.service");
        let settings = printed.lines().filter(|line| line.contains('=') && !line.starts_with('#'));
        let settings: Vec<&str> = settings.filter(|line| !line.starts_with("After=")).collect();
        assert_eq!(settings.len(), 3, "{printed}");
        for setting in settings {
            assert!(unit.lines().any(|line| line == setting), "{setting} is not in the unit");
        }
        // More connections need more shards, and no other unit.
        let many = systemd(&report_of(&fake, 60_000_000));
        assert!(many.contains(&format!("\nTasksMax={TASKS_MAX}\n")), "{many}");
    }

    #[test]
    fn printed_limits_are_hard_limits_within_nr_open() {
        let fake = FakeMachine::usual();
        let text = limits(&report_of(&fake, 1_000_000));
        assert!(text.contains("\n*     hard  nofile  1048576\nroot  hard  nofile  1048576\n"));
        assert!(!text.contains("nproc"), "{text}");
        fake.set("proc/sys/fs/nr_open", "65536\n");
        fake.set("proc/self/limits", "Max processes 9 9 p\nMax open files 1024 4096 files\n");
        let text = limits(&report_of(&fake, 1_000_000));
        assert!(text.contains("\nroot  hard  nofile  65536\n"), "{text}");
        assert!(text.contains("\n*     -     nproc   "), "{text}");
        let text = systemd(&report_of(&fake, 1_000_000));
        assert!(text.contains("[Service]\nLimitNOFILE=65536\n") && text.contains("TasksMax="));
    }
}
