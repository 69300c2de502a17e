//! `simurgh drive` as a binary: measuring, and with commands from a script, standard input and a
//! prompt.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Ran, directory, own, run, run_own, simurgh};

const PING: &[&str] = &["drive", "--sockets", "2000", "--hibernate-after", "100ms"];

/// The cells of the report's line with this start.
fn cells(ran: &Ran, start: &str) -> Vec<String> {
    let found = ran.stdout.lines().find(|line| line.starts_with(start));
    let line = found.unwrap_or_else(|| panic!("no line {start:?} in\n{ran:?}"));
    line[start.len()..].split("  ").filter(|it| !it.is_empty()).map(|it| it.trim().into()).collect()
}

#[test]
fn drive_measures_2000_sockets() {
    for more in [&[][..], &["--serializer", "v2"], &["--serializer", "v1", "--channels", "3"]] {
        let ran = run(Path::new("."), &[PING, more].concat());
        assert_eq!(ran.status.code(), Some(0), "{ran:?}");
        assert!(ran.stdout.starts_with("2,000 sockets on "), "{}", ran.stdout);
        assert_eq!(cells(&ran, "created and joined").len(), 6, "{}", ran.stdout);
        assert_eq!(cells(&ran, "pushed \"ping\" and answered").len(), 6, "{}", ran.stdout);
        assert_eq!(cells(&ran, "a broadcast to all, median of 5").len(), 6, "{}", ran.stdout);
        assert!(cells(&ran, "after idling")[0].ends_with(" s"), "{}", ran.stdout);
        assert!(!ran.stdout.contains("hibernate"), "all do: {}", ran.stdout);
        // The log of a slow machine, and no progress bar where nobody looks.
        let is_log = |line: &str| line.contains(" WARN a callback blocked its shard");
        assert!(ran.stderr.lines().all(is_log), "{}", ran.stderr);
    }
}

#[test]
fn idle_application_channels_release_memory() {
    // Long enough that no channel hibernates before the row of pushes, on a slow machine either.
    let flags = ["--sockets", "20000", "--topic", "echo:{n}", "--event", "echo"];
    let flags = [&flags[..], &["--hibernate-after", "3s"]].concat();
    let ran = run_own(Path::new("."), &[&["drive"][..], &flags].concat());
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let each = |start: &str| {
        let last = cells(&ran, start).pop().unwrap();
        last.strip_suffix(" B").unwrap().replace(',', "").parse::<f64>().unwrap()
    };
    let (joined, spoken) = (each("created and joined"), each("pushed \"echo\" and answered"));
    let idle = each("after idling");
    // The example remembers 1 kB of each.
    assert!(spoken > joined + 900.0, "{}", ran.stdout);
    assert!(idle < spoken - 800.0, "{}", ran.stdout);
}

#[test]
fn help_and_man_page_name_the_placeholder_of_the_channel_number() {
    let dir = directory(&[]);
    for flag in ["-h", "--help"] {
        let ran = run(dir.path(), &["drive", flag]);
        assert_eq!(ran.status.code(), Some(0), "{ran:?}");
        assert!(ran.stdout.contains("`{n}`"), "{flag}: {}", ran.stdout);
    }
    let ran = run(dir.path(), &["man-pages", "pages"]);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let page = std::fs::read_to_string(dir.path().join("pages/simurgh-drive.1")).unwrap();
    assert_eq!(page.matches("`{n}`").count(), 2, "{page}");
    assert!(!page.contains('\u{1b}'), "{page}");
}

#[test]
fn drive_uses_declared_channels() {
    let toml = "[[channel]]\ntopic = \"quotes\"\n\
                [[channel.event]]\nname = \"ask\"\nreply = \"$payload\"\n";
    let dir = directory(&[("a.toml", toml)]);
    let flags = ["drive", "--config", "a.toml", "--sockets", "10", "--hibernate-after", "100ms"];
    let quotes = ["--topic", "quotes", "--event", "ask"];
    let ran = run(dir.path(), &[&flags[..], &quotes].concat());
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert_eq!(cells(&ran, "pushed \"ask\" and answered").len(), 6);
    let ran = run(dir.path(), &[&flags[..], &["--topic", "rooms:1"]].concat());
    assert_eq!(ran.status.code(), Some(1), "the built-in chat is not there");
    assert!(ran.stderr.contains("rooms:1 was not joined: {\"reason\":\"unmatched topic\"}"));
    let ran = run(dir.path(), &[&flags[..], &["--topic", "quotes", "--event", "tell"]].concat());
    assert!(ran.stdout.contains("\"tell\" gets no answer on quotes"), "{ran:?}");
    let ran = run(dir.path(), &["drive", "--config", "b.toml", "--sockets", "10"]);
    assert_eq!(ran.status.code(), Some(2), "{ran:?}");
    let ran = run(dir.path(), &["drive", "--sockets", "10", "--payload", "{"]);
    assert!(ran.status.code() == Some(2) && ran.stderr.contains("is not JSON"), "{ran:?}");
    let ran = run(dir.path(), &["drive", "--sockets", "10", "--path", "/elsewhere"]);
    assert!(ran.status.code() == Some(1) && ran.stderr.contains("refused with 404"), "{ran:?}");
}

const SCRIPT: &str = "\
# three sockets
start 3
join all ping_topic {\"who\": \"ü\"}
flush 1
push 2-3 ping_topic ping {\"n\": 1}
flush 2,3
broadcast ping_topic news [1]
flush 3
leave 2 ping_topic
push 2 ping_topic ping
close 2
flush 2
stats
";

#[test]
fn script_runs_line_by_line() {
    let dir = directory(&[("a.txt", SCRIPT)]);
    for serializer in ["none", "v2"] {
        let flags = ["drive", "--script", "a.txt", "--serializer", serializer];
        let ran = run(dir.path(), &flags);
        assert_eq!((ran.status.code(), ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        let lines: Vec<&str> = ran.stdout.lines().map(without_time).collect();
        let expected = [
            "sockets 1 to 3 open",
            "3 joined ping_topic",
            "1: ping_topic replied ok {\"response\":\"hello\"}",
            "2 pushed ping",
            "2: ping_topic replied ok {\"response\":\"hello\"}",
            "2: ping_topic pong {\"n\":1}",
            "3: ping_topic replied ok {\"response\":\"hello\"}",
            "3: ping_topic pong {\"n\":1}",
            "3 received news",
            "3: ping_topic news [1]",
            "1 left ping_topic",
            "1 pushed ping",
            "1 closed",
            "2: ping_topic news [1]",
            "2: ping_topic replied ok {}",
            "2: ping_topic is closed",
            "2: ping_topic replied error {\"reason\":\"unmatched topic\"}",
            "2: closed with 1000",
        ];
        let (first, stats) = lines.split_at(expected.len());
        // Only the events of one socket are in order.
        let sorted = |lines: &[&str]| {
            let mut lines: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
            lines[4..8].sort();
            lines
        };
        assert_eq!(sorted(first), sorted(&expected), "{}", ran.stdout);
        assert!(stats[0].starts_with("sockets ") && stats[0].ends_with(" 2"), "{stats:?}");
        assert!(stats.iter().any(|it| it.contains("of these lost") && it.ends_with(" 0")));
    }
}

fn without_time(line: &str) -> &str {
    line.split(", in ").next().unwrap()
}

#[test]
fn script_errors_are_named_before_anything_starts() {
    let text = "start 3\n\njion 1 t\npush 1 t e {\"a\":}\nclose 0\n  stats now\n";
    let dir = directory(&[("a.txt", text)]);
    let ran = run(dir.path(), &["drive", "--script", "a.txt"]);
    assert_eq!((ran.status.code(), ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
    for line in [
        "a.txt:3:1: there is no command \"jion\"; did you mean join?",
        "a.txt:4:17: not JSON: expected value",
        "a.txt:5:7: \"0\" is not a socket number; ",
        "a.txt:6:9: unexpected \"now\"; usage: ",
        "4 mistakes; nothing was started",
    ] {
        assert!(ran.stderr.contains(line), "{line:?} is not in\n{}", ran.stderr);
    }
    let ran = run(dir.path(), &["drive", "--script", "none.txt"]);
    assert!(ran.status.code() == Some(2) && ran.stderr.contains("none.txt: "), "{ran:?}");
    let dir = directory(&[("a.txt", "start 2\n\njoin 1-1000 ping_topic\nstats\n")]);
    let ran = run(dir.path(), &["drive", "--script", "a.txt"]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(ran.stderr.contains("a.txt:3: there is no socket 1000; there are 1 to 2"), "{ran:?}");
    assert!(!ran.stdout.contains("CPU time"), "nothing after the mistake is done");
}

#[test]
fn commands_are_read_from_standard_input() {
    let mut command = Command::new(own());
    command.args(["drive"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin
        .write_all(b"start 1\njoin 1 echo:a\npush 1 echo:a divide [6,0]\nflush\nstart x\n")
        .unwrap();
    drop(stdin);
    let ran = child.wait_with_output().unwrap();
    let (out, err) =
        (String::from_utf8(ran.stdout).unwrap(), String::from_utf8(ran.stderr).unwrap());
    assert_eq!(ran.status.code(), Some(1), "{out}{err}");
    assert!(out.contains("1 channels crashed") && out.contains("1: echo:a has crashed"), "{out}");
    assert!(err.contains("standard input:5: \"x\" is not a whole number"), "{err}");
}

#[test]
fn ctrl_c_ends_a_waiting_script() {
    let dir = directory(&[("a.txt", "start 1\nwait 1h\n")]);
    let mut command = Command::new(simurgh());
    command.args(["drive", "--script", "a.txt"]).current_dir(dir.path());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = [0; 8];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
    let until = Instant::now() + Duration::from_secs(10);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("it goes on waiting");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(130));
}

/// A tmux terminal with its own server and socket.
struct Terminal {
    socket: String,
}

impl Terminal {
    fn start(dir: &Path, command: &str) -> Self {
        let terminal = Self { socket: format!("simurgh-drive-{}", std::process::id()) };
        let dir = dir.to_str().unwrap();
        let args = ["-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "40", "-c", dir];
        terminal.tmux(&[&args[..], &[command]].concat());
        terminal
    }

    fn tmux(&self, args: &[&str]) -> String {
        let ran = Command::new("tmux").args(["-L", &self.socket]).args(args).output().unwrap();
        String::from_utf8_lossy(&ran.stdout).into_owned()
    }

    fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    #[track_caller]
    fn shows(&self, text: &str) {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let screen = self.tmux(&["capture-pane", "-p"]);
            if screen.contains(text) {
                return;
            }
            assert!(Instant::now() < until, "{text:?} does not appear on\n{screen}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
#[ignore = "needs tmux"]
fn prompt_has_completion_and_history_and_can_be_interrupted() {
    let dir = directory(&[]);
    let state = dir.path().to_str().unwrap();
    let command = format!(
        "env XDG_STATE_HOME={state} {} drive; echo status $?; sleep 60",
        simurgh().display()
    );
    let terminal = Terminal::start(dir.path(), &command);
    terminal.shows("drive>");
    terminal.press(&["star", "Tab", "10", "Enter"]);
    terminal.shows("sockets 1 to 10 open");
    terminal.press(&["join 1-10 ping_topic", "Enter"]);
    terminal.shows("10 joined ping_topic");
    terminal.press(&["push 7 pi", "Tab", "ping {\"x\":}", "Enter"]);
    terminal.shows("^ not JSON: expected value");
    terminal.press(&["Up", "Left", "1", "Enter"]);
    terminal.shows("1 pushed ping");
    terminal.press(&["flush 7", "Enter"]);
    terminal.shows("7: ping_topic pong {\"x\":1}");
    terminal.press(&["close 11", "Enter"]);
    terminal.shows("there is no socket 11; there are 1 to 10");
    terminal.press(&["wait 1h", "Enter"]);
    terminal.shows("wait 1h");
    std::thread::sleep(Duration::from_millis(300));
    terminal.press(&["C-c"]);
    terminal.shows("stopped");
    terminal.press(&["stats", "Enter"]);
    terminal.shows("CPU time");
    terminal.press(&["C-d"]);
    terminal.shows("status 0");
    let history = std::fs::read_to_string(dir.path().join("simurgh/drive_history")).unwrap();
    assert!(history.contains("join 1-10 ping_topic"), "{history}");
}
