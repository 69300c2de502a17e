//! A small Channels server, one thread a connection, that broadcasts, and may keep messages.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "these sockets never meet a shard's table")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::outside::{Peer, Server, close, frame, lock};

/// How the hub treats earlier messages when a user comes back.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Keeps {
    /// It has no history.
    Nothing,
    /// It numbers messages, and replies to returning users that they are too old.
    Numbers,
    /// It sends them all.
    All,
    /// As `Nothing`, and it sends messages wrongly.
    Errors,
    /// As `Nothing`, and it takes its time to handle a leave.
    NothingAndLeavesLate,
}

#[derive(Clone)]
pub(crate) struct Hub {
    keeps: Keeps,
    room: Arc<Mutex<Room>>,
}

#[derive(Default)]
struct Room {
    members: BTreeMap<u64, Member>,
    /// The messages, from 1.
    said: Vec<String>,
    missed: u64,
    resumed: u64,
    ids: BTreeSet<String>,
    join_refs: BTreeMap<String, Vec<String>>,
}

struct Member {
    stream: Arc<TcpStream>,
    opted_in: bool,
    is_v2: bool,
}

pub(crate) fn reply(peer: &mut Peer, to: &Value, status: &str) -> bool {
    peer.text(&reply_to(to, status).to_string())
}

fn reply_to(to: &Value, status: &str) -> Value {
    let answer = json!({"status": status, "response": {}});
    match to.is_array() {
        true => json!([to[0], to[1], to[2], "phx_reply", answer]),
        false => {
            let topic = &to["topic"];
            json!({"topic": topic, "event": "phx_reply", "ref": to["ref"], "payload": answer})
        }
    }
}

pub(crate) fn binary(topic: &str, event: &str, data: &[u8]) -> Vec<u8> {
    let head = [2, topic.len() as u8, event.len() as u8];
    [&head, topic.as_bytes(), event.as_bytes(), data].concat()
}

fn position(n: usize) -> String {
    format!("k3f9a0.{n}")
}

/// An event of the room, in the receiver's serializer.
fn event(is_v2: bool, join_ref: &Value, place: &Value, event: &str, payload: &Value) -> Vec<u8> {
    let message = match is_v2 {
        true => json!([join_ref, place, "room", event, payload]),
        false => json!({"topic": "room", "event": event, "ref": place, "payload": payload}),
    };
    frame(1, message.to_string())
}

/// The frames of a message: each third one is binary in V2, after its position.
fn broadcast(n: usize, body: &str, opted_in: bool, is_v2: bool) -> Vec<u8> {
    let place = if opted_in { json!(position(n)) } else { Value::Null };
    if is_v2 && n.is_multiple_of(3) {
        let next = event(is_v2, &Value::Null, &place, "simurgh:next", &json!({}));
        let next = if opted_in { next } else { Vec::new() };
        return [next, frame(2, binary("room", "said", body.as_bytes()))].concat();
    }
    event(is_v2, &Value::Null, &place, "said", &json!({"body": body}))
}

impl Room {
    fn to_all(&self, but: Option<u64>, bytes: impl Fn(&Member) -> Vec<u8>) {
        for (number, member) in &self.members {
            if Some(*number) != but {
                // It may have closed, which its own thread notices.
                let _ = (&*member.stream).write_all(&bytes(member));
            }
        }
    }

    fn tell(&self, but: Option<u64>, what: &str) {
        self.to_all(but, |member| {
            event(member.is_v2, &Value::Null, &Value::Null, what, &json!({}))
        });
    }

    fn say(&mut self, body: &str, keeps: Keeps) {
        self.said.push(body.to_owned());
        let n = self.said.len();
        let order: &[usize] = match (keeps, n) {
            (Keeps::Errors, 3) => &[3, 3],
            (Keeps::Errors, 5 | 8) => &[],
            (Keeps::Errors, 6) => &[6, 5],
            _ => &[n],
        };
        for n in order {
            let body = self.said[n - 1].clone();
            self.to_all(None, |member| broadcast(*n, &body, member.opted_in, member.is_v2));
        }
    }

    fn join(&mut self, peer: &mut Peer, message: &Value, keeps: Keeps) {
        let is_v2 = message.is_array();
        let payload = if is_v2 { &message[4] } else { &message["payload"] };
        let join_ref = if is_v2 { &message[0] } else { &message["ref"] };
        let ours = &payload["simurgh"];
        let opted_in = ours.is_object() && matches!(keeps, Keeps::Numbers | Keeps::All);
        let mut out = frame(1, reply_to(message, "ok").to_string());
        let head = self.said.len();
        if opted_in {
            let id = ours["id"].as_str().unwrap().to_owned();
            let refs = self.join_refs.entry(id.clone()).or_default();
            refs.push(join_ref.as_str().unwrap().to_owned());
            self.ids.insert(id);
            let from = match ours["since"].as_str() {
                None => head,
                Some(since) => {
                    self.resumed += 1;
                    since.strip_prefix("k3f9a0.").unwrap().parse().unwrap()
                }
            };
            self.missed += (head - from) as u64;
            let recovered = keeps == Keeps::All || from == head;
            let (stands, told) = match recovered {
                true => (from, json!({"recovered": true, "count": head - from})),
                false => (head, json!({"recovered": false, "reason": "expired", "count": 0})),
            };
            out.extend(event(is_v2, join_ref, &json!(position(stands)), "simurgh:resumed", &told));
            for n in stands + 1..=head {
                out.extend(broadcast(n, &self.said[n - 1], true, is_v2));
            }
        }
        // Before it is a member: the others are told after that.
        peer.send(out);
        self.members.insert(peer.number, Member { stream: peer.stream.clone(), opted_in, is_v2 });
    }
}

impl Hub {
    pub(crate) fn new(keeps: Keeps) -> Self {
        Self { keeps, room: Arc::default() }
    }

    pub(crate) fn serve(&self) -> Server {
        self.serve_but(|_| true)
    }

    pub(crate) fn serve_but(
        &self,
        takes: impl Fn(&mut Peer) -> bool + Send + Sync + 'static,
    ) -> Server {
        let hub = self.clone();
        Server::new(move |mut peer| {
            if takes(&mut peer) && peer.upgrade() {
                hub.converse(&mut peer);
            }
        })
    }

    fn converse(&self, peer: &mut Peer) {
        let mut left = false;
        while let Some(got) = peer.frame() {
            if got.opcode == 8 {
                peer.send(close(1000));
                left = true;
                break;
            }
            let message: Value = serde_json::from_slice(&got.payload).unwrap();
            let is_v2 = message.is_array();
            let name = if is_v2 { &message[3] } else { &message["event"] };
            let mut room = lock(&self.room);
            match name.as_str().unwrap() {
                "phx_join" => {
                    let others = room.members.len();
                    room.join(peer, &message, self.keeps);
                    if others > 0 && room.members.len() > others {
                        room.tell(Some(peer.number), "back");
                    }
                }
                "phx_leave" => {
                    if self.keeps == Keeps::NothingAndLeavesLate {
                        drop(room);
                        thread::sleep(Duration::from_millis(300));
                        room = lock(&self.room);
                    }
                    room.members.remove(&peer.number);
                    reply(peer, &message, "ok");
                }
                "say" => {
                    let payload = if is_v2 { &message[4] } else { &message["payload"] };
                    room.say(payload["body"].as_str().unwrap_or_default(), self.keeps);
                    reply(peer, &message, "ok");
                }
                // Another member receives it, but it is not confirmed.
                "whisper" => {
                    let body = message[4]["body"].as_str().unwrap();
                    let (_, one) = room.members.iter().find(|it| *it.0 != peer.number).unwrap();
                    let bytes =
                        event(true, &Value::Null, &Value::Null, "said", &json!({"body": body}));
                    (&*one.stream).write_all(&bytes).unwrap();
                }
                "refuse" => _ = reply(peer, &message, "error"),
                "ignore" => {}
                "hang_up" => break,
                other => panic!("{other}"),
            }
        }
        let mut room = lock(&self.room);
        if room.members.remove(&peer.number).is_some() && !left {
            room.tell(None, "away");
        }
    }

    /// What all returning users had missed, by their own positions.
    pub(crate) fn missed(&self) -> u64 {
        lock(&self.room).missed
    }

    /// Joins that had a position.
    pub(crate) fn resumed(&self) -> u64 {
        lock(&self.room).resumed
    }

    pub(crate) fn ids(&self) -> usize {
        lock(&self.room).ids.len()
    }

    pub(crate) fn join_refs_used_twice(&self) -> usize {
        let room = lock(&self.room);
        let twice = |refs: &Vec<String>| refs.len() - refs.iter().collect::<BTreeSet<_>>().len();
        room.join_refs.values().map(twice).sum()
    }
}
