//! One client of the stress test, with its expected answers and the numbers of every sender.

use std::collections::{HashMap, VecDeque};

use serde_json::{Value, json};
use tungstenite::{Error, Message};

use crate::support::Client;

/// The stream of one sender on one topic has the numbers 1, 2, 3…
pub(crate) type Stream = (String, String);

/// The messages of one topic that a membership has received. Inside a window numbers have no gap.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// By sender: the next number.
    pub(crate) next: HashMap<String, u64>,
    /// It was open at the last barrier: a sender without an entry above begins with 1.
    pub(crate) settled: bool,
}

/// The next expected answers, in the order of the requests.
#[derive(Debug, Clone)]
pub(crate) enum Expected {
    Reply { msg_ref: String, status: &'static str, length: Option<usize> },
    Joined { topic: String, join_ref: String, own: u64, rejoin: bool },
    Left { topic: String, msg_ref: String, own: u64 },
    Close { topic: String, join_ref: String },
}

#[derive(Debug)]
struct Membership {
    join_ref: String,
    windows: HashMap<String, Window>,
}

pub(crate) struct Peer {
    pub(crate) socket: Client,
    pub(crate) v2: bool,
    /// Names this connection as a sender; each connection has another name.
    pub(crate) name: String,
    pub(crate) expected: VecDeque<Expected>,
    memberships: HashMap<String, Membership>,
}

/// The topics whose broadcasts a member of `topic` receives.
pub(crate) fn sources(topic: &str) -> impl Iterator<Item = &str> {
    std::iter::once(topic).chain(topic.starts_with("relay:").then_some("rooms:0"))
}

impl Peer {
    pub(crate) fn new(socket: Client, v2: bool, name: String) -> Self {
        Self { socket, v2, name, expected: VecDeque::new(), memberships: HashMap::new() }
    }

    pub(crate) fn encode(
        &self,
        join_ref: &str,
        msg_ref: &str,
        topic: &str,
        event: &str,
        payload: &Value,
    ) -> String {
        let join_ref = if join_ref.is_empty() { Value::Null } else { json!(join_ref) };
        if self.v2 {
            return json!([join_ref, msg_ref, topic, event, payload]).to_string();
        }
        json!({"topic": topic, "event": event, "payload": payload, "ref": msg_ref,
            "join_ref": join_ref})
        .to_string()
    }

    /// Reads one message and checks it; `false` when the server closed with `may_close`.
    pub(crate) fn step(&mut self, may_close: Option<u16>) -> Result<bool, String> {
        let text = match self.socket.0.read() {
            Ok(Message::Text(text)) => text,
            Ok(Message::Close(frame)) => {
                let code = frame.map(|frame| u16::from(frame.code));
                return match code == may_close && code.is_some() {
                    true => Ok(false),
                    false => Err(format!("closed with {code:?}, wanted {may_close:?}")),
                };
            }
            Ok(other) => return Err(format!("unexpected frame {other:?}")),
            Err(Error::Io(error)) => return Err(format!("{error}; awaited {:?}", self.awaited())),
            Err(error) => return Err(error.to_string()),
        };
        let message: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let taken = self.take(&message);
        let brief = || text.chars().take(200).collect::<String>();
        taken.map_err(|why| format!("{why}: {}; due {:?}", brief(), self.awaited()))?;
        Ok(true)
    }

    fn awaited(&self) -> Vec<&Expected> {
        self.expected.iter().take(3).collect()
    }

    fn take(&mut self, message: &Value) -> Result<(), String> {
        let (join_ref, msg_ref, topic, event, payload) = if self.v2 {
            (&message[0], &message[1], &message[2], &message[3], &message[4])
        } else {
            let at = |name| message.get(name).unwrap_or(&Value::Null);
            (&Value::Null, at("ref"), at("topic"), at("event"), at("payload"))
        };
        let topic = topic.as_str().ok_or("no topic")?;
        match event.as_str().ok_or("no event")? {
            "phx_reply" => self.reply(msg_ref, topic, payload),
            "phx_close" => match self.expected.pop_front() {
                Some(Expected::Close { topic: due, join_ref: of }) if due == topic => {
                    (*msg_ref == json!(of)).then_some(()).ok_or("close of another join".to_owned())
                }
                other => Err(format!("close, but due was {other:?}")),
            },
            "cast" => self.cast(topic, topic.starts_with("icept:"), join_ref, payload),
            "relayed" => self.cast(topic, true, join_ref, payload),
            _ => Err("unknown event".to_owned()),
        }
    }

    fn reply(&mut self, msg_ref: &Value, topic: &str, payload: &Value) -> Result<(), String> {
        let due = self.expected.pop_front().ok_or("a reply nobody asked for")?;
        let wrong = Err(format!("due was {due:?}"));
        let is = |wanted: &str, status| *msg_ref == json!(wanted) && payload["status"] == status;
        match due {
            Expected::Reply { msg_ref, status, length } if is(&msg_ref, status) => {
                let came = payload["response"]["pad"].as_str().map(str::len);
                if length.is_some_and(|length| came != Some(length)) {
                    return Err(format!("{came:?} bytes echoed instead of {length:?}"));
                }
                Ok(())
            }
            Expected::Joined { topic: due, join_ref, own, rejoin } if is(&join_ref, "ok") => {
                if due != topic || self.memberships.contains_key(topic) != rejoin {
                    return wrong;
                }
                self.open(topic, join_ref, own);
                Ok(())
            }
            Expected::Left { topic: due, msg_ref, own } if is(&msg_ref, "ok") && due == topic => {
                let Some(membership) = self.memberships.remove(topic) else { return wrong };
                let heard = membership.windows.get(topic).and_then(|it| it.next.get(&self.name));
                match heard {
                    Some(next) if *next == own + 1 => Ok(()),
                    _ => Err(format!("left at {own} of its own, but next is {heard:?}")),
                }
            }
            _ => wrong,
        }
    }

    /// A join was answered. A rejoin continues the old channel's numbers without a gap, unless the
    /// join is slow or a further topic is subscribed to again.
    fn open(&mut self, topic: &str, join_ref: String, own: u64) {
        let old = self.memberships.remove(topic);
        let mut windows: HashMap<String, Window> =
            sources(topic).map(|source| (source.to_owned(), Window::default())).collect();
        if let Some(mut old) = old
            && !topic.starts_with("later:")
            && let Some(direct) = old.windows.remove(topic)
        {
            windows.insert(topic.to_owned(), direct);
        } else if let Some(direct) = windows.get_mut(topic) {
            direct.next.insert(self.name.clone(), own + 1);
        }
        self.memberships.insert(topic.to_owned(), Membership { join_ref, windows });
    }

    fn cast(
        &mut self,
        topic: &str,
        is_push: bool,
        join_ref: &Value,
        payload: &Value,
    ) -> Result<(), String> {
        let membership = self.memberships.get_mut(topic).ok_or("heard by no member")?;
        let wanted = if is_push { json!(membership.join_ref) } else { Value::Null };
        if self.v2 && *join_ref != wanted {
            return Err(format!("join_ref instead of {wanted}"));
        }
        let sender = payload["s"].as_str().ok_or("no sender")?;
        let source = payload["x"].as_str().ok_or("no source")?;
        let n = payload["n"].as_u64().ok_or("no number")?;
        if source == topic && sender.strip_suffix('o') == Some(&self.name) {
            return Err("its own broadcast_from".to_owned());
        }
        let window = membership.windows.get_mut(source).ok_or("from a topic not subscribed")?;
        let first = if window.settled { 1 } else { n };
        let next = window.next.get(sender).copied().unwrap_or(first);
        if n != next {
            return Err(format!("number {n} came where {next} was due"));
        }
        window.next.insert(sender.to_owned(), n + 1);
        Ok(())
    }

    pub(crate) fn is_level(&self, counts: &HashMap<Stream, u64>) -> bool {
        self.windows().all(|(source, window)| {
            let sent = counts.get(&("e".to_owned(), source.to_owned())).copied();
            sent.map(|sent| sent + 1) == window.next.get("e").copied()
        })
    }

    pub(crate) fn windows(&self) -> impl Iterator<Item = (&str, &Window)> {
        let all = self.memberships.values().flat_map(|it| &it.windows);
        all.map(|(source, window)| (source.as_str(), window))
    }

    pub(crate) fn settle(
        &mut self,
        counts: &HashMap<Stream, u64>,
        dead: &mut HashMap<Stream, u64>,
        dead_names: &[String],
    ) -> Result<(), String> {
        for (topic, membership) in &mut self.memberships {
            for (source, window) in &mut membership.windows {
                for ((sender, on), sent) in counts.iter().filter(|((_, on), _)| on == source) {
                    let unheard = source == topic && sender.strip_suffix('o') == Some(&self.name);
                    let next = window.next.get(sender).copied();
                    let next = next.or(window.settled.then_some(1));
                    let is_dead = dead_names.iter().any(|it| sender.trim_end_matches('o') == it);
                    let wrong =
                        || format!("{topic}: {sender} on {on} sent {sent}, next is {next:?}");
                    match next {
                        _ if unheard => {}
                        Some(next) if is_dead => {
                            let heard = dead.entry((sender.clone(), on.clone())).or_insert(next);
                            if *heard != next || next > sent + 1 {
                                return Err(format!("{}; others {heard}", wrong()));
                            }
                        }
                        Some(next) if next != sent + 1 => return Err(wrong()),
                        _ => {
                            window.next.insert(sender.clone(), sent + 1);
                        }
                    }
                    if is_dead {
                        window.next.remove(sender);
                    }
                }
                window.settled = true;
            }
        }
        Ok(())
    }
}
