//! `simurgh load` that ends before its time: killed, told to stop, or without a disk.

#[path = "../../../../crates/load/simurgh-load/tests/support/schema.rs"]
mod schema;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use wire_tests::{Load, LoadBuilder, Loaded, Server, count, eventually};

/// A run that is told to end has this long for it, on a machine that others use too.
const SOON: Duration = Duration::from_secs(10);

/// Users who join and stay, `rate` of them a second.
fn lobby(server: SocketAddr, rate: u32) -> LoadBuilder {
    Load::of_text(&format!(
        "name = \"lobby\"\nseed = 3\n\
         target = {{ url = \"ws://{server}\" }}\n\
         phase = [{{ duration = \"60s\", rate = {rate} }}]\n\
         [[session]]\nprotocol = \"phoenix\"\n\
         steps = [{{ connect = \"/socket/websocket\" }}, {{ join = \"rooms:lobby\" }},\n\
         {{ think = \"60s\" }}]\n"
    ))
}

fn patient() -> Server {
    Server::serve().args("--idle-timeout off").start()
}

fn sockets(server: &Server) -> u64 {
    server.metrics(|name| name == "simurgh_sockets") as u64
}

/// The journal's lines that are whole.
fn seconds(out: &Path) -> Vec<Value> {
    let text = fs::read(out.join("journal.jsonl")).unwrap_or_default();
    let lines = text.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

/// Users who started, by the journal's seconds in which some did.
fn users(out: &Path) -> Vec<u64> {
    let seconds = seconds(out).into_iter();
    seconds.filter_map(|line| line["all"]["counts"]["users_started"].as_u64()).collect()
}

/// Holds a report against the published form.
#[track_caller]
fn expect_published_form(report: &Value) {
    let published = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/report.schema.json");
    let published = serde_json::from_slice(&fs::read(published).unwrap()).unwrap();
    let mut faults = Vec::new();
    schema::check(&published, &published, report, "report", &mut faults);
    assert!(faults.is_empty(), "{faults:#?}");
}

/// All that a run leaves behind, whole and about the same run.
#[track_caller]
fn expect_whole(run: &Loaded) -> Value {
    assert!(!run.files().iter().any(|name| name.ends_with(".new")), "{:?}", run.files());
    assert!(run.file("match.log").starts_with("# timestamp"));
    assert!(run.file("report.html").trim_end().ends_with("</html>"));
    assert!(run.file("tsung.log").lines().last().unwrap().starts_with("EndMonitor"));
    let report = run.report();
    expect_published_form(&report);
    let (finished, aborted) = (count(&report, "users_finished"), count(&report, "users_aborted"));
    assert_eq!(finished + aborted, count(&report, "users_started"), "{report}");
    assert_eq!((&report["users"], &report["connected"]), (&json!(0), &json!(0)), "{report}");
    let last = seconds(&run.out).pop().unwrap();
    assert_eq!(last["ending"], report["ending"]);
    report
}

/// The report of a directory, made again.
fn report_of(dir: &Path) -> Loaded {
    Load::command("load report").arg(dir.display().to_string()).run()
}

/// A busy machine adds warnings of its own.
#[track_caller]
fn warns(report: &Value, code: &str) {
    let warnings = report["warnings"].as_array().unwrap();
    assert!(warnings.iter().any(|warning| warning["code"] == code), "{code}: {warnings:?}");
}

/// Killed in mid-run: the report can still be made, up to the last second that was written.
#[test]
fn a_killed_run_still_has_its_report() {
    let server = patient();
    let run = lobby(server.addr(), 100).start();
    eventually("three seconds in the journal", || seconds(run.out()).len() >= 4);
    run.signal(Signal::KILL);
    let run = run.end(SOON);
    assert_eq!(run.status.code(), None, "{}", run.all());
    let lines = seconds(&run.out);
    let sum = |name: &str| {
        let counts = lines.iter().map(|line| line["all"]["counts"][name].as_u64().unwrap_or(0));
        counts.sum::<u64>()
    };
    let made = report_of(&run.out).expect_code(0);
    assert!(made.stdout.contains("not finished"), "{}", made.stdout);
    let report = run.report();
    expect_published_form(&report);
    assert_eq!(report["ending"], Value::Null);
    warns(&report, "unfinished");
    for name in ["users_started", "joins", "joins_ok", "frames_in_text", "bytes_out"] {
        assert!(sum(name) > 0, "{name}");
        assert_eq!(count(&report, name), sum(name), "{name}");
    }
    assert_eq!(report["users"], lines.last().unwrap()["all"]["users"]);
    assert_eq!(report["series"]["columns"]["t_s"].as_array().unwrap().len(), lines.len() - 1);
    assert!(run.file("report.html").trim_end().ends_with("</html>"));
    assert!(run.file("tsung.log").contains("stats: users_count"));
    eventually("the server to have noticed", || sockets(&server) == 0);
}

/// A folder without a run in it is named in the message.
#[test]
fn report_of_a_folder_without_a_run_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    for path in [dir.path(), &file, &dir.path().join("missing")] {
        let made = report_of(path).expect_code(1);
        let named = made.stderr.contains(&path.join("journal.jsonl").display().to_string());
        assert!(named && made.stderr.contains("simurgh load --out"), "{}", made.stderr);
        assert!(made.stdout.is_empty());
    }
}

/// Told to stop at any moment: it ends soon and in good order, with all its files, or, before it
/// has begun, with none; and the server is left without a connection.
#[test]
fn signal_ends_the_run_gracefully() {
    let server = patient();
    // From before main to the middle of the run. The moments differ from run to run of this test.
    let moments_ms =
        [0, 2, 4, 8, 12, 16, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 800, 1000, 1300];
    for (n, ms) in moments_ms.into_iter().enumerate() {
        // Early ones are SIGTERM: what a shell starts in the background ignores SIGINT until it
        // says otherwise, and the tests may run there.
        let signal = if n % 2 == 0 && ms >= 500 { Signal::INT } else { Signal::TERM };
        let run = lobby(server.addr(), 400).args("--quiet").start();
        thread::sleep(Duration::from_millis(ms));
        run.signal(signal);
        let started = Instant::now();
        let run = run.end(SOON);
        let took = started.elapsed();
        if run.status.code().is_none() {
            // Before it could take signals, and before it had made anything.
            assert!(run.files().is_empty(), "after {ms} ms: {:?}", run.files());
            continue;
        }
        assert_eq!(run.code(), 0, "after {ms} ms: {}", run.all());
        let report = expect_whole(&run);
        assert_eq!(report["ending"], json!("stopped"), "after {ms} ms");
        assert_eq!(report["errors_total"], json!(0), "after {ms} ms: {}", run.all());
        assert!(took < SOON / 2, "after {ms} ms it took {took:?}");
        assert!(run.stdout.contains("stopped by the operator"), "{}", run.stdout);
    }
    eventually("no socket to be left", || sockets(&server) == 0);
}

/// A signal while the run ends by itself changes nothing, or next to nothing.
#[test]
fn signal_at_the_end_of_a_run_is_harmless() {
    let server = patient();
    for ms in [950, 980, 1000, 1010, 1020, 1050] {
        let run = lobby(server.addr(), 300).args("--duration 1s").start();
        eventually("the run to begin", || run.out().join("tsung.log").exists());
        thread::sleep(Duration::from_millis(ms));
        run.signal(Signal::INT);
        let run = run.end(SOON).expect_code(0);
        let report = expect_whole(&run);
        assert!(["duration", "stopped"].contains(&report["ending"].as_str().unwrap()));
    }
    eventually("no socket to be left", || sockets(&server) == 0);
}

/// A second signal ends it at once, with a shell's status for it; what was written is kept.
#[test]
fn second_signal_ends_the_run_at_once() {
    let server = patient();
    let run = lobby(server.addr(), 300).start();
    eventually("users in the journal", || !users(run.out()).is_empty());
    // Both are there when it looks, and the smaller number comes first.
    run.signal(Signal::STOP);
    run.signal(Signal::INT);
    run.signal(Signal::TERM);
    run.signal(Signal::CONT);
    let run = run.end(SOON);
    assert_eq!(run.code(), 143, "{}", run.all());
    report_of(&run.out).expect_code(0);
    assert!(count(&run.report(), "users_started") > 0);
    eventually("no socket to be left", || sockets(&server) == 0);
}

/// The same while the end in good order takes its time: a server that reads nothing.
#[test]
fn a_second_ctrl_c_does_not_wait_for_a_server_that_does_not_read() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    let run = Load::of_text(&format!(
        "name = \"stuck\"\n\
         target = {{ url = \"http://{server}\" }}\n\
         phase = [{{ duration = \"60s\", rate = 5 }}]\n\
         sources = {{ send_buffer_bytes = 8192 }}\n\
         [[session]]\n\
         steps = [{{ post = \"/\", body = \"{}\" }}]\n",
        "x".repeat(1 << 20)
    ));
    let run = run.start();
    eventually("users in the journal", || !users(run.out()).is_empty());
    run.signal(Signal::INT);
    thread::sleep(Duration::from_millis(100));
    run.signal(Signal::INT);
    let run = run.end(SOON);
    assert_eq!(run.code(), 130, "{}", run.all());
    report_of(&run.out).expect_code(0);
    assert!(count(&run.report(), "users_started") > 0);
}

/// The disk is full before the run is over: it goes on to its end, says of each file once that it
/// is given up, and the exit status tells.
#[test]
fn full_disk_loses_the_files_but_not_the_run() {
    // A limit of some blocks for each file; the same as a disk without room, but without root.
    let script = "ulimit -f 4; exec \"$@\"";
    let server = patient();
    let run = lobby(server.addr(), 1000).args("--duration 3s").under(script);
    let run = run.run().expect_code(1);
    assert!(run.stdout.contains("finished: the time was over"), "{}", run.stdout);
    let given_up = |name: &str| {
        let start = format!("  cannot write {name} (");
        run.stdout.lines().filter(|line| line.starts_with(&start)).count()
    };
    assert_eq!(given_up("report.html"), 1, "{}", run.stdout);
    for name in ["journal.jsonl", "report.json", "tsung.log", "match.log"] {
        assert!(given_up(name) <= 1, "{}", run.stdout);
    }
    let started = run.stdout.lines().find(|line| line.trim_start().starts_with("started"));
    let started = started.unwrap().split_whitespace().nth(1).unwrap().replace(',', "");
    assert!(started.parse::<u32>().unwrap() >= 2500, "{}", run.stdout);
}

/// Where nothing can be written, or somebody else writes, nothing is started.
#[test]
fn unwritable_output_directory_is_refused() {
    let server = patient();
    let first = lobby(server.addr(), 20).start();
    eventually("the first run to begin", || !seconds(first.out()).is_empty());
    let upgrades = || server.metrics(|name| name == "simurgh_upgrades_total");
    let other = patient();

    let same = lobby(other.addr(), 20).into_dir(first.out());
    let same = same.args("--overwrite --duration 2s").run().expect_code(1);
    assert!(same.stderr.contains("another run is writing there"), "{}", same.stderr);
    let before = upgrades();
    eventually("the first run to go on", || upgrades() > before);

    let full = lobby(other.addr(), 20).into_dir(first.out());
    let full = full.run().expect_code(1);
    assert!(full.stderr.contains("is not empty") && full.stderr.contains("--overwrite"));

    let file = first.out().join("journal.jsonl");
    let file = lobby(other.addr(), 20).into_dir(&file).run().expect_code(1);
    assert!(file.stderr.contains("journal.jsonl"), "{}", file.stderr);
    assert_eq!(other.metrics(|name| name == "simurgh_upgrades_total") as u64, 0);
    first.signal(Signal::INT);
    let report = expect_whole(&first.end(SOON).expect_code(0));
    assert!(count(&report, "users_started") > 0);
}

/// The scenario goes along with the results, but never over the file that it was read from.
#[test]
fn scenario_is_saved_with_the_results() {
    let server = patient();
    let run = lobby(server.addr(), 20).args("--duration 1s");
    let home = run.home().to_owned();
    let text = fs::read_to_string(home.join("scenario.toml")).unwrap();
    // The directory of the results is that of the scenario.
    let run = run.into_dir(&home).args("--overwrite").run().expect_code(0);
    assert_eq!(run.file("scenario.toml"), text);
    expect_whole(&run);
    let run = lobby(server.addr(), 20).args("--duration 1s").run().expect_code(0);
    assert!(run.file("scenario.toml").contains(&server.addr().to_string()));
    // From a pipe there is none, and the program does not wait for it.
    let script = "cat scenario.toml | exec \"$@\"";
    let run = lobby(server.addr(), 20).args("--duration 1s").under(script).piped();
    let run = run.run().expect_code(0);
    assert!(!run.files().contains(&"scenario.toml".to_owned()), "{:?}", run.files());
}
