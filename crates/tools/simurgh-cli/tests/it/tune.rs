//! `simurgh tune` as a binary. Commands that change settings use a fake machine; on the real one it
//! only reads.

#[path = "../../../simurgh-tune/src/fake_machine.rs"]
mod fake_machine;

use crate::support::{Ran, run};
use fake_machine::FakeMachine;
use serde_json::Value;

/// Undo files are written to the fake machine.
#[track_caller]
fn tune(fake: &FakeMachine, flags: &[&str]) -> Ran {
    let root = fake.root().to_str().unwrap();
    run(fake.root(), &[&["tune", "--root", root], flags].concat())
}

/// The machine that runs the test is large enough for a thousand connections.
#[test]
fn tune_reads_the_machine_without_changing_it() {
    let dir = tempfile::tempdir().unwrap();
    let ran = run(dir.path(), &["tune", "--connections", "1000"]);
    assert!(matches!(ran.status.code(), Some(0 | 3)), "{ran:?}");
    assert!(
        ran.stdout.starts_with("1,000 connections, clients on other machines, "),
        "{}",
        ran.stdout
    );
    for word in ["limit ", "RLIMIT_NOFILE hard", "net.core.somaxconn", "memory"] {
        assert!(ran.stdout.contains(word), "{word:?} is not in\n{}", ran.stdout);
    }
    let last = ran.stdout.lines().last().unwrap();
    assert!(last.starts_with("this machine can hold about "), "{last}");
    assert!(last.contains(" shard") && last.contains("; the first limit is "), "{last}");
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "no file is left");
}

#[test]
fn table_and_exit_status_show_limits_that_are_too_small() {
    let fake = FakeMachine::usual();
    let before = fake.snapshot();
    let ran = tune(&fake, &["--connections", "2_000_000", "--local-clients"]);
    assert_eq!(ran.status.code(), Some(3), "{ran:?}");
    assert!(ran.stdout.starts_with("2,000,000 connections, clients on this machine too, "));
    let line = |start: &str| {
        let found = ran.stdout.lines().find(|line| line.starts_with(start));
        found.unwrap_or_default().to_owned()
    };
    assert!(line("LOW  fs.file-max").contains("sysctl -w fs.file-max=4"), "{}", ran.stdout);
    assert!(line("LOW  TCP hash table").contains("thash_entries=1048576"), "{}", ran.stdout);
    assert!(line("ok   RLIMIT_NOFILE hard").contains("20,000"), "{}", ran.stdout);
    assert!(
        line("with --apply, this machine can hold about 2,000,000 ").contains("first limit is fs.")
    );
    let last = ran.stdout.lines().last().unwrap();
    assert!(last.ends_with("the first limit is fs.file-max (for all but root)"), "{last}");
    assert!(ran.stdout.contains("tune cannot change it:\n  TCP hash table: "));
    assert_eq!(fake.snapshot(), before);
    let ran = tune(&fake, &["--connections", "1000"]);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
}

#[test]
fn json_output_has_limits_and_capacity() {
    let ran =
        tune(&FakeMachine::usual(), &["--connections", "2000000", "--local-clients", "--json"]);
    assert_eq!(ran.status.code(), Some(3));
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(json["connections"], 2_000_000);
    assert_eq!((&json["is_enough"], &json["local_clients"]), (&false.into(), &true.into()));
    let files = json["limits"].as_array().unwrap().iter();
    let files = files.clone().find(|row| row["limit"] == "fs.file-max").unwrap();
    assert_eq!((&files["state"], &files["can_apply"]), (&"too small".into(), &true.into()));
    assert_eq!(files["setting"]["now"][0], 2_466_177);
    assert_eq!(json["holds"]["first_limit"], "fs.file-max (for all but root)");
    assert!(json["would_hold"]["connections"].as_u64().unwrap() >= 2_000_000);
}

#[test]
fn print_flag_prints_only_the_configuration() {
    let fake = FakeMachine::usual();
    let before = fake.snapshot();
    let all = tune(&fake, &["--print", "all"]);
    assert_eq!((all.status.code(), all.stderr.as_str()), (Some(0), ""));
    let parts = ["sysctl", "limits", "systemd"].map(|kind| tune(&fake, &["--print", kind]).stdout);
    assert_eq!(all.stdout, parts.join("\n"));
    for (part, words) in parts.iter().zip([
        ["# /etc/sysctl.d/90-simurgh.conf\n", "\nnet.ipv4.tcp_max_orphans = 1000000\n"],
        ["# /etc/security/limits.d/90-simurgh.conf\n", "nofile  1048576\n"],
        ["# /etc/systemd/system/simurgh.service.d/", "\n[Service]\nLimitNOFILE=1048576\n"],
    ]) {
        assert!(words.iter().all(|word| part.contains(word)), "{words:?}: {part}");
    }
    assert_eq!(fake.snapshot(), before);
}

#[test]
fn undo_restores_applied_settings() {
    let fake = FakeMachine::usual();
    let before = fake.snapshot();
    let flags = ["--connections", "100000", "--local-clients"];
    let applied = tune(&fake, &[&["--apply"], flags.as_slice()].concat());
    assert_eq!(applied.status.code(), Some(0), "{applied:?}");
    for line in [
        "net.core.netdev_max_backlog 1000 → 10000\n",
        "net.ipv4.tcp_max_orphans 131072 → 200000\n",
        "`simurgh tune --undo simurgh-tune-undo.json` restores the old values\n",
    ] {
        assert!(applied.stderr.contains(line), "{line:?} is not in\n{}", applied.stderr);
    }
    assert!(!applied.stdout.contains("LOW"), "{}", applied.stdout);
    let again = tune(&fake, &[&["--apply"], flags.as_slice()].concat());
    assert_eq!(again.status.code(), Some(0));
    assert!(again.stderr.contains("no setting that --apply can change"), "{}", again.stderr);
    let more = tune(&fake, &["--apply", "--connections", "1000000"]);
    assert_eq!(more.status.code(), Some(1), "the first undo file is not given up");
    assert!(more.stderr.contains("exists and holds"), "{}", more.stderr);
    let undone = tune(&fake, &["--undo", "simurgh-tune-undo.json"]);
    assert_eq!((undone.status.code(), undone.stdout.as_str()), (Some(0), ""), "{undone:?}");
    assert!(undone.stderr.contains("net.core.netdev_max_backlog 10000 → 1000\n"));
    assert!(!fake.path("simurgh-tune-undo.json").exists());
    assert_eq!(fake.snapshot().len(), before.len());
    assert_eq!(fake.text("proc/sys/net/ipv4/tcp_max_orphans"), "131072");
}

#[test]
fn failed_setting_changes_are_reported_and_counted() {
    let fake = FakeMachine::usual();
    fake.refuse("proc/sys/fs/file-max");
    let ran = tune(&fake, &["--apply", "--undo-file", "u.json"]);
    assert_eq!(ran.status.code(), Some(3), "{ran:?}");
    assert!(ran.stderr.contains("fs.file-max stays 65536, not "), "{}", ran.stderr);
    assert!(ran.stderr.contains("net.ipv4.tcp_max_orphans 131072 → 1000000\n"), "{}", ran.stderr);
    assert!(ran.stdout.contains("LOW  fs.file-max"), "{}", ran.stdout);
    fake.set("proc/sys/net/ipv4/tcp_max_orphans", "7\n");
    let ran = tune(&fake, &["--undo", "u.json"]);
    assert_eq!(ran.status.code(), Some(3), "{ran:?}");
    assert!(ran.stderr.contains("and it is 7 now"), "{}", ran.stderr);
    assert!(ran.stderr.contains("u.json still has the values"), "{}", ran.stderr);
}

#[test]
fn apply_without_root_changes_nothing() {
    let fake = FakeMachine::usual();
    fake.set("proc/self/status", "Uid:\t0\t1000\t0\t0\n");
    let before = fake.snapshot();
    let ran = tune(&fake, &["--apply", "--connections", "2_000_000", "--local-clients"]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(ran.stderr.contains("needs root; nothing was changed"), "{}", ran.stderr);
    let command = "sudo simurgh tune --apply --connections 2000000 --local-clients";
    assert!(ran.stderr.contains(command), "{}", ran.stderr);
    assert_eq!(fake.snapshot(), before);
    assert!(!fake.path("simurgh-tune-undo.json").exists());
}

#[test]
fn invalid_tune_flags_are_named() {
    let fake = FakeMachine::usual();
    for (flags, word) in [
        (["--connections", "0"].as_slice(), "\"0\" is not a whole number from 1 to 80000000"),
        (&["--connections", "many"], "\"many\" is not a whole number"),
        (&["--connections", "80000001"], "\"80000001\" is not a whole number"),
        (&["--print", "bsd"], "possible values: sysctl, limits, systemd, all"),
        (&["--apply", "--undo", "x"], "cannot be used with"),
        (&["--apply", "--print", "all"], "cannot be used with"),
        (&["--json", "--print", "all"], "cannot be used with"),
        (&["--overwrite"], "--apply"),
        (&["--undo-file", "x"], "--apply"),
    ] {
        let ran = tune(&fake, flags);
        assert_eq!(ran.status.code(), Some(2), "{flags:?}: {ran:?}");
        assert!(ran.stderr.contains(word), "{flags:?}: {word:?} is not in\n{}", ran.stderr);
    }
    let ran = run(fake.root(), &["tune", "--root", "/dev/null"]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(ran.stderr.contains("there is no /dev/null/proc/sys"), "{}", ran.stderr);
    let ran = tune(&fake, &["--undo", "nothing.json"]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(ran.stderr.contains("nothing.json does not exist; nothing was changed"));
    let help = tune(&fake, &["--help"]).stdout;
    assert!(help.contains("3 if something is too low") && !help.contains("--root"), "{help}");
}
