//! `simurgh load` from outside: the Tsung file of the 2015 Phoenix benchmark, what it says it sent
//! against what the server says it got, thresholds, and the ways from one form of a scenario to
//! another.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use wire_tests::{Load, LoadBuilder, Server, count, eventually};

/// The longest of the files takes 7 s, and all run at the same time.
const LONG: Duration = Duration::from_secs(60);

/// A fixture from the 2015 Phoenix benchmark or from Tsung's manual.
fn fixture(name: &str) -> PathBuf {
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/load/simurgh-load/tests/tsung");
    Path::new(tests).join(name).canonicalize().unwrap()
}

/// A server that lets quiet clients stay, as Tsung's are.
fn patient() -> Server {
    Server::serve().args("--idle-timeout off --check-origin off").start()
}

/// A run of a fixture on this host, whatever hosts it names.
fn local(name: &str, server: SocketAddr) -> LoadBuilder {
    let mut run = Load::of(&fixture(name)).args("--local");
    for host in ["server_ip_address", "KEMAL_HOST_IP", "127.0.0.1", "localhost"] {
        if fs::read_to_string(fixture(name)).unwrap().contains(&format!("host=\"{host}\"")) {
            run = run.map(host, server);
        }
    }
    run
}

/// A metric, summed over the shards.
fn metric(server: &Server, name: &str) -> u64 {
    server.metrics(|metric| metric == name) as u64
}

/// Users that started ended, one way or the other.
#[track_caller]
fn expect_all_users_ended(report: &Value, started: u64) {
    let (finished, aborted) = (count(report, "users_finished"), count(report, "users_aborted"));
    assert_eq!(count(report, "users_started"), started, "{report}");
    assert_eq!(finished + aborted, started, "{report}");
    assert_eq!((&report["users"], &report["connected"]), (&json!(0), &json!(0)));
}

fn frames_out(report: &Value) -> u64 {
    count(report, "frames_out_text") + count(report, "frames_out_binary")
}

/// The Tsung file of the 2015 Phoenix benchmark, unchanged: what the report says was sent is what
/// the server received, to the byte, and all that a run leaves behind is there.
#[test]
fn load_and_server_count_the_2015_phoenix_benchmark_alike() {
    let server = patient();
    let mut looks = 0;
    let mut bytes = || {
        looks += 1;
        (metric(&server, "simurgh_received_bytes_total"), looks)
    };
    // Each look at the metrics costs the same number of bytes, which are counted too.
    let ((first, _), (second, _)) = (bytes(), bytes());
    let look = second - first;
    let run = local("phoenix.xml", server.addr()).args("--max-users 300 --duration 3s").run();
    let report = run.report();
    let sent = count(&report, "bytes_out");
    eventually("the server to have read all that the report says was sent", || {
        let (now, looks) = bytes();
        now == first + sent + look * (looks - 1)
    });
    let run = run.expect_code(0);
    expect_all_users_ended(&report, 300);
    assert_eq!(report["errors_total"], json!(0), "{}", run.all());
    assert_eq!(report["ending"], json!("duration"));
    assert_eq!(metric(&server, "simurgh_messages_in_total"), frames_out(&report));
    assert_eq!(metric(&server, "simurgh_upgrades_total"), count(&report, "upgrades"));
    assert_eq!((metric(&server, "simurgh_joins_total"), frames_out(&report)), (300, 300));
    eventually("no socket to be left", || metric(&server, "simurgh_sockets") == 0);
    let message = report["metrics"].as_array().unwrap().iter().find(|m| m["name"] == "message");
    assert_eq!(message.expect("joins were timed")["count"], json!(300));

    for name in ["journal.jsonl", "match.log", "report.html", "report.json", "tsung.log"] {
        assert!(run.files().contains(&name.to_owned()), "no {name}: {:?}", run.files());
    }
    assert!(run.stdout.contains("300"), "{}", run.stdout);
    assert!(run.file("report.html").trim_end().ends_with("</html>"));
    assert!(run.file("tsung.log").contains(&format!("stats: size_sent {sent} {sent}")));
    assert!(run.file("journal.jsonl").lines().count() >= 4);
    assert!(run.file("match.log").starts_with("# timestamp"));
}

/// The other Tsung file of that benchmark, against the server it is for.
#[test]
fn kemal_benchmark_run_has_the_expected_counts() {
    let server = Server::plain_chat().start();
    let run = local("kemal.xml", server.addr()).args("--max-users 50 --duration 3s").run();
    let report = run.expect_code(0).report();
    expect_all_users_ended(&report, 50);
    assert_eq!(frames_out(&report), 50);
    assert_eq!(report["errors_total"], json!(0));
    // Every message goes to everybody who is there by then, and the first of them is the answer.
    assert!(count(&report, "frames_in_binary") >= 50 * 51 / 2, "{report}");
}

/// Every other file of Tsung's that we have runs to its end.
#[test]
fn all_tsung_files_run_to_their_end() {
    let server = patient();
    let runs = [
        ("type-websocket.xml", "--max-users 20", "finished"),
        ("no-doctype.xml", "--duration 2s", "duration"),
        ("sep.xml", "--duration 2s", "duration"),
        ("bad-nounit.xml", "--duration 1s", "duration"),
        ("bad-lead.xml", "--duration 1s", "duration"),
        ("dialect.xml", "", "finished"),
        ("dialect-full.xml", "", "finished"),
    ];
    let runs =
        runs.map(|(name, args, end)| (name, end, local(name, server.addr()).args(args).start()));
    for (name, end, run) in runs {
        let run = run.end(LONG).expect_code(0);
        let report = run.report();
        assert_eq!(report["ending"], json!(end), "{name}: {}", run.all());
        expect_all_users_ended(&report, count(&report, "users_started"));
        assert!(count(&report, "users_started") >= 5, "{name}: {}", run.all());
        assert!(frames_out(&report) > 0, "{name}: {}", run.all());
        let dump = name == "dialect.xml";
        assert_eq!(run.out.join("tsung.dump").exists(), dump, "{name}");
        let every = name == "dialect-full.xml";
        assert_eq!(run.out.join("tsung-fullstats.log").exists(), every, "{name}");
    }
    eventually("no connection to be left", || metric(&server, "simurgh_sockets") == 0);
}

/// A user that was closed for being quiet comes back, with a handshake, for its next message.
#[test]
fn tsung_user_reconnects_after_a_lost_connection() {
    let server = Server::serve().args("--idle-timeout 1s").start();
    let report = local("reconnect.xml", server.addr()).run().expect_code(0).report();
    let users = count(&report, "users_started");
    expect_all_users_ended(&report, users);
    assert_eq!(count(&report, "reconnects"), users, "{report}");
    assert_eq!(metric(&server, "simurgh_upgrades_total"), 2 * users);
    assert_eq!(metric(&server, "simurgh_idle_timeouts_total"), users);
    let closed = |kind: &str| {
        let errors = report["errors"].as_array().unwrap();
        errors.iter().find(|row| row["kind"] == kind).map(|row| row["count"].clone())
    };
    // The second time for saying "again", which is not a message of Channels.
    assert_eq!(closed("closed_1002"), Some(json!(users)), "{report}");
    assert_eq!(closed("closed_1011"), Some(json!(users)), "{report}");
}

/// A small scenario of Channels users, `users` of them in a second.
fn lobby(server: SocketAddr, users: u32, pass: &str) -> String {
    format!(
        "name = \"lobby\"\n\
         target = {{ url = \"ws://{server}\" }}\n\
         phase = [{{ duration = \"1s\", rate = {users} }}]\n\
         [[session]]\n\
         protocol = \"phoenix\"\n\
         steps = [{{ connect = \"/socket/websocket\" }}, {{ join = \"rooms:lobby\" }},\n\
         {{ think = \"200ms\" }}, {{ close = true }}]\n\
         [pass]\n{pass}"
    )
}

/// Without a server the run goes to its end, counts each failure, and says what to look at.
#[test]
fn unreachable_server_is_reported_with_advice() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = port.local_addr().unwrap();
    drop(port);
    let run = Load::of_text(&lobby(nobody, 20, "errors = \"== 0\"\n")).run().expect_code(3);
    let report = run.report();
    expect_all_users_ended(&report, 20);
    assert_eq!(report["errors"][0]["kind"], json!("connect_refused"));
    assert_eq!(report["errors"][0]["count"], json!(20));
    assert_eq!(report["warnings"][0]["code"], json!("server_refused"));
    assert!(run.stdout.contains("Is it running there?"), "{}", run.stdout);
}

/// The example is a scenario that passes against the server as it stands.
#[test]
fn load_example_passes_its_thresholds() {
    let server = patient();
    let init = Load::command("load init");
    let file = init.home().join("example.toml");
    let _init = init.arg(file.display().to_string()).run().expect_code(0);
    let run = Load::of(&file).map("127.0.0.1", server.addr()).args("--duration 4s --rate 20").run();
    let report = run.expect_code(0).report();
    assert_eq!(report["passed"], json!(true), "{report}");
    for counted in ["joins_ok", "broadcasts", "deliveries", "http_answers"] {
        assert!(count(&report, counted) > 0, "{counted}: {report}");
    }
}

/// A hundred workers, each with a descriptor table of its own, share the users.
#[test]
fn run_with_a_hundred_workers_succeeds() {
    let server = patient();
    let pass = "errors = \"== 0\"\nusers_finished = \"== 300\"\n";
    let run = Load::of_text(&lobby(server.addr(), 300, pass)).args("--workers 100").run();
    let report = run.expect_code(0).report();
    assert_eq!(report["workers"].as_array().unwrap().len(), 100);
    assert_eq!(metric(&server, "simurgh_joins_total"), 300);
    expect_all_users_ended(&report, 300);
}
