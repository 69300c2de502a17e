//! `simurgh stays` and `simurgh notices`.

use std::fmt::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use simurgh_text::visible;

use super::client::Server;
use super::finish;
use crate::observe::client::encoded;

#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct Stays {
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    of: Of,
}

/// The stays that a command is about.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Of {
    /// The stays in this topic, and its own.
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,
    /// The stays of this user.
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// The stays of this partition, 0 to 15.
    #[arg(long, value_name = "N")]
    partition: Option<u8>,
}

#[derive(Debug, Args)]
pub(crate) struct Notices {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints how many notices each hook has accepted, and how many wait
    Status {
        #[command(flatten)]
        server: Server,
    },
    /// Prints notices that a hook has not accepted in time
    Dead {
        #[command(flatten)]
        server: Server,
        /// Name of the hook.
        hook: String,
    },
    /// Sends dead letters again
    Replay(Letters),
    /// Deletes dead letters
    Delete(Letters),
    /// Sends notices again to a hook that answered 410, or that waits for its next attempt
    Resume {
        #[command(flatten)]
        server: Server,
        /// Name of the hook.
        hook: String,
    },
}

#[derive(Debug, Args)]
struct Letters {
    #[command(flatten)]
    server: Server,
    /// Name of the hook.
    hook: String,
    /// Ids of the notices.
    #[arg(required = true)]
    ids: Vec<String>,
}

pub(crate) fn stays(Stays { server, of }: &Stays) -> ExitCode {
    let query = match (&of.topic, &of.user, of.partition) {
        (Some(topic), ..) => format!("topic={}", encoded(topic)),
        (_, Some(user), _) => format!("user={}", encoded(user)),
        (.., partition) => format!("partition={}", partition.unwrap_or_default()),
    };
    finish(server, server.get(&format!("stays?{query}")), |answer| {
        let mut out = String::new();
        for stay in answer["stays"].as_array().into_iter().flatten() {
            let texts = ["since", "kind", "topic", "user", "stay"].map(|key| stay[key].as_str());
            let texts: Vec<_> = texts.into_iter().flatten().map(visible).collect();
            let _ = writeln!(out, "{}", texts.join("  "));
        }
        out
    })
}

pub(crate) fn notices(Notices { command }: &Notices) -> ExitCode {
    let name = |hook: &String| json!({"hook": hook});
    match command {
        Command::Status { server } => finish(server, server.get("notices"), status),
        Command::Dead { server, hook } => {
            let answer = server.get(&format!("notices/dead?hook={}", encoded(hook)));
            finish(server, answer, dead)
        }
        Command::Resume { server, hook } => {
            finish(server, server.post("notices/resume", &name(hook)), |_| "resumed\n".to_owned())
        }
        Command::Replay(letters) => letters.send("replay", "will be sent again"),
        Command::Delete(letters) => letters.send("delete", "deleted"),
    }
}

impl Letters {
    fn send(&self, verb: &str, done: &str) -> ExitCode {
        let Self { server, hook, ids } = self;
        let answer = server.post(&format!("notices/{verb}"), &json!({"hook": hook, "ids": ids}));
        finish(server, answer, |answer| {
            format!("dead letters found: {}; {done}\n", answer["found"])
        })
    }
}

fn status(answer: &Value) -> String {
    let mut out = format!("open stays: {}\n", answer["stays"]);
    for (hook, of) in answer["hooks"].as_object().into_iter().flatten() {
        let hook = visible(hook);
        let [accepted, waiting, oldest, again, dead] =
            ["accepted", "waiting", "oldest_seconds", "again", "dead"].map(|key| &of[key]);
        let _ = writeln!(
            out,
            "{hook}: {accepted} accepted, {waiting} wait (the oldest for {oldest} s), \
             {again} were sent again, {dead} dead letters"
        );
    }
    out
}

fn dead(answer: &Value) -> String {
    let mut out = String::new();
    for letter in answer["dead"].as_array().into_iter().flatten() {
        let notice = &letter["notice"];
        let texts = [
            &notice["timestamp"],
            &notice["id"],
            &notice["type"],
            &notice["data"]["topic"],
            &notice["data"]["user"],
            &letter["body"],
        ];
        let texts: Vec<_> = texts.iter().filter_map(|it| it.as_str()).map(visible).collect();
        let _ = writeln!(out, "{}  status {}", texts.join("  "), letter["status"]);
    }
    out
}
