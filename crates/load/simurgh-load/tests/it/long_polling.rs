//! Long-poll users against servers that close connections, speak TLS, or answer nonsense.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::outside::{Ran, Secure, Server, certificate, run_with, secure_server};
use serde_json::{Value, json};
use simurgh_load::record::{Count, ErrorKind as E, Metric};

const USERS: u64 = 6;

/// How a server treats its connections and sessions.
#[derive(Clone, Copy, Debug, Default)]
struct Manners {
    /// Each answer is the last of its connection, announced or not.
    last: Option<bool>,
    /// Status in the answers to POSTs; 0: 200.
    posts: u16,
    /// The answer to the first GET in place of a session.
    opening: Option<&'static str>,
}

/// Sessions by token, each with the messages that wait for its poll.
#[derive(Default)]
struct Sessions {
    waiting: Mutex<HashMap<String, Vec<String>>>,
    news: Condvar,
}

impl Sessions {
    fn open(&self) -> Value {
        let mut waiting = self.waiting.lock().unwrap();
        let token = format!("t {}+", waiting.len());
        waiting.insert(token.clone(), Vec::new());
        json!({"status": 410, "token": token, "messages": []})
    }

    fn poll(&self, token: &str) -> Value {
        let waiting = self.waiting.lock().unwrap();
        let none = |waiting: &mut HashMap<String, Vec<String>>| waiting[token].is_empty();
        let window = Duration::from_millis(200);
        let (mut waiting, _) = self.news.wait_timeout_while(waiting, window, none).unwrap();
        let messages = std::mem::take(waiting.get_mut(token).unwrap());
        let status = if messages.is_empty() { 204 } else { 200 };
        json!({"status": status, "token": token, "messages": messages})
    }

    fn post(&self, token: &str, body: &str) {
        for line in body.lines() {
            let (join_ref, msg_ref, topic, _, payload): (Value, Value, Value, Value, Value) =
                serde_json::from_str(line).unwrap();
            let response = json!({"status": "ok", "response": payload});
            let reply = json!([join_ref, msg_ref, topic, "phx_reply", response]).to_string();
            self.waiting.lock().unwrap().get_mut(token).unwrap().push(reply);
        }
        self.news.notify_all();
    }
}

fn request(stream: &mut impl Read) -> Option<(String, String)> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).ok()?;
    let first = head.lines().next().unwrap().to_owned();
    Some((first, String::from_utf8(body).unwrap()))
}

fn serve(mut stream: impl Read + Write, sessions: &Sessions, manners: Manners) {
    while let Some((line, body)) = request(&mut stream) {
        let target = line.split(' ').nth(1).unwrap();
        let token = target.split_once("&token=").map(|(_, token)| token);
        let token = token.map(|token| token.replace("%20", " ").replace("%2B", "+"));
        assert!(target.starts_with("/socket/longpoll?vsn=2.0.0"), "{line}");
        let answer = match (&token, line.starts_with("POST")) {
            (None, _) => match manners.opening {
                Some(text) => text.to_owned(),
                None => sessions.open().to_string(),
            },
            (Some(token), false) => sessions.poll(token).to_string(),
            (Some(_), true) if manners.posts != 0 => json!({"status": manners.posts}).to_string(),
            (Some(token), true) => {
                sessions.post(token, &body);
                json!({"status": 200}).to_string()
            }
        };
        let close = if manners.last == Some(true) { "connection: close\r\n" } else { "" };
        let length = answer.len();
        let head = format!("HTTP/1.1 200 OK\r\n{close}content-length: {length}\r\n\r\n");
        // The client may have closed.
        if stream.write_all((head + &answer).as_bytes()).is_err() || manners.last.is_some() {
            return;
        }
    }
}

fn server(manners: Manners) -> Server {
    let sessions = Arc::new(Sessions::default());
    Server::new(move |peer| serve(&*peer.stream, &sessions, manners))
}

/// Users who join, are silent for a while, and send three messages.
#[track_caller]
fn users(url: &str, server: &Server, tls: &str) -> Ran {
    run_with(
        &format!(
            "[target]\nurl = \"{url}://{}\"\n{tls}\n[[phase]]\nduration = \"100ms\"\nrate = {}\n\
             [[session]]\nname = \"one\"\nprotocol = \"phoenix\"\ntransport = \"longpoll\"\n\
             steps = [{{ connect = \"/socket/websocket\" }}, {{ join = \"a:b\" }}, \
             {{ think = \"500ms\" }}, {{ loop = 3, steps = [{{ push = \"x\" }}] }}]",
            server.addr,
            USERS * 10
        ),
        2,
    )
}

#[track_caller]
fn all_went_well(ran: &Ran) {
    ran.errors_are(&[]);
    ran.users_are(USERS, 0);
    let timed = [Metric::Upgrade, Metric::Join, Metric::Push].map(|metric| ran.timed(metric));
    assert_eq!(timed, [USERS, USERS, 3 * USERS], "{}", ran.text());
    assert!(ran.count(Count::Posts) >= 4 * USERS, "{}", ran.text());
}

#[test]
fn long_polling_user_reuses_two_connections() {
    let server = server(Manners::default());
    let ran = users("ws", &server, "");
    all_went_well(&ran);
    assert_eq!(ran.count(Count::Connects), 2 * USERS, "{}", ran.text());
    assert_eq!(ran.count(Count::HttpFailures), 0);
}

#[test]
fn long_polling_works_if_the_server_closes_after_each_response() {
    let server = server(Manners { last: Some(true), ..Manners::default() });
    let ran = users("ws", &server, "");
    all_went_well(&ran);
    assert!(ran.count(Count::Connects) >= ran.count(Count::HttpAnswers), "{}", ran.text());
    assert_eq!(ran.count(Count::Posts), 4 * USERS, "{}", ran.text());
}

#[test]
fn request_on_a_closed_connection_is_sent_again() {
    let server = server(Manners { last: Some(false), ..Manners::default() });
    let ran = users("ws", &server, "");
    all_went_well(&ran);
    // The poll after each answer uses a connection that the server has closed.
    assert!(ran.count(Count::Polls) > ran.count(Count::HttpAnswers) - 4 * USERS, "{}", ran.text());
}

#[test]
fn long_polling_uses_https_on_both_connections() {
    let (pem, config) = certificate();
    for last in [None, Some(true)] {
        let sessions = Arc::new(Sessions::default());
        let manners = Manners { last, ..Manners::default() };
        let each = move |stream: Secure| serve(stream, &sessions, manners);
        let server = secure_server(config.clone(), each);
        all_went_well(&users("wss", &server, &format!("[tls]\nroots = ['''{pem}''']")));
    }
    let sessions = Arc::new(Sessions::default());
    let server = secure_server(config, move |stream| serve(stream, &sessions, Manners::default()));
    let ran = users("wss", &server, "");
    ran.errors_are(&[(E::Tls, USERS)]);
}

#[test]
fn refused_or_invalid_long_polling_session_has_its_own_error() {
    for (opening, error) in [
        ("{\"status\":403}", E::UpgradeStatus(403)),
        ("{\"status\":200,\"token\":null,\"messages\":[]}", E::UpgradeStatus(200)),
        ("{\"status\":410,\"messages\":[]}", E::UpgradeStatus(410)),
        ("<html>", E::HttpMalformed),
        ("", E::HttpMalformed),
    ] {
        let server = server(Manners { opening: Some(opening), ..Manners::default() });
        let ran = users("ws", &server, "");
        ran.errors_are(&[(error, USERS)]);
        ran.users_are(0, USERS);
        assert_eq!(ran.count(Count::Connects), USERS);
    }
}

#[test]
fn refused_long_polling_post_ends_the_session() {
    let server = server(Manners { posts: 408, ..Manners::default() });
    let ran = users("ws", &server, "");
    ran.errors_are(&[(E::LongPollStatus(408), USERS)]);
    ran.users_are(0, USERS);
    assert_eq!(ran.count(Count::RequestsUnanswered), USERS, "the joins");
}

#[test]
fn long_polling_server_that_closes_is_a_lost_connection() {
    let server = Server::new(|_| {});
    let ran = users("ws", &server, "");
    ran.users_are(0, USERS);
    let lost = [E::EndOfStream, E::ConnectionReset, E::ConnectReset].map(|kind| ran.errors(kind));
    assert_eq!(lost.iter().sum::<u64>(), USERS, "{}", ran.text());
}
