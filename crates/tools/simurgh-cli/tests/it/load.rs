//! `simurgh load` as a binary: flags, explanations, conversions, runs and exit statuses.

use std::path::Path;

use crate::cluster_load::run_shipped;
use crate::support::{Server, directory, run};
use serde_json::Value;

/// A scenario of a few users that ends within a second; `{steps}` follow the join.
fn scenario(address: &str, steps: &str, pass: &str) -> String {
    format!(
        "name = \"short\"\n[target]\nurl = \"ws://{address}\"\n[[phase]]\nduration = \"200ms\"\n\
         rate = 50\n[[session]]\nprotocol = \"phoenix\"\nsteps = [\n\
         {{ connect = \"/socket/websocket\" }},\n{{ join = \"rooms:lobby\" }},\n{steps}\n]\n\
         [pass]\n{pass}\n"
    )
}

fn report(dir: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(dir.join("report.json")).unwrap()).unwrap()
}

#[test]
fn printed_example_is_valid_and_can_be_explained() {
    let dir = directory(&[]);
    let printed = run(dir.path(), &["load", "init"]);
    assert_eq!(printed.status.code(), Some(0));
    assert!(printed.stdout.lines().all(|line| line.chars().count() <= 100));
    let written = run(dir.path(), &["load", "init", "a.toml"]);
    assert_eq!((written.status.code(), written.stdout.as_str()), (Some(0), ""), "{written:?}");
    let text = std::fs::read_to_string(dir.path().join("a.toml")).unwrap();
    assert_eq!(text, printed.stdout);
    let again = run(dir.path(), &["load", "init", "a.toml"]);
    assert_eq!(again.status.code(), Some(1), "a file that is there is left alone");
    let ran = run(dir.path(), &["load", "check", "a.toml", "--rate", "600/min"]);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    for expected in [
        "the run ends after 15 s",
        "10 users per second",
        "session talker",
        "{ join = \"rooms:{{random_number 1 3}}\"",
    ] {
        assert!(ran.stdout.contains(expected), "{expected:?} is not in\n{}", ran.stdout);
    }
    // The examples in its comments are valid, too.
    std::fs::write(dir.path().join("all.toml"), uncomment(&text)).unwrap();
    std::fs::write(dir.path().join("accounts.csv"), "ann;secret\n").unwrap();
    let ran = run(dir.path(), &["load", "check", "all.toml"]);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert!(ran.stdout.contains("agent   10.0.0.3:4100"), "{}", ran.stdout);
}

/// Uncomments keys and tables after a `#` without a blank.
fn uncomment(text: &str) -> String {
    let line = |line: &str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|char: char| char == '[' || char.is_alphabetic()) => {
            rest.to_owned()
        }
        _ => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn scenario_errors_are_named_with_file_and_line_and_nothing_starts() {
    let text = scenario("127.0.0.1:1", "{ thnk = \"1s\" },", "join_p99 = \"< 50\"");
    let dir = directory(&[("a.toml", &text)]);
    for words in
        [&["load", "a.toml"][..], &["load", "check", "a.toml"], &["load", "convert", "a.toml"]]
    {
        let ran = run(dir.path(), words);
        assert_eq!((ran.status.code(), ran.stdout.as_str()), (Some(2), ""), "{words:?}: {ran:?}");
        let lines: Vec<_> = ran.stderr.lines().collect();
        assert_eq!(lines.len(), 3, "{lines:#?}");
        assert!(
            lines[0].starts_with("a.toml:12: thnk: is not a step (did you mean think?)"),
            "{lines:?}"
        );
        assert!(
            lines[1].starts_with("a.toml:15: join_p99: \"< 50\": a time needs a unit"),
            "{lines:?}"
        );
        assert!(lines[2].starts_with("2 mistakes; "), "{lines:?}");
    }
    let entries = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(entries, 1, "no directory of a run is made");
}

#[test]
fn load_flags_are_checked() {
    let dir = directory(&[("a.toml", &scenario("127.0.0.1:1", "", ""))]);
    for (flags, word) in [
        (["--max-users", "none"], "not a number of users"),
        (["--duration", "5"], "time unit"),
        (["--rate", "5/day"], "not a unit of a rate"),
        (["--source", "10.0.0.9-1"], "lower to a higher"),
        (["--map", "host"], "HOST=ADDRESS"),
        (["--workers", "0"], "from 1 to 2000"),
        (["--cores", "1,x"], "not a core"),
        (["--dashboard", "8091"], "not an address with a port"),
        (["--seed", "x"], "invalid"),
        (["--target", "127.0.0.1:1"], "it has no '://'"),
        (["--target", "ws://a/b"], "paths are those of the steps"),
        (["--spread", "stiky"], "use round-robin, sticky, elsewhere, random"),
    ] {
        let ran = run(dir.path(), &[&["load", "a.toml"], &flags[..]].concat());
        assert_eq!(ran.status.code(), Some(2), "{flags:?}: {ran:?}");
        assert!(ran.stderr.contains(word), "{word:?} is not in\n{}", ran.stderr);
    }
    let ran = run(dir.path(), &["load"]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(ran.stderr.contains("<FILE>"), "{}", ran.stderr);
    let help = run(dir.path(), &["load", "--help"]).stdout;
    for word in [
        "Exit status: 0",
        "--kernel-stamps",
        "--target <URL>",
        "--spread <HOW>",
        "convert",
        "--exclude-tag",
        "3 if a condition",
    ] {
        assert!(help.contains(word), "{word:?} is not in\n{help}");
    }
}

#[test]
fn invalid_servers_are_named_with_file_line_and_key() {
    let one = "[[target]]\nurl = \"ws://127.0.0.1:1\"\n";
    let head =
        |targets: &str| scenario("x", "", "").replace("[target]\nurl = \"ws://x\"\n", targets);
    let dir = directory(&[
        ("none.toml", &head("")),
        ("twice.toml", &head(&one.repeat(2))),
        ("word.toml", &format!("spread = \"stiky\"\n{}", head(one))),
    ]);
    for (file, line) in [
        ("none.toml", "none.toml:1: the top of the file: target is missing"),
        ("twice.toml", "twice.toml:5: url: the same server as on line 3"),
        ("word.toml", "word.toml:1: spread: \"stiky\" is not allowed (did you mean sticky?)"),
    ] {
        let ran = run(dir.path(), &["load", "check", file]);
        assert_eq!(ran.status.code(), Some(2), "{ran:?}");
        assert!(ran.stderr.starts_with(line), "{line:?}: {}", ran.stderr);
    }
    // Flags replace them, and set how users are spread.
    let two = ["--target", "ws://127.0.0.1:8", "--target", "ws://127.0.0.1:9"];
    let words = [&["load", "check", "none.toml", "--spread", "sticky"], &two[..]].concat();
    let ran = run(dir.path(), &words);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    for word in ["127.0.0.1:8, 50 % of the users", "each keeps its own (sticky)"] {
        assert!(ran.stdout.contains(word), "{word:?} is not in\n{}", ran.stdout);
    }
    let ran = run(dir.path(), &[&words[..], &two[..2]].concat());
    assert!(ran.stderr.starts_with("none.toml: --target ws://127.0.0.1:8: named twice"), "{ran:?}");
}

#[test]
fn exit_status_of_a_run_follows_its_thresholds() {
    let server = Server::start("", &["--listen", "127.0.0.1:0", "--log", "warn"]);
    let address = &server.addresses[0];
    let say =
        "{ push = \"new:msg\", payload = { body = \"{{stamp}}\" } },\n{ receive = \"300ms\" },";
    for (pass, code) in
        [("joins = \"== 10\"\nerrors = \"== 0\"", 0), ("joins = \"== 10\"\npushes = \"> 10\"", 3)]
    {
        let dir = directory(&[("a.toml", &scenario(address, say, pass))]);
        let flags = ["--out", "out", "--dashboard", "off", "--quiet", "--workers", "1"];
        let ran = run(dir.path(), &[&["load", "a.toml"], &flags[..]].concat());
        assert_eq!(ran.status.code(), Some(code), "{ran:?}");
        let out = dir.path().join("out");
        assert_eq!(report(&out)["ending"], "finished");
        std::fs::remove_file(out.join("report.json")).unwrap();
        let again = run(dir.path(), &["load", "report", "out"]);
        assert_eq!(again.status.code(), Some(0), "{again:?}");
        assert_eq!(again.stdout, ran.stdout, "the summary is the same");
        assert_eq!(report(&out)["ending"], "finished");
        let ran = run(dir.path(), &[&["load", "a.toml"], &flags[..]].concat());
        assert_eq!(ran.status.code(), Some(1), "the directory is not empty");
        assert!(ran.stderr.contains("--overwrite"), "{}", ran.stderr);
    }
}

#[test]
fn the_shipped_scenarios_run() {
    let server = Server::start("", &["--listen", "127.0.0.1:0", "--log", "warn"]);
    // One server is named once.
    let other = Server::start("", &["--listen", "127.0.0.1:0", "--log", "warn"]);
    let scenarios = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../bench/scenarios");
    let dir = directory(&[]);
    for entry in std::fs::read_dir(scenarios).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let (pass, address) = (text.split("[pass]").next().unwrap(), &server.addresses[0]);
        let text = pass.replace("127.0.0.1:4000", address);
        let text = text.replace("127.0.0.1:4001", &other.addresses[0]);
        std::fs::write(
            dir.path().join(name),
            text + "[pass]\nerrors = \"== 0\"\njoins = \"> 5\"\n",
        )
        .unwrap();
        let flags = ["--duration", "1s", "--rate", "20", "--workers", "1", "--dashboard", "off"];
        let out = ["--out", &format!("{name}.out")];
        let ran = run(dir.path(), &[&["load", name], &flags[..], &out[..]].concat());
        assert_eq!(ran.status.code(), Some(0), "{name}: {ran:?}");
    }
}

/// Without conditions the exit status is 1 if nothing worked; conditions may be flags.
#[test]
fn exit_status_shows_whether_any_request_succeeded() {
    let server = chat("");
    let refused = |steps: &str| {
        format!(
            "[target]\nurl = \"ws://{}\"\n[[phase]]\nduration = \"200ms\"\nrate = 50\n\
             [[session]]\nprotocol = \"raw\"\nsteps = [{steps}]\n",
            server.addresses[0]
        )
    };
    let dir = directory(&[
        ("down.toml", &scenario("127.0.0.1:1", "{ think = \"1ms\" },", "")),
        ("refused.toml", &refused("{ connect = \"/nothing/websocket\" }")),
        ("works.toml", &scenario(&server.addresses[0], "{ think = \"1ms\" },", "")),
    ]);
    let flags = ["--quiet", "--workers", "1", "--dashboard", "off", "--overwrite", "--out", "out"];
    for (file, pass, status) in [
        ("down.toml", &[][..], 1),
        ("refused.toml", &[], 1),
        ("works.toml", &[], 0),
        ("down.toml", &["--pass", "errors == 0"], 3),
        ("works.toml", &["--pass", "errors == 0", "--pass", "joins >= 5"], 0),
        ("works.toml", &["--pass", "joins > 1000"], 3),
        ("works.toml", &["--pass", "joins"], 2),
    ] {
        let ran = run(dir.path(), &[&["load", file], &flags[..], pass].concat());
        assert_eq!(ran.status.code(), Some(status), "{file} {pass:?}: {ran:?}");
    }
}

/// The built-in chat without the history of its rooms.
const WITHOUT_HISTORY: &str = include_str!("../../../../../bench/chat.toml");

fn chat(toml: &str) -> Server {
    Server::start(toml, &["--listen", "127.0.0.1:0", "--log", "warn"])
}

#[test]
fn dropped_connections_lose_messages_only_without_history() {
    for (toml, missing) in [(WITHOUT_HISTORY, ">= 1500"), ("", "== 0")] {
        drops(&chat(toml), missing);
    }
}

fn drops(server: &Server, missing: &str) {
    let missing = format!("deliveries_missing = \"{missing}\"");
    let times = [
        ("duration = \"91s\"", "duration = \"12s\""),
        ("duration = \"20s\"", "duration = \"1s\""),
        ("rate = 500", "rate = 100"),
        ("duration = \"60s\"", "duration = \"5s\""),
        ("every = \"10s\"", "every = \"5s\""),
        ("loop = 600", "loop = 50"),
        ("deliveries_missing = \"== 0\"", &*missing),
    ];
    let pass = "errors = \"== 0\"\nbroadcasts = \"== 500\"\n";
    let url = format!("ws://{}", server.addresses[0]);
    let (ran, report) = run_shipped("drops.toml", &times, &[url], pass);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let counts = &report["counts"];
    let count = |name: &str| counts[name].as_u64().unwrap_or(0);
    // 50 messages to each of ten clients in each of ten topics, most of which are disconnected
    // once, for 2 to 3 s of 5.
    assert_eq!(count("deliveries_expected"), 100 * 50, "{counts}");
    let (once, missing) = (count("deliveries_once"), count("deliveries_missing"));
    assert_eq!(once + missing, 100 * 50, "{counts}");
    assert_eq!(count("drops_reset") + count("drops_silent"), 100, "{counts}");
    assert_eq!(count("reconnects"), 100, "{counts}");
    for wrong in ["deliveries_duplicate", "deliveries_out_of_order", "deliveries_unexpected"] {
        assert_eq!(count(wrong), 0, "{wrong}: {counts}");
    }
}

/// Killed when dropped.
struct Agent {
    child: std::process::Child,
    address: String,
}

impl Agent {
    #[track_caller]
    fn start(token: &str) -> Self {
        use std::io::BufRead;
        let words = ["load", "agent", "--listen", "127.0.0.1:0", "--token", token];
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_simurgh"));
        command.args(words).stdout(std::process::Stdio::piped());
        let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        std::io::BufReader::new(stdout).read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("agent listening on ").expect(&line).to_owned();
        Self { child, address }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn agents_run_their_share_unless_the_run_is_local() {
    let server = Server::start("", &["--listen", "127.0.0.1:0", "--log", "warn"]);
    let agent = Agent::start("secret");
    let steps = "{ receive = \"300ms\" },";
    let pass = "joins = \"== 10\"\nerrors = \"== 0\"";
    let text = scenario(&server.addresses[0], steps, pass);
    for (token, flag, code, runs) in [
        ("secret", "--quiet", 0, true),
        ("secret", "--local", 0, true),
        ("wrong", "--quiet", 1, false),
    ] {
        let address = &agent.address;
        let named = format!("[[agent]]\naddress = \"{address}\"\ntoken = \"{token}\"\n");
        let dir = directory(&[("a.toml", &(text.clone() + &named))]);
        let words = ["load", "a.toml", "--out", "out", "--dashboard", "off", flag];
        let ran = run(dir.path(), &words);
        assert_eq!(ran.status.code(), Some(code), "{token} {flag}: {ran:?}");
        if !runs {
            assert!(ran.stderr.contains("token"), "{}", ran.stderr);
            continue;
        }
        let uses_agent = ran.stdout.contains(address.as_str());
        assert_eq!(uses_agent, flag != "--local", "{}", ran.stdout);
    }
}

#[test]
fn an_agent_needs_a_token() {
    let dir = directory(&[]);
    let words = ["load", "agent", "--listen", "127.0.0.1:0"];
    let ran = run(dir.path(), &words);
    assert_eq!(ran.status.code(), Some(2), "{ran:?}");
    for (token, word) in [("", "must not be empty"), ("$SIMURGH_NO_SUCH_TOKEN", "is not set")] {
        let ran = run(dir.path(), &[&words[..], &["--token", token]].concat());
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        assert!(ran.stderr.contains(word), "{}", ran.stderr);
    }
}
