//! Journal, report and logs, from outside.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{made_up, schema};
use serde_json::Value;
use simurgh_load::record::{Count, Ending, Record, Recorder, WorkerId, figures};
use simurgh_load::report::{self, Outputs, Replay};

fn write_run(dir: &Path) -> Record {
    let mut record = Record::new(made_up::meta());
    let mut outputs = Outputs::in_dir(dir, &mut record);
    let mut record = made_up::run_with(1, |record, tick| outputs.tick(record, tick));
    outputs.finish(&mut record);
    assert!(!outputs.failed(), "{:?}", record.warnings());
    record
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn journal_replays_to_the_same_record() {
    let dir = tempfile::tempdir().unwrap();
    let record = write_run(dir.path());
    let again = report::replay(dir.path()).unwrap();
    assert_eq!(again.summary(), record.summary());
    assert_eq!(again.all_times(), record.all_times());
    assert_eq!(report::summary(&again), report::summary(&record));
}

#[test]
fn killed_run_is_reported_up_to_the_last_complete_second() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path());
    let whole = fs::read(dir.path().join("journal.jsonl")).unwrap();
    // The head and a small second are enough: each cut means reading all that is before it.
    let lines: Vec<&[u8]> = whole.split_inclusive(|&byte| byte == b'\n').collect();
    let second = br#"{"at_ms":1000,"all":{"counts":{"joins":7}}}"#;
    let whole = [lines[0], second, b"\n", lines[lines.len() - 1]].concat();
    let last = whole.len() - lines[lines.len() - 1].len();
    let read = |bytes: &[u8]| {
        let mut replay = Replay::new(bytes).unwrap();
        while replay.next_tick().unwrap().is_some() {}
        replay.into_record()
    };
    let before = read(&whole[..last]);
    assert_eq!((before.at_ms(), before.counts()[Count::Joins]), (1000, 7));
    assert_eq!(codes(&before), ["unfinished"]);
    for end in last + 1..whole.len() - 1 {
        let record = read(&whole[..end]);
        assert_eq!(record.live().counts, before.live().counts, "cut at {end}");
        assert_eq!(record.at_ms(), before.at_ms());
        assert_eq!(codes(&record), ["journal_torn", "unfinished"]);
    }
    // Only the line end is missing.
    let all = read(&whole[..whole.len() - 1]);
    assert_eq!(all.ending(), Some(Ending::Duration));
    assert_eq!(all.at_ms(), 25_400);
}

fn codes(record: &Record) -> Vec<&'static str> {
    record.warnings().iter().map(|warning| warning.code()).collect()
}

#[test]
fn summary_shows_missing_messages_and_their_reasons() {
    let counts = [
        (Count::Broadcasts, 2_000),
        (Count::Deliveries, 78_253),
        (Count::DeliveriesExpected, 100_000),
        (Count::DeliveriesOnce, 76_253),
        (Count::DeliveriesMissing, 23_747),
        (Count::DeliveriesOutOfOrder, 3),
        (Count::ResumesRecovered, 7),
        (Count::ResumedMessages, 1_234),
        (Count::GapsTooMany, 2),
        (Count::gap("nobody has heard of it"), 4),
    ];
    let mut recorder = Recorder::new(WorkerId::default(), &made_up::names(), false);
    counts.iter().for_each(|(count, n)| recorder.count(*count, *n));
    let mut record = Record::new(made_up::meta());
    record.merge(recorder.take(0).unwrap());
    let _ = record.finish(1_000, Ending::Finished);
    let text = report::summary(&record);
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let rows: Vec<String> = text.lines().map(words).collect();
    for row in [
        "expected 100,000 100,000/s",
        "delivered 76,253 76.253 %",
        "missing 23,747 23.747 %",
        "double 0",
        "out of order 3 3/s",
        "recovered 7",
        "messages sent again 1,234",
        "gaps: too_many 2",
        "gaps: other 4",
    ] {
        assert!(rows.iter().any(|found| found == row), "{row:?} is not in\n{text}");
    }
    assert!(!text.contains("gaps: lost"), "{text}");
}

#[test]
fn every_gap_reason_has_its_own_counter() {
    for (reason, count) in Count::GAPS {
        assert_eq!((Count::gap(reason), count.name()), (count, &*format!("gaps_{reason}")));
    }
}

#[test]
fn invalid_journal_is_refused_with_a_reason() {
    let whole = br#"{"format":1}"#;
    for (text, says) in [
        (&b""[..], "line 1 is not the head"),
        (b"{}", "line 1 is not the head"),
        (b"\xFF\xFE", "line 1 is not the head"),
        (br#"{"format":99,"anything":1}"#, "format 99"),
        (&whole[..], "line 1 is not the head"),
    ] {
        let error = Replay::new(text).map(|_| ()).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
    let mut head = serde_json::to_vec(&made_up::meta()).unwrap();
    head.extend_from_slice(b"\n{\"at_ms\":1000}\nnonsense\n{\"at_ms\":2000}\n");
    let mut replay = Replay::new(head.as_slice()).unwrap();
    assert!(replay.next_tick().unwrap().is_some());
    let error = replay.next_tick().unwrap_err();
    assert!(error.contains("line 3 is damaged"), "{error}");
    let error = report::make(Path::new("/nonexistent/run")).map(|_| ()).unwrap_err();
    assert!(error.contains("/nonexistent/run/journal.jsonl"), "{error}");
}

#[test]
fn all_report_files_are_recreated_from_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path());
    let again = tempfile::tempdir().unwrap();
    fs::copy(dir.path().join("journal.jsonl"), again.path().join("journal.jsonl")).unwrap();
    report::make(again.path()).unwrap();
    for name in ["report.json", "junit.xml", "figures.csv", "tsung.log", "match.log"] {
        let (first, second) =
            (fs::read(dir.path().join(name)).unwrap(), fs::read(again.path().join(name)).unwrap());
        assert!(!first.is_empty() && first == second, "{name} differs");
    }
}

#[test]
fn each_condition_is_a_test_of_junit() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path());
    let xml = fs::read_to_string(dir.path().join("junit.xml")).unwrap();
    let (first, rest) = xml.split_once("<testsuite ").unwrap();
    assert_eq!(first, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    assert!(rest.starts_with("name=\"made up\" tests=\"4\" failures=\""), "{xml}");
    let passed = "<testcase classname=\"made up\" name=\"join_p99 &lt; 10s\"/>";
    assert!(xml.contains(passed), "{xml}");
    assert_eq!(xml.matches("<testcase ").count(), 4);
    let failures = xml.matches("<failure message=\"measured ").count();
    assert!(failures > 0 && rest.contains(&format!("failures=\"{failures}\"")), "{xml}");
}

#[test]
fn figures_file_has_the_values_of_the_report() {
    let dir = tempfile::tempdir().unwrap();
    let record = write_run(dir.path());
    let csv = fs::read_to_string(dir.path().join("figures.csv")).unwrap();
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("figure,value,unit"));
    let figures: BTreeMap<&str, f64> = lines
        .map(|line| {
            let (rest, _) = line.rsplit_once(',').unwrap();
            let (name, value) = rest.rsplit_once(',').unwrap();
            (name, value.parse().unwrap())
        })
        .collect();
    for (name, value) in &figures {
        // Names of the test have blanks, which conditions cannot have.
        if !name.contains(' ') {
            // Times are rounded to microseconds.
            let known = figures::lookup(&record, name).unwrap();
            assert!((known - value).abs() <= 0.5, "{name}: {known} is written as {value}");
        }
    }
    assert!(figures.contains_key("join_p99.9") && figures.contains_key("errors"));
}

#[test]
fn run_in_progress_is_reported_without_changing_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut opened = Record::new(made_up::meta());
    let mut outputs = Outputs::in_dir(dir.path(), &mut opened);
    let mut seconds = 0;
    made_up::run_with(1, |record, tick| {
        seconds += 1;
        if seconds <= 12 {
            outputs.tick(record, tick);
        }
    });
    let log = dir.path().join("tsung.log");
    let before = fs::read(&log).unwrap();
    let so_far = report::make(dir.path()).unwrap();
    assert_eq!((so_far.at_ms(), so_far.ending()), (12_000, None));
    assert_eq!(fs::read(&log).unwrap(), before, "the run writes it");
    // Another run is refused and changes nothing.
    let mut other = Record::new(made_up::meta());
    let others = Outputs::in_dir(dir.path(), &mut other);
    assert!(others.failed());
    assert!(other.warnings()[0].to_string().contains("another run is writing"));
    assert_eq!(report::replay(dir.path()).unwrap().at_ms(), 12_000);
    assert_eq!(fs::read(&log).unwrap(), before);
    // Killed: the lock is released.
    drop((others, outputs));
    report::make(dir.path()).unwrap();
    assert_ne!(fs::read(&log).unwrap(), before);
}

#[test]
fn full_disk_costs_one_warning_for_each_file_but_not_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["journal.jsonl", "tsung.log", "match.log", "report.json.new"];
    for name in names {
        std::os::unix::fs::symlink("/dev/full", dir.path().join(name)).unwrap();
    }
    let mut opened = Record::new(made_up::meta());
    let mut outputs = Outputs::in_dir(dir.path(), &mut opened);
    let mut record = made_up::run_with(1, |record, tick| outputs.tick(record, tick));
    outputs.finish(&mut record);
    assert!(outputs.failed());
    let mut warnings = codes(&opened);
    warnings.extend(codes(&record));
    // Three cannot be opened, report.json fails when it is first written, after 10 s.
    let failed = warnings.iter().filter(|code| **code == "output_failed").count();
    assert_eq!(failed, 4, "{warnings:?}");
    assert_eq!(record.at_ms(), 25_400);
    assert!(!dir.path().join("report.json").exists());
    assert!(report::summary(&record).contains("cannot write report.json"));
}

#[test]
fn uncreatable_report_directory_is_reported() {
    let mut record = Record::new(made_up::meta());
    let outputs = Outputs::in_dir(Path::new("/proc/nowhere/run"), &mut record);
    assert!(outputs.failed());
    assert!(record.warnings().iter().all(|warning| warning.code() == "output_failed"));
}

#[test]
fn json_report_matches_its_schema() {
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/report.schema.json");
    let schema = read_json(&schema);
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path());
    let report = read_json(&dir.path().join("report.json"));
    let mut faults = Vec::new();
    schema::check(&schema, &schema, &report, "report", &mut faults);
    assert!(faults.is_empty(), "{faults:#?}");
    // An empty run has the same form.
    let empty = serde_json::to_value(Record::new(made_up::meta()).summary()).unwrap();
    schema::check(&schema, &schema, &empty, "empty", &mut faults);
    assert!(faults.is_empty(), "{faults:#?}");
    // The check must be able to fail.
    let mut wrong = report;
    wrong["users"] = "many".into();
    wrong["novelty"] = 1.into();
    wrong.as_object_mut().unwrap().remove("errors");
    schema::check(&schema, &schema, &wrong, "wrong", &mut faults);
    assert_eq!(faults.len(), 3, "{faults:#?}");
}

#[test]
fn report_schema_names_every_counter() {
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/report.schema.json");
    let schema = read_json(&schema);
    let known = schema["$defs"]["counts"]["properties"].as_object().unwrap();
    let names: Vec<&str> = known.keys().map(String::as_str).collect();
    let mut counts: Vec<&str> = Count::ALL.iter().map(|count| count.name()).collect();
    counts.sort_unstable();
    assert_eq!(names, counts);
}

/// The content of a `tsung.log`: for each name the fields of its last line.
fn last_lines(log: &str) -> BTreeMap<String, Vec<f64>> {
    let mut last = BTreeMap::new();
    for line in log.lines().filter_map(|line| line.strip_prefix("stats: ")) {
        let mut fields = line.split(' ');
        let name = fields.next().unwrap().to_owned();
        last.insert(name, fields.map(|field| field.parse().unwrap()).collect());
    }
    last
}

#[test]
fn tsung_log_has_the_totals_of_the_record() {
    let dir = tempfile::tempdir().unwrap();
    let record = write_run(dir.path());
    let log = fs::read_to_string(dir.path().join("tsung.log")).unwrap();
    let dumps: Vec<&str> =
        log.lines().filter_map(|line| line.strip_prefix("# stats: dump at ")).collect();
    assert_eq!(dumps, ["1700000000", "1700000010", "1700000020", "1700000025"]);
    assert!(log.ends_with("EndMonitor:{1700,25,650000}\n"), "{log}");
    let last = last_lines(&log);
    let total = |name: &str| last[name][1] as u64;
    let counts = record.counts();
    assert_eq!(total("users_count"), counts[Count::UsersStarted]);
    assert_eq!(total("size_rcv"), counts[Count::BytesIn]);
    assert_eq!(total("websocket_succ"), counts[Count::Upgrades]);
    assert_eq!(
        total("error_connect_econnrefused"),
        record.errors().iter().next().unwrap().2 + record.errors().iter().nth(1).unwrap().2
    );
    assert_eq!(total("users"), record.users_peak());
    assert_eq!(total("200"), record.statuses()[&200]);
    assert_eq!(total("connected"), record.connected());
    assert_eq!(last["connect"][6] as u64, counts[Count::Connects]);
    assert_eq!(last["request"][6] as u64, 2 * counts[Count::Connects]);
    assert!(last.contains_key("tr_odd_name_with_blanks"));
    // The sums of the blocks are the totals.
    let sums: u64 = log
        .lines()
        .filter_map(|line| line.strip_prefix("stats: connect "))
        .map(|line| line.split(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(sums, counts[Count::Connects]);
}

#[test]
fn match_log_has_the_format_of_tsung() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path());
    let log = fs::read_to_string(dir.path().join("match.log")).unwrap();
    let mut lines = log.lines();
    let head = "# timestamp userid sessionid requestid event transaction name";
    assert_eq!(lines.next(), Some(head));
    let lines: Vec<Vec<&str>> = lines.map(|line| line.splitn(7, ' ').collect()).collect();
    assert_eq!(lines.len(), 75);
    for fields in &lines {
        let (seconds, micros) = fields[0].split_once('.').unwrap();
        assert!(seconds.starts_with("17000000") && micros.len() == 6, "{fields:?}");
        assert_eq!(fields[2..], ["1", "2", "nomatch", "tr_login", "a name"]);
    }
}

#[test]
fn single_times_are_logged_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let mut meta = made_up::meta();
    meta.full_stats = true;
    let mut outputs = Outputs::in_dir(dir.path(), &mut Record::new(meta));
    let record = made_up::run_with(1, |record, tick| outputs.tick(record, tick));
    let log = fs::read_to_string(dir.path().join("tsung-fullstats.log")).unwrap();
    let mut connects = 0;
    for line in log.lines() {
        let inner = line.strip_prefix("{sample,").and_then(|line| line.strip_suffix("]}"));
        let (name, samples) = inner.unwrap().split_once(",[").unwrap();
        let samples: Vec<f64> = samples.split(',').map(|ms| ms.parse().unwrap()).collect();
        connects += if name == "connect" { samples.len() as u64 } else { 0 };
    }
    assert_eq!(connects, record.counts()[Count::Connects]);
}

/// Where Debian's package has Tsung's scripts.
const TSUNG_SCRIPTS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu/tsung/bin",
    "/usr/lib/aarch64-linux-gnu/tsung/bin",
    "/usr/lib/tsung/bin",
];

#[test]
fn tsung_stats_accepts_the_log() {
    let script = TSUNG_SCRIPTS.iter().map(|dir| Path::new(dir).join("tsung_stats.pl"));
    let Some(script) = script.into_iter().find(|script| script.exists()) else {
        eprintln!("SKIPPED: tsung is not installed (apt install tsung)");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let record = write_run(dir.path());
    for dygraph in [true, false] {
        let run = tempfile::tempdir().unwrap();
        fs::copy(dir.path().join("tsung.log"), run.path().join("tsung.log")).unwrap();
        let mut command = Command::new(&script);
        command.current_dir(run.path());
        if dygraph {
            command.arg("--dygraph");
        } else {
            // Drawing is done by gnuplot and takes seconds.
            command.arg("--noplot");
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert!(said.trim().is_empty(), "it complains: {said}");
        let report = fs::read_to_string(run.path().join("report.html")).unwrap();
        let has = |what: &str| assert!(report.contains(what), "no {what} in report.html");
        has(&record.counts()[Count::Connects].to_string());
        has(&record.counts()[Count::UsersStarted].to_string());
        has("tr_login");
        has("error_connect_econnrefused");
        let data = fs::read_to_string(run.path().join("data/users.txt")).unwrap();
        assert_eq!(data.lines().count(), 4, "a line for each block");
        if dygraph {
            let csv = run.path().join("csv_data/graphes-Users-simultaneous.csv");
            assert!(fs::read_to_string(csv).unwrap().starts_with("time,"));
        }
    }
}

#[test]
fn tsung_percentile_reads_single_times() {
    let script = TSUNG_SCRIPTS.iter().map(|dir| Path::new(dir).join("tsung_percentile.pl"));
    let Some(script) = script.into_iter().find(|script| script.exists()) else {
        eprintln!("SKIPPED: tsung is not installed (apt install tsung)");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut meta = made_up::meta();
    meta.full_stats = true;
    let mut outputs = Outputs::in_dir(dir.path(), &mut Record::new(meta));
    let record = made_up::run_with(1, |record, tick| outputs.tick(record, tick));
    let output = Command::new(script).current_dir(dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("JSON.pm") {
        eprintln!("SKIPPED: Perl's JSON is not installed (apt install libjson-perl)");
        return;
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let wanted = format!("Read : {} values for sample,connect", record.counts()[Count::Connects]);
    assert!(text.contains(&wanted), "{text}{said}");
}

#[test]
fn text_summary_shows_the_important_results() {
    let text = report::summary(&made_up::run(1));
    for what in [
        "made up: finished: the time was over, after 25.4 s",
        "against 127.0.0.1:4000 from local, agent.example:9000 (3 workers), seed 7",
        "join",
        "tr_login",
        "connect_refused",
        "it said",
        "the clock of agent.example:9000 differs by -1.500 ms, known to ± 0.080 ms",
        "nothing  FAILED",
        " ms",
        "MB/s",
    ] {
        let what = if what == "MB/s" { "B/s" } else { what };
        assert!(text.contains(what), "no {what:?} in\n{text}");
    }
    // Warnings are sentences; tables fit.
    let sentence = |line: &str| line.starts_with("  the ");
    let wide = text.lines().find(|line| !sentence(line) && line.chars().count() > 110);
    assert_eq!(wide, None, "{text}");
}
