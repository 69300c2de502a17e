//! Cached answers of an application: which of them a disconnect, a block or a revocation voids
//! (B34).
#![allow(clippy::disallowed_types, reason = "an application has no reactor")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use serde_json::{Value, json};
use simurgh::declared::{Defaults, user_socket_with_hooks};
use simurgh::hooks::{Forward, HookConfig, HookSet, HookSpec, Secret};
use simurgh::{Builder, Endpoint};

use crate::api_lists::know_each_other;
use crate::api_orders::order;
use crate::support::nodes::Engine;
use crate::support::raw::ask;
use crate::support::{Client, metric, start, until};

const SECRET: &str = "whsec_c2ltdXJnaC1uZXctc2VjcmV0LTMyLWJ5dGVzLWxvbmc=";

/// An application that lets all in, with the user and the socket id of their params, and counts
/// its questions.
pub(crate) struct App {
    url: String,
    asked: Arc<AtomicUsize>,
}

impl App {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let counted = Arc::clone(&counted);
                std::thread::spawn(move || talk(stream, &counted));
            }
        });
        Self { url, asked }
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(SeqCst)
    }

    /// How many questions this client's connect takes.
    fn asked_by(&self, endpoint: &Endpoint, params: &str) -> usize {
        // A question of the same millisecond as a disconnect may be older, and is void, too.
        std::thread::sleep(Duration::from_millis(2));
        let before = self.asked();
        drop(client(endpoint, params));
        self.asked() - before
    }

    /// A server that asks it about connects.
    pub(crate) fn server(&self) -> Builder {
        let mut config = HookConfig::new("app", self.url.parse().unwrap());
        // Its cached answers count only with the same secret.
        config.secrets = vec![Secret::parse(SECRET).unwrap()];
        let spec = HookSpec {
            config,
            asks_connect: true,
            asks_refresh: false,
            forward: Forward::default(),
        };
        let hooks = Arc::new(HookSet::new(vec![spec]));
        let specs = serde_json::from_value::<Vec<_>>(json!([{"topic": "*"}])).unwrap();
        let defaults = Defaults::default();
        let user_socket = user_socket_with_hooks("/socket", &specs, defaults, None, hooks);
        let builder = Endpoint::builder().socket(user_socket.unwrap());
        builder.configure(|config| {
            config.shards = 2;
            config.api_token = Some("s3cret".to_owned());
            config.secret_key_base = Some("the same on all nodes".to_owned());
        })
    }
}

fn talk(stream: TcpStream, asked: &AtomicUsize) -> Option<()> {
    let mut from = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let (mut line, mut length) = (String::new(), 0);
        while {
            line.clear();
            from.read_line(&mut line).ok()?
        } > 2
        {
            if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = bytes.trim().parse().ok()?;
            }
        }
        if line.is_empty() {
            return None;
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body).ok()?;
        asked.fetch_add(1, SeqCst);
        let params = &serde_json::from_slice::<Value>(&body).ok()?["data"]["params"];
        let answer = json!({"user": params["user"], "id": params["id"], "cache_for": 600});
        let answer = answer.to_string();
        let length = answer.len();
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{answer}").ok()?;
    }
}

fn client(endpoint: &Endpoint, params: &str) -> Client {
    let path = format!("/socket/websocket?vsn=2.0.0&{params}");
    let mut client = Client::connect(endpoint.addresses()[0], &path);
    client.heartbeat();
    client
}

#[test]
fn disconnect_and_revocation_void_cached_answers_even_without_a_socket() {
    let app = App::start();
    let endpoint = start(app.server());
    let ask = |params: &str| app.asked_by(&endpoint, params);
    let (ann, team) = ("user=ann", "user=bob&id=team:1");
    assert_eq!([ask(ann), ask(ann), ask(team), ask(team)], [1, 0, 1, 0]);
    for (verb, body, params) in [
        ("disconnect", json!({"user": "ann"}), ann),
        ("revoke", json!({"user": "ann"}), ann),
        ("disconnect", json!({"id": "team:1"}), team),
        ("disconnect", json!({"user": "bob"}), team),
        ("broadcast", json!({"topic": "team:1", "event": "disconnect", "payload": {}}), team),
    ] {
        let (status, answer) = order(&endpoint, verb, &body);
        assert!(status < 300, "{verb} {body}: {answer}");
        assert_eq!([ask(params), ask(params)], [1, 0], "{verb} {body}");
    }
    let kept = json!({"id": "team:1", "keep_grants": true});
    assert_eq!(order(&endpoint, "disconnect", &kept).0, 200);
    assert_eq!(ask(team), 0);
    endpoint.disconnect("team:1").unwrap();
    assert_eq!(ask(team), 1, "by the application's own code");
}

#[test]
fn blocked_user_is_refused_although_its_answer_is_cached() {
    let app = App::start();
    let endpoint = start(app.server());
    let mut ann = client(&endpoint, "user=ann");
    assert_eq!(order(&endpoint, "block", &json!({"user": "ann"})).1["closed"], 1);
    assert_eq!(ann.recv_close(), 1001);
    let path = "/socket/websocket?vsn=2.0.0&user=ann";
    assert!(Client::try_connect(endpoint.addresses()[0], path).is_err());
    assert_eq!(order(&endpoint, "unblock", &json!({"user": "ann"})).0, 200);
    client(&endpoint, "user=ann");
}

/// Two nodes that know each other, and the client of each.
fn nodes(app: &App, engine: &Engine) -> [(Endpoint, Client); 2] {
    let both = ["one", "two"].map(|name| {
        let endpoint = start(engine.node(app.server(), name));
        let client = client(&endpoint, &format!("user={name}"));
        (endpoint, client)
    });
    know_each_other(&both[0].0, &both[1].0);
    both
}

/// Waits until both nodes have the same cached answers.
fn share(one: &Endpoint, two: &Endpoint) {
    let bytes = |endpoint| metric(endpoint, "simurgh_hook_cache_bytes");
    until("the same cached answers", || bytes(one) == bytes(two));
}

#[test]
fn reconnects_to_another_node_ask_nothing() {
    const CLIENTS: usize = 200;
    let (app, engine) = (App::start(), Engine::start());
    let [(one, _a), (two, _b)] = nodes(&app, &engine);
    let users = || (0..CLIENTS).map(|user| format!("user={user}"));
    users().for_each(|params| drop(client(&one, &params)));
    let asked = app.asked();
    share(&one, &two);
    users().for_each(|params| drop(client(&two, &params)));
    assert_eq!(app.asked(), asked);
}

/// B32.
#[test]
fn starting_node_takes_over_the_cached_answers_of_another() {
    const CLIENTS: usize = 200;
    let (app, engine) = (App::start(), Engine::start());
    let users = || (0..CLIENTS).map(|user| format!("user={user}"));
    let one = start(engine.node(app.server(), "one"));
    users().for_each(|params| drop(client(&one, &params)));
    let two = start(engine.node(app.server(), "two"));
    share(&one, &two);
    users().for_each(|params| drop(client(&two, &params)));
    assert_eq!(app.asked(), CLIENTS);
}

#[test]
fn answer_that_one_node_voids_is_void_on_the_other() {
    let (app, engine) = (App::start(), Engine::start());
    let [(one, mut ann), (two, _b)] = nodes(&app, &engine);
    share(&one, &two);
    assert_eq!(app.asked_by(&two, "user=one"), 0);
    let header = "authorization: Bearer s3cret\r\n";
    let list = ask(one.addresses()[0], "GET /api/connections?user=one", header, "").json();
    let connection = &list["connections"][0]["connection"];
    // Only the node of a connection carries this out.
    assert_eq!(order(&one, "disconnect", &json!({ "connection": connection })).1["closed"], 1);
    assert_eq!(ann.recv_close(), 1001);
    until("a question of the other node", || app.asked_by(&two, "user=one") == 1);
}

#[test]
fn cached_answers_survive_a_drain_in_the_state_directory() {
    let (app, dir) = (App::start(), tempfile::tempdir().unwrap());
    let started = || {
        let state_dir = Some(dir.path().to_owned());
        start(app.server().configure(|config| config.state_dir = state_dir))
    };
    let one = started();
    let users = ["user=ann", "user=bob"];
    assert_eq!(users.map(|user| app.asked_by(&one, user)), [1, 1]);
    assert_eq!(order(&one, "disconnect", &json!({"user": "bob"})).0, 200);
    one.drain().unwrap();
    let two = started();
    assert_eq!(users.map(|user| app.asked_by(&two, user)), [0, 1], "a void one is not saved");
    two.stop();
    // The file of the last drain may be older than a disconnect.
    assert_eq!(app.asked_by(&started(), "user=ann"), 1, "after an end without a drain");
}
