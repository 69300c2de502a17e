//! Settings of a fake machine are written and restored.

use super::super::fake_machine::FakeMachine;
use super::super::{Report, Wanted, report};
use super::*;

const WANTED: Wanted = Wanted { connections: 1_000_000, local_clients: true };

fn report_of(fake: &FakeMachine) -> Report {
    report(fake.root(), WANTED).unwrap()
}

fn apply_all(fake: &FakeMachine, file: &Path) -> Done {
    apply(fake.root(), &report_of(fake).changes(), file, false).unwrap()
}

fn step<'a>(done: &'a Done, name: &str) -> &'a Step {
    done.steps.iter().find(|step| step.name == name).expect(name)
}

#[test]
fn apply_writes_all_settings_and_undo_restores_them() {
    let fake = FakeMachine::usual();
    fake.set("proc/sys/net/core/somaxconn", "128\n");
    let file = fake.path("undo.json");
    let before = fake.snapshot();
    let done = apply_all(&fake, &file);
    assert!(done.undo_file_is_there && done.warning.is_none() && done.steps.len() >= 4);
    assert!(done.steps.iter().all(|step| step.outcome == Outcome::Written), "{done:?}");
    let shown = step(&done, "net.core.somaxconn").to_string();
    assert_eq!(shown, "net.core.somaxconn 128 → 4096");
    assert_eq!(fake.text("proc/sys/net/core/somaxconn"), "4096");
    assert_eq!(report_of(&fake).changes(), []);

    let undone = undo(fake.root(), &file).unwrap();
    assert_eq!(undone.steps.len(), done.steps.len());
    assert!(!undone.undo_file_is_there && !file.exists(), "{undone:?}");
    let shown = step(&undone, "net.core.somaxconn").to_string();
    assert_eq!(shown, "net.core.somaxconn 4096 → 128");
    let spaces = |files: Vec<(&'static str, String)>| -> Vec<String> {
        files.iter().map(|(_, text)| text.replace('\t', " ")).collect()
    };
    assert_eq!(spaces(fake.snapshot()), spaces(before));
}

#[test]
fn undo_file_exists_before_any_setting_changes() {
    let fake = FakeMachine::usual();
    let before = fake.snapshot();
    let changes = report_of(&fake).changes();
    let nowhere = fake.path("no/such/directory/undo.json");
    let why = apply(fake.root(), &changes, &nowhere, false).unwrap_err();
    assert!(why.contains("cannot write") && why.contains("--undo-file"), "{why}");
    let file = fake.path("undo.json");
    std::fs::write(&file, "precious").unwrap();
    let why = apply(fake.root(), &changes, &file, false).unwrap_err();
    assert!(
        why.contains("holds the values before an earlier --apply") && why.contains("--overwrite"),
        "{why}"
    );
    assert_eq!(fake.text("undo.json"), "precious");
    assert_eq!(fake.snapshot(), before);
    assert!(apply(fake.root(), &changes, &file, true).unwrap().undo_file_is_there);
    assert!(load(&file).is_ok());
}

#[test]
fn setting_refused_by_the_kernel_is_reported_and_others_are_applied() {
    let fake = FakeMachine::usual();
    fake.refuse("proc/sys/fs/file-max");
    let file = fake.path("undo.json");
    let done = apply_all(&fake, &file);
    let refused = step(&done, "fs.file-max");
    assert!(matches!(&refused.outcome, Outcome::Refused(why) if why.contains("cannot write")));
    assert!(refused.to_string().starts_with("fs.file-max stays 65536, not 2"), "{refused}");
    assert_eq!(done.steps.iter().filter(|step| !step.is_done()).count(), 1, "{done:?}");
    assert!(!fake.text("undo.json").contains("fs.file-max"), "nothing was changed there");
    assert!(undo(fake.root(), &file).unwrap().steps.iter().all(Step::is_done));
}

#[test]
fn apply_without_changes_leaves_no_undo_file() {
    let fake = FakeMachine::usual();
    fake.refuse("proc/sys/fs/file-max");
    let file = fake.path("undo.json");
    let changes = report_of(&fake).changes();
    let only: Vec<_> = changes.into_iter().filter(|one| one.name == "fs.file-max").collect();
    let done = apply(fake.root(), &only, &file, false).unwrap();
    assert!(!done.undo_file_is_there && !file.exists());
    assert_eq!(apply(fake.root(), &[], &file, false), Ok(Done::default()));
}

#[test]
fn undo_leaves_settings_changed_by_others() {
    let fake = FakeMachine::usual();
    let file = fake.path("undo.json");
    apply_all(&fake, &file);
    fake.set("proc/sys/net/ipv4/tcp_max_orphans", "5000000\n");
    fake.set("proc/sys/net/ipv4/tcp_max_tw_buckets", "131072\n");
    let undone = undo(fake.root(), &file).unwrap();
    let left = step(&undone, "net.ipv4.tcp_max_orphans");
    assert_eq!(left.outcome, Outcome::ChangedSince("5000000".to_owned()));
    assert!(left.to_string().contains("and it is 5000000 now"), "{left}");
    assert_eq!(step(&undone, "net.ipv4.tcp_max_tw_buckets").outcome, Outcome::AlreadyThere);
    assert_eq!(fake.text("proc/sys/net/ipv4/tcp_max_orphans"), "5000000");
    assert_eq!(fake.text("proc/sys/net/ipv4/tcp_mem"), "287901 383868 575802");
    // Only that one is left to restore.
    assert!(undone.undo_file_is_there);
    let again = undo(fake.root(), &file).unwrap();
    assert_eq!(again.steps.len(), 1, "{again:?}");
}

#[test]
fn setting_raised_meanwhile_is_not_lowered() {
    let fake = FakeMachine::usual();
    let changes = report_of(&fake).changes();
    fake.set("proc/sys/net/ipv4/tcp_max_orphans", "9000000\n");
    let done = apply(fake.root(), &changes, &fake.path("undo.json"), false).unwrap();
    assert!(step(&done, "net.ipv4.tcp_max_orphans").to_string().contains("9000000 meanwhile"));
    assert_eq!(fake.text("proc/sys/net/ipv4/tcp_max_orphans"), "9000000");
}

#[test]
fn invalid_undo_files_are_refused_with_the_reason() {
    let fake = FakeMachine::usual();
    let before = fake.snapshot();
    let entry = |name: &str, values: &str| {
        format!("{{\"simurgh_tune_undo\": 1, \"changes\": [{{\"name\": \"{name}\", {values}}}]}}")
    };
    for (text, word) in [
        (String::new(), "is not an undo file"),
        ("{}".to_owned(), "missing field"),
        ("{\"simurgh_tune_undo\": 2, \"changes\": []}".to_owned(), "version 2"),
        (entry("fs.file-max", "\"before\": [1], \"after\": [-1]"), "invalid value"),
        (entry("fs.file-max", "\"before\": [1], \"after\": [1, 2]"), "do not match"),
        (entry("fs.file-max", "\"before\": [], \"after\": []"), "do not match"),
        (entry("../../etc/passwd", "\"before\": [1], \"after\": [2]"), "never changes"),
        (entry("kernel.panic", "\"before\": [1], \"after\": [0]"), "never changes"),
    ] {
        fake.set("undo.json", &text);
        let why = undo(fake.root(), &fake.path("undo.json")).unwrap_err();
        assert!(why.contains(word) && why.contains("undo.json"), "{text}: {why}");
    }
    let why = undo(fake.root(), &fake.path("none.json")).unwrap_err();
    assert!(why.contains("does not exist") && why.contains("none.json"), "{why}");
    assert_eq!(fake.snapshot(), before);
}

#[test]
fn every_changeable_setting_can_be_undone() {
    let fake = FakeMachine::usual();
    fake.set("proc/sys/net/netfilter/nf_conntrack_max", "1\n");
    fake.set("proc/sys/net/netfilter/nf_conntrack_count", "1\n");
    let settings = report_of(&fake).rows.into_iter().filter_map(|row| row.setting);
    let mut names: Vec<_> = settings.map(|setting| setting.name).collect();
    names.sort_unstable();
    let writable = SYSCTLS.iter().filter(|it| it.2).map(|it| it.0);
    assert_eq!(names, writable.collect::<Vec<_>>());
}
