//! `simurgh publish`, `push`, `kick`, `disconnect`, `block`, `unblock`, `revoke`, `reload`,
//! `topics`, `online`, `stays` and `notices`: the server API from a shell.

mod block;
mod client;
mod notices;

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};
use simurgh_text::output::{complain, fail, print};
use simurgh_text::visible;

use crate::observe::client::encoded;
pub(crate) use block::{Block, Revoke, Unblock, block, revoke, unblock};
use client::Server;
pub(crate) use notices::{Notices, Stays, notices, stays};

#[derive(Debug, Args)]
pub(crate) struct Publish {
    #[command(flatten)]
    server: Server,
    /// Topic of the message.
    topic: String,
    /// Event of the message.
    event: String,
    /// Payload: JSON.
    #[arg(default_value = "{}", value_parser = payload)]
    payload: Value,
    /// Publishes the message once, however often it is sent with this id; in a topic with history.
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Publishes the message even if no channel has the topic.
    #[arg(long)]
    allow_unserved: bool,
}

/// The sockets that a command is about.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Sockets {
    /// The sockets of this user, the subject of their token.
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// The sockets with this socket id.
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// The connection with this id.
    #[arg(long, value_name = "ID")]
    connection: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Push {
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    sockets: Sockets,
    /// Topic of the channels.
    topic: String,
    /// Event of the message.
    event: String,
    /// Payload: JSON.
    #[arg(default_value = "{}", value_parser = payload)]
    payload: Value,
}

#[derive(Debug, Args)]
pub(crate) struct Kick {
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    sockets: Sockets,
    /// Topic of the channels.
    topic: String,
    /// Lets the clients join again, which is decided anew.
    #[arg(long)]
    rejoin: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Disconnect {
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    sockets: Sockets,
    /// Spares the connection with this id; may be repeated.
    #[arg(long, value_name = "CONNECTION")]
    except: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Reload {
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct Topics {
    #[command(flatten)]
    server: Server,
    /// Lists topics that begin with this text.
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
    /// Lists topics after this one, in the order of their names.
    #[arg(long, value_name = "TOPIC", default_value = "")]
    after: String,
    /// Number of topics.
    #[arg(long, value_name = "N", default_value = "100",
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
}

#[derive(Debug, Args)]
pub(crate) struct Online {
    #[command(flatten)]
    server: Server,
    /// Users, the subjects of their tokens.
    #[arg(required = true)]
    users: Vec<String>,
}

pub(crate) fn publish(flags: &Publish) -> ExitCode {
    let Publish { server, topic, event, payload, id, allow_unserved } = flags;
    let mut body = json!({"topic": topic, "event": event, "payload": payload});
    if let Some(id) = id {
        body["id"] = json!(id);
    }
    if *allow_unserved {
        body["allow_unserved"] = json!(true);
    }
    finish(server, server.post("broadcast", &body), |answer| {
        match (answer["positions"][0].as_str(), answer["duplicates"].as_u64()) {
            (Some(position), Some(1..)) => format!("was published before, at {position}\n"),
            (Some(position), _) => format!("published at {position}\n"),
            _ => "published\n".to_owned(),
        }
    })
}

pub(crate) fn push(flags: &Push) -> ExitCode {
    let Push { server, sockets, topic, event, payload } = flags;
    let fields = json!({"topic": topic, "event": event, "payload": payload});
    let answer = server.post("push", &sockets.with(fields));
    finish(server, answer, |answer| format!("delivered to channels: {}\n", answer["delivered"]))
}

pub(crate) fn kick(flags: &Kick) -> ExitCode {
    let Kick { server, sockets, topic, rejoin } = flags;
    let answer = server.post("kick", &sockets.with(json!({"topic": topic, "rejoin": rejoin})));
    finish(server, answer, |answer| format!("closed channels: {}\n", answer["closed"]))
}

pub(crate) fn disconnect(flags: &Disconnect) -> ExitCode {
    let Disconnect { server, sockets, except } = flags;
    let answer = server.post("disconnect", &sockets.with(json!({"except": except})));
    finish(server, answer, |answer| format!("closed sockets: {}\n", answer["closed"]))
}

pub(crate) fn reload(Reload { server }: &Reload) -> ExitCode {
    finish(server, server.post("reload", &json!({})), |answer| {
        let mut out = "reloaded; keys and certificates were read again\n".to_owned();
        for (title, key) in [("changed", "changed"), ("needs a restart", "needs_restart")] {
            let names = answer[key].as_array().into_iter().flatten();
            let names: Vec<_> = names.filter_map(Value::as_str).map(visible).collect();
            if !names.is_empty() {
                let _ = writeln!(out, "{title}: {}", names.join(", "));
            }
        }
        out
    })
}

pub(crate) fn topics(flags: &Topics) -> ExitCode {
    let Topics { server, prefix, after, limit } = flags;
    let (prefix, after) = (encoded(prefix), encoded(after));
    let answer = server.get(&format!("topics?prefix={prefix}&after={after}&limit={limit}"));
    finish(server, answer, |answer| {
        let mut out = String::new();
        for row in answer["topics"].as_array().into_iter().flatten() {
            let topic = row["topic"].as_str().unwrap_or_default();
            let _ = writeln!(out, "{:>9}  {}", row["members"].to_string(), visible(topic));
        }
        if let Some(next) = answer["next"].as_str() {
            complain(&format!("there are more: --after {}", visible(next)));
        }
        out
    })
}

pub(crate) fn online(flags: &Online) -> ExitCode {
    let Online { server, users } = flags;
    let answer = server.post("users/online", &json!({"users": users}));
    finish(server, answer, |answer| {
        let mut out = String::new();
        for (user, online) in answer.as_object().into_iter().flatten() {
            let user = visible(user);
            let _ = match online["since"].as_str() {
                Some(since) => {
                    let since = visible(since);
                    writeln!(out, "{user}: {} connections, since {since}", online["connections"])
                }
                None => writeln!(out, "{user}: offline"),
            };
        }
        out
    })
}

impl Sockets {
    /// The fields of a request about these sockets.
    fn with(&self, mut fields: Value) -> Value {
        let Self { user, id, connection } = self;
        let named = [("user", user), ("id", id), ("connection", connection)];
        let named = named.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        let named: Map<_, _> = named.map(|(key, value)| (key.to_owned(), json!(value))).collect();
        if let Value::Object(fields) = &mut fields {
            fields.extend(named);
        }
        fields
    }
}

/// Prints an answer. Fails if nodes are missing in it.
fn finish(
    server: &Server,
    answer: Result<Value, String>,
    text: impl FnOnce(&Value) -> String,
) -> ExitCode {
    let answer = match answer {
        Ok(answer) => answer,
        Err(why) => return fail(&why.lines().map(visible).collect::<Vec<_>>().join("\n")),
    };
    print(&if server.json { format!("{answer}\n") } else { text(&answer) });
    let missing = answer["missing"].as_array().filter(|missing| !missing.is_empty());
    match missing {
        None => ExitCode::SUCCESS,
        Some(missing) => {
            let names: Vec<_> = missing.iter().filter_map(|node| node["name"].as_str()).collect();
            fail(&format!("no answer of the nodes {}", visible(&names.join(", "))))
        }
    }
}

fn payload(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))
}
