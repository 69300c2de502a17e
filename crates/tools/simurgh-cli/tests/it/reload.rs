//! Reload of the settings: SIGHUP, and `simurgh reload`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::{Value, json};

use crate::support::{Client, Ran, Server, directory, own, run, run_with_env};

const TOKEN: &str = "s3cret";
const HEAD: &str = "listen = [\"127.0.0.1:0\"]\napi_token = \"s3cret\"\n";
const ROOMS: &str = "[[channel]]\ntopic = \"rooms:*\"\n[[channel.event]]\nname = \"m\"\n\
    broadcast = \"all\"\n";

const SECRET: &str = "a secret of thirty-two bytes or more";

/// The path of a client whose token is signed with this secret.
fn path_with_token(secret: &str, more: &[&str]) -> String {
    let dir = directory(&[("key", secret)]);
    let words = ["token", "sign", "--secret", "--key-file", "key", "--sub", "ann"];
    let token = run(dir.path(), &[&words, more].concat()).stdout;
    format!("/socket/websocket?vsn=2.0.0&token={}", token.trim())
}

/// A server whose file can change.
struct Reloading {
    server: Server,
    file: PathBuf,
}

impl Reloading {
    fn start(toml: &str) -> Self {
        let dir = directory(&[("simurgh.toml", toml)]);
        let file = dir.path().join("simurgh.toml");
        Self { server: Server::start_in(dir, &[], 1), file }
    }

    fn write(&self, toml: &str) {
        std::fs::write(&self.file, toml).unwrap();
    }

    fn command(&self, token: &str) -> Ran {
        let words = ["reload", "--url", &self.server.addresses[0]];
        run_with_env(directory(&[]).path(), &words, ("SIMURGH_API_TOKEN", token))
    }

    /// Reloads this file; returns what the command printed.
    #[track_caller]
    fn reloads(&self, toml: &str) -> String {
        self.write(toml);
        let ran = self.command(TOKEN);
        assert!(ran.status.success(), "{}", ran.stderr);
        ran.stdout
    }

    fn check(&self) -> Ran {
        run(self.file.parent().unwrap_or(Path::new(".")), &["config", "--check", "simurgh.toml"])
    }
}

#[test]
fn command_names_what_changed_and_what_needs_a_restart() {
    let it = Reloading::start(&format!("{HEAD}{ROOMS}"));
    let again = "reloaded; keys and certificates were read again\n";
    assert_eq!(it.reloads(&format!("{HEAD}{ROOMS}")), again);
    let more = "shards = 7\nidle_timeout = \"7s\"\nlog_format = \"json\"\nlog = \"debug\"\n";
    assert_eq!(
        it.reloads(&format!("{HEAD}{more}[limits]\njoins = 9\n{ROOMS}# a comment\n")),
        format!(
            "{again}changed: idle_timeout, log, [limits]\nneeds a restart: shards, log_format\n"
        )
    );
    // They are named until the server is restarted, or the file as it was.
    assert_eq!(
        it.reloads(&format!("{HEAD}shards = 7\n{ROOMS}")),
        format!("{again}changed: idle_timeout, log, [limits]\nneeds a restart: shards\n")
    );
    assert_eq!(it.reloads(&format!("{HEAD}{ROOMS}")), again);
}

#[test]
fn wrong_file_changes_nothing_and_gets_the_message_of_config_check() {
    let mut it = Reloading::start(&format!("{HEAD}{ROOMS}"));
    let mut client = it.server.client();
    client.join("rooms:a", json!({}));
    let other = ROOMS.replace("rooms", "other");
    for wrong in [
        format!("{HEAD}{other}oops = 1\n"),
        format!("{HEAD}check_origin = 5\n{other}"),
        format!("{HEAD}{other}join = \"nonsense\"\n"),
        format!("{HEAD}[token]\nkind = \"jwt\"\nkey_file = \"gone\"\n{other}"),
        format!("{HEAD}{other}["),
    ] {
        it.write(&wrong);
        let (reload, check) = (it.command(TOKEN), it.check());
        assert_eq!(reload.status.code(), Some(1), "{wrong}");
        let mistakes = check.stderr.lines().filter(|line| line.contains("simurgh.toml:"));
        for line in mistakes.clone() {
            let line = line.trim_start_matches("simurgh: ");
            assert!(reload.stderr.contains(line), "{line} is not in {}", reload.stderr);
        }
        assert!(mistakes.count() > 0, "{}", check.stderr);
        it.server.signal("HUP");
        for _ in 0..2 {
            let line = it.server.logged("not reloaded, nothing has changed");
            assert!(line.contains("simurgh.toml:"), "{line}");
        }
        client.join("rooms:b", json!({}));
        let unmatched = json!({"reason": "unmatched topic"});
        client.ask("other:b", "phx_join", json!({}), "error", unmatched);
        client.ask("rooms:b", "phx_leave", json!({}), "ok", json!({}));
        client.expect("rooms:b", "phx_close", json!({}));
    }
}

#[test]
fn members_stay_in_a_channel_that_vanished_until_they_leave() {
    let it = Reloading::start(&format!("{HEAD}{ROOMS}"));
    let [mut ann, mut bob] = [it.server.client(), it.server.client()];
    ann.join("rooms:a", json!({}));
    bob.join("rooms:a", json!({}));
    assert!(
        it.reloads(&format!("{HEAD}{}", ROOMS.replace("rooms", "other"))).contains("[[channel]]")
    );
    ann.send("rooms:a", "m", json!({"n": 1}));
    bob.expect("rooms:a", "m", json!({"n": 1}));
    ann.expect("rooms:a", "m", json!({"n": 1}));
    bob.ask("rooms:a", "phx_leave", json!({}), "ok", json!({}));
    bob.expect("rooms:a", "phx_close", json!({}));
    bob.ask("rooms:a", "phx_join", json!({}), "error", json!({"reason": "unmatched topic"}));
    bob.join("other:a", json!({}));
}

#[test]
fn tokens_and_limits_change_for_connected_clients_at_once() {
    let it = Reloading::start(&format!("{HEAD}{ROOMS}"));
    let mut client = it.server.client();
    client.join("rooms:a", json!({}));
    let few = ROOMS.replace(
        "[[channel.event]]",
        "limits = { messages = { rate = \"1/s\" } }\n[[channel.event]]",
    );
    it.reloads(&format!("{HEAD}{few}"));
    client.send("rooms:a", "m", json!({}));
    client.expect("rooms:a", "m", json!({}));
    client.ask_too_much("rooms:a", "m", json!({}), "messages");

    // A new token of the API, and of clients; a client without one stays.
    let secret = it.file.with_file_name("key");
    std::fs::write(&secret, SECRET).unwrap();
    let token = "[token]\nkind = \"jwt\"\nkey_file = \"key\"\nalgorithms = [\"HS256\"]\n";
    it.reloads(&format!("{}{token}{ROOMS}", HEAD.replace("s3cret", "other")));
    client.send("rooms:a", "m", json!({"n": 2}));
    client.expect("rooms:a", "m", json!({"n": 2}));
    let refused = it.command(TOKEN);
    assert!(refused.stderr.contains("the API token is missing or wrong"), "{}", refused.stderr);
    let path = |key: &str| path_with_token(key, &[]);
    let [old, new] = [SECRET, "another of thirty-two bytes or more"];
    assert!(it.server.try_client("/socket/websocket?vsn=2.0.0").is_err());
    let mut ann = it.server.try_client(&path(old)).unwrap();
    ann.join("rooms:a", json!({}));
    // Only the file with the key changes.
    std::fs::write(&secret, new).unwrap();
    assert!(it.command("other").status.success());
    assert!(it.server.try_client(&path(old)).is_err());
    it.server.try_client(&path(new)).unwrap();
    ann.send("rooms:a", "m", json!({"n": 3}));
    ann.expect("rooms:a", "m", json!({"n": 3}));
}

#[test]
fn named_limits_and_long_polling_come_and_go() {
    let it = Reloading::start(&format!("{HEAD}{ROOMS}"));
    let mut client = it.server.client();
    client.join("rooms:a", json!({}));
    for names in
        ["[limits.gold]\njoins = 5\n[limits.lead]\njoins = 6\n", "[limits.tin]\njoins = 1\n", ""]
    {
        it.reloads(&format!(
            "{HEAD}longpoll = \"1s\"\n{names}{ROOMS}[[channel]]\nkind = \"supabase\"\n"
        ));
        assert_eq!(it.server.get("/socket/longpoll?vsn=2.0.0"), 200);
        client.join("rooms:b", json!({}));
        client.ask("rooms:b", "phx_leave", json!({}), "ok", json!({}));
        client.expect("rooms:b", "phx_close", json!({}));
        it.server.try_client("/realtime/v1/websocket?vsn=2.0.0").unwrap();
        it.reloads(&format!("{HEAD}{names}{ROOMS}"));
        assert_eq!(it.server.get("/socket/longpoll?vsn=2.0.0"), 404);
        assert!(it.server.try_client("/realtime/v1/websocket?vsn=2.0.0").is_err());
    }
    client.send("rooms:a", "m", json!({}));
    client.expect("rooms:a", "m", json!({}));
}

#[test]
fn history_of_another_size_keeps_what_fits() {
    let with = |count: u32| {
        let history = format!("history = {{ count = {count} }}\n[[channel.event]]");
        format!("{HEAD}{}", ROOMS.replace("[[channel.event]]", &history))
    };
    let it = Reloading::start(&with(10));
    let mut client = it.server.client();
    client.join("rooms:a", json!({}));
    let mut says = |numbers: std::ops::Range<u32>| {
        for n in numbers {
            client.send("rooms:a", "m", json!({"n": n}));
            client.expect("rooms:a", "m", json!({"n": n}));
        }
    };
    let kept = || {
        let url = format!("{}/api/history?topic=rooms:a", it.server.addresses[0]);
        let agent = ureq::get(format!("http://{url}")).header("authorization", "Bearer s3cret");
        let answer = agent.call().unwrap().body_mut().read_to_string().unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let messages = answer["messages"].as_array().unwrap().clone();
        messages.iter().map(|it| it["payload"]["n"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    says(0..10);
    it.reloads(&with(20));
    says(10..15);
    assert_eq!(kept(), (0..15).collect::<Vec<_>>());
    it.reloads(&with(4));
    assert_eq!(kept(), (11..15).collect::<Vec<_>>());
    it.reloads(&with(8));
    says(15..18);
    assert_eq!(kept(), (11..18).collect::<Vec<_>>());
}

#[test]
fn hangup_never_ends_the_server() {
    // Without a file, also if one appears that is wrong.
    let dir = directory(&[]);
    let file = dir.path().join("simurgh.toml");
    let mut server = Server::start_in(dir, &["--listen", "127.0.0.1:0"], 1);
    server.signal("HUP");
    server.logged("reloaded; changed: no setting");
    std::fs::write(file, "oops = 1").unwrap();
    server.signal("HUP");
    server.logged("simurgh.toml:1: oops: no such key");
    assert_eq!(server.get("/healthz"), 200);
    // An application in Rust.
    let dir = directory(&[("simurgh.toml", HEAD)]);
    let file = dir.path().join("simurgh.toml");
    let mut server = Server::start_program(&own(), dir, &[], 1);
    std::fs::write(file, "oops = 1").unwrap();
    server.signal("HUP");
    server.logged("there are no certificates to reload");
    assert_eq!(server.get("/healthz"), 200);
    server.signal("TERM");
    assert!(server.ended().0.success());
}

/// An application's JWK set, with this secret.
const KEYS: &str = r#"{"keys":[{"kty":"oct","alg":"HS256","kid":"a",
    "k":"YSBzZWNyZXQgb2YgdGhpcnR5LXR3byBieXRlcyBvciBtb3Jl"}]}"#;

/// An application that allows all; tells which questions it got.
struct App {
    port: u16,
    questions: Receiver<String>,
}

impl App {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (asked, questions) = channel();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut reader = BufReader::new(stream);
                let mut lines = Vec::new();
                let mut line = String::new();
                while reader.read_line(&mut line).unwrap_or(0) > 2 {
                    lines.push(std::mem::take(&mut line).to_ascii_lowercase());
                }
                let length = lines.iter().find_map(|line| line.strip_prefix("content-length: "));
                let length = length.map_or(0, |text| text.trim().parse().unwrap());
                reader.read_exact(&mut vec![0; length]).unwrap();
                let path = lines[0].split(' ').nth(1).unwrap().to_owned();
                let body = match path.rsplit('/').next() {
                    Some("connect") => r#"{"user":"ann"}"#,
                    Some("keys") => KEYS,
                    _ => "{}",
                };
                let length = body.len();
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
                write!(reader.get_mut(), "{head}\r\ncontent-length: {length}\r\n\r\n{body}")
                    .unwrap();
                if asked.send(path).is_err() {
                    return;
                }
            }
        });
        Self { port, questions }
    }

    /// The last parts of the questions' paths since the last call.
    fn asked(&self) -> Vec<String> {
        let last = |path: String| path.rsplit('/').next().unwrap_or_default().to_owned();
        self.questions.try_iter().map(last).collect()
    }
}

#[test]
fn hooks_come_change_and_go() {
    let apps = [App::start(), App::start()];
    let hook = |app: &App, questions: &str| {
        let url = format!("http://127.0.0.1:{}/simurgh", app.port);
        format!("[[hook]]\nname = \"app\"\nurl = \"{url}\"\nquestions = [{questions}]\n")
    };
    let asks = "[[channel]]\ntopic = \"asks:*\"\njoin_hook = \"app\"\n";
    let it = Reloading::start(&format!("{HEAD}{ROOMS}"));
    let mut early = it.server.client();
    early.join("rooms:a", json!({}));
    it.reloads(&format!("{HEAD}{}{ROOMS}{asks}", hook(&apps[0], "\"connect\"")));
    let mut ann = it.server.client();
    ann.join("asks:a", json!({}));
    assert_eq!(apps[0].asked(), ["connect", "join"]);
    // Nobody can be asked about a client that has connected before.
    let msg_ref = early.send("asks:a", "phx_join", json!({}));
    let (answered, _, _, reply) = early.receive();
    assert_eq!((answered, &reply["response"]["reason"]), (msg_ref, &json!("unavailable")));
    early.send("rooms:a", "m", json!({}));
    early.expect("rooms:a", "m", json!({}));
    // Another address, also for clients that are connected; one more hook before it.
    let second = "[[hook]]\nname = \"first\"\nurl = \"http://127.0.0.1:1/\"\n";
    it.reloads(&format!("{HEAD}{second}{}{ROOMS}{asks}", hook(&apps[1], "\"connect\"")));
    ann.join("asks:b", json!({}));
    it.server.client();
    assert_eq!((apps[0].asked(), apps[1].asked()), (vec![], vec!["join".into(), "connect".into()]));
    it.reloads(&format!("{HEAD}{ROOMS}[[channel]]\ntopic = \"asks:*\"\n"));
    ann.join("asks:c", json!({}));
    early.join("asks:c", json!({}));
    it.server.client();
    assert_eq!((apps[0].asked(), apps[1].asked()), (vec![], Vec::<String>::new()));
}

#[test]
fn keys_at_a_url_that_cannot_be_read_refuse_the_whole_file() {
    let app = App::start();
    let it = Reloading::start(&format!("{HEAD}{ROOMS}"));
    let mut early = it.server.client();
    early.join("rooms:a", json!({}));
    let other = ROOMS.replace("rooms", "other");
    let with = |address: &str, channels: &str| {
        let url = format!("http://{address}/keys");
        let token = format!("[token]\nkind = \"jwt\"\njwks_url = \"{url}\"\n");
        format!("{HEAD}{token}{channels}")
    };
    it.write(&with("127.0.0.1:1", &other));
    let refused = it.command(TOKEN);
    assert_eq!(refused.status.code(), Some(1));
    let why = "the keys of [token] cannot be read at their URL";
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
    // Neither the token nor the channel of that file.
    let mut client = it.server.client();
    client.join("rooms:a", json!({}));
    let unmatched = json!({"reason": "unmatched topic"});
    client.ask("other:a", "phx_join", json!({}), "error", unmatched);
    early.send("rooms:a", "m", json!({}));
    client.expect("rooms:a", "m", json!({}));
    assert_eq!(it.server.metric("simurgh_reloads_total{result=\"failed\"}"), 1);

    let address = format!("127.0.0.1:{}", app.port);
    it.reloads(&with(&address, ROOMS));
    assert_eq!(app.asked(), ["keys"]);
    assert!(it.server.try_client("/socket/websocket?vsn=2.0.0").is_err());
    it.server.try_client(&path_with_token(SECRET, &["--kid", "a"])).unwrap();
    assert_eq!(it.server.metric("simurgh_reloads_total{result=\"ok\"}"), 1);
}

#[test]
fn notices_of_hooks_change_at_a_restart_only() {
    let hook =
        |more: &str| format!("[[hook]]\nname = \"app\"\nurl = \"http://127.0.0.1:1/\"\n{more}\n");
    let needs = "needs a restart: [[hook]] notices/topics/delivery/leave_grace\n";
    let wanted = "notices = [\"member.left\"]";
    let it = Reloading::start(&format!("{HEAD}{}{ROOMS}", hook(wanted)));
    for more in [
        "notices = [\"member.joined\"]",
        "notices = [\"member.left\"]\ntopics = [\"rooms:a\"]",
        "notices = [\"member.left\"]\ndelivery = { batch = 7 }",
        "notices = [\"member.left\"]\nleave_grace = \"7s\"",
        "",
    ] {
        let printed = it.reloads(&format!("{HEAD}{}{ROOMS}", hook(more)));
        assert!(printed.ends_with(needs), "{more}: {printed}");
    }
    assert!(it.reloads(&format!("{HEAD}{ROOMS}")).ends_with(needs));
    let other = hook(&format!("{wanted}\ntimeout = {{ answer = \"1s\" }}"));
    let printed = it.reloads(&format!("{HEAD}{other}{ROOMS}"));
    assert!(printed.ends_with("changed: [[hook]]\n"), "{printed}");
}

/// A number of the environment, for larger runs by hand.
fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Members of a room.
const TOGETHER: usize = 10;

/// Chats until told to stop; each message of each member must arrive, in order.
fn chat(mut client: Client, member: usize, stop: &AtomicBool) -> u64 {
    let topic = format!("rooms:{}", member / TOGETHER);
    client.join(&topic, json!({}));
    let (mut sent, mut ends) = (0, 0);
    let mut next: HashMap<u64, u64> = HashMap::new();
    while ends < TOGETHER {
        let ends_now = stop.load(Relaxed);
        if sent < u64::MAX {
            client.send(&topic, "m", json!({"from": member, "n": sent, "end": ends_now}));
        }
        loop {
            let (_, _, event, payload) = client.receive();
            assert_eq!(event, "m", "{payload}");
            let from = payload["from"].as_u64().unwrap();
            let n = payload["n"].as_u64().unwrap();
            let expected = next.entry(from).or_insert(n);
            assert_eq!(n, *expected, "a message of {from} to {member} is missing");
            *expected += 1;
            ends += usize::from(payload["end"] == true);
            if ends == TOGETHER || (from as usize == member && !ends_now) {
                break;
            }
        }
        sent = if ends_now { u64::MAX } else { sent + 1 };
    }
    next.values().sum()
}

#[test]
fn reloads_of_good_and_wrong_files_lose_no_client_and_no_message() {
    let (clients, reloads) = (number("RELOAD_CLIENTS", 40), number("RELOADS", 12));
    let mut it = Reloading::start(&format!("{HEAD}{ROOMS}"));
    let stop = Arc::new(AtomicBool::new(false));
    let chatting: Vec<_> = (0..clients)
        .map(|member| {
            let (client, stop) = (it.server.client(), Arc::clone(&stop));
            let thread = thread::Builder::new().stack_size(256 << 10);
            thread.spawn(move || chat(client, member, &stop)).unwrap()
        })
        .collect();
    let history = "history = { count = 50 }\n[[channel.event]]";
    let good = [
        format!("{HEAD}idle_timeout = \"50s\"\n{}", ROOMS.replace("[[channel.event]]", history)),
        format!(
            "{HEAD}[limits]\nmessages = {{ rate = \"100000/s\" }}\n\
             [limits.gold]\njoins = 5\n{ROOMS}"
        ),
        format!(
            "{HEAD}longpoll = \"1s\"\n[[channel]]\ntopic = \"news\"\n{ROOMS}announce_join = \"j\"\n"
        )
        .replace("announce_join", "# announce_join"),
    ];
    for n in 0..reloads {
        let is_good = n % 2 == 0;
        it.write(&if is_good {
            good[n / 2 % good.len()].clone()
        } else {
            format!("{HEAD}{ROOMS}[")
        });
        match n % 4 < 2 {
            true => assert_eq!(it.command(TOKEN).status.success(), is_good),
            false => it.server.signal("HUP"),
        }
        it.server.logged(if is_good { "reloaded; changed: " } else { "nothing has changed" });
    }
    stop.store(true, Relaxed);
    let received: u64 = chatting.into_iter().map(|it| it.join().unwrap()).sum();
    assert!(received >= (clients * TOGETHER) as u64);
    println!("{clients} clients received {received} messages during {reloads} reloads");
}
