//! `simurgh block`, `unblock` and `revoke`.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Args;
use serde_json::{Value, json};

use super::client::Server;
use super::finish;

#[derive(Debug, Args)]
pub(crate) struct Block {
    #[command(flatten)]
    server: Server,
    /// User, the subject of a token.
    user: String,
    /// Blocks only joins of topics that match this pattern, such as "rooms:*".
    #[arg(long, value_name = "PATTERN")]
    topic: Option<String>,
    /// How long; 30 days at most.
    #[arg(long = "for", value_name = "TIME", default_value = "30days",
          value_parser = humantime::parse_duration)]
    lasts: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Unblock {
    #[command(flatten)]
    server: Server,
    /// User, the subject of a token.
    user: String,
    /// Pattern of the block.
    #[arg(long, value_name = "PATTERN")]
    topic: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Revoke {
    #[command(flatten)]
    server: Server,
    /// Revokes the tokens of this user, their subject.
    #[arg(long, value_name = "USER", required_unless_present = "jti")]
    user: Option<String>,
    /// Revokes the token with this jti.
    #[arg(long, value_name = "JTI", conflicts_with = "user")]
    jti: Option<String>,
    /// Revokes only tokens from before this Unix time, in seconds. Default: now.
    #[arg(long, value_name = "SECONDS", conflicts_with = "jti")]
    issued_before: Option<u64>,
}

pub(crate) fn block(flags: &Block) -> ExitCode {
    let Block { server, user, topic, lasts } = flags;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let until = now.saturating_add(*lasts).as_secs();
    send(server, "block", &json!({"user": user, "topic": topic, "until": until}))
}

pub(crate) fn unblock(flags: &Unblock) -> ExitCode {
    let Unblock { server, user, topic } = flags;
    finish(server, server.post("unblock", &json!({"user": user, "topic": topic})), |_| {
        "unblocked\n".to_owned()
    })
}

pub(crate) fn revoke(flags: &Revoke) -> ExitCode {
    let Revoke { server, user, jti, issued_before } = flags;
    send(server, "revoke", &json!({"user": user, "jti": jti, "issued_before": issued_before}))
}

fn send(server: &Server, verb: &str, body: &Value) -> ExitCode {
    finish(server, server.post(verb, body), |answer| {
        format!("closed sockets: {}\n", answer["closed"])
    })
}
