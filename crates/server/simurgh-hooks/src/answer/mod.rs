//! Answers of an application, and how they are read.

#[cfg(test)]
#[path = "../../../../../fuzz/src/corpus.rs"]
mod corpus;
#[cfg(any(test, feature = "fuzz"))]
#[allow(clippy::expect_used, reason = "what does not hold ends the run")]
#[allow(unreachable_pub, reason = "public with the feature alone")]
pub(crate) mod fuzz;
pub(crate) mod outcome;
mod read;

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

pub(crate) use read::{Grant, grant};

/// The grant of an application, by the kind of the question.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To a question `connect` or `refresh`.
    Connect(ConnectAnswer),
    /// To a question `join`.
    Join(JoinAnswer),
    /// To a question `message`.
    Message(MessageAnswer),
}

/// The same as a token says: a user, claims, an expiry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConnectAnswer {
    /// The user, as `sub` of a token.
    pub user: Option<String>,
    /// Claims, as in a token; at most 2 kB.
    pub claims: Map<String, Value>,
    /// Unix time in seconds; `expires_in` counts from when the application answered.
    pub expires_at: Option<u64>,
    /// The socket id.
    pub id: Option<String>,
    /// Patterns of topics whose joins need no question.
    pub topics: Vec<String>,
    /// The name of the socket's limits, one of [`HookConfig::limits`](crate::HookConfig::limits).
    pub limits: Option<String>,
    /// Seconds that the grant lasts beyond its end while questions fail.
    pub stale_for: u64,
}

/// The id of the sockets that an answer to a connect lets in.
pub type IdOf = Arc<dyn Fn(&ConnectAnswer) -> Option<String> + Send + Sync>;

/// The grant to a member that joins.
#[derive(Clone, Debug, Default)]
pub struct JoinAnswer {
    /// The reply to the join.
    pub reply: Option<Box<RawValue>>,
    /// Comes back in the message questions of this channel; at most 1 kB.
    pub assigns: Option<Map<String, Value>>,
    /// The events that the member may publish. `None`: the rules of the channel decide.
    pub publish: Option<Publish>,
    /// `key` and `meta` in place of the channel's presence template.
    pub presence: Option<Value>,
    /// Topics whose broadcasts are pushed on this one; at most 16.
    pub subscribe: Vec<String>,
    /// As [`ConnectAnswer::limits`].
    pub limits: Option<String>,
}

/// The events that a member may publish.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Publish {
    /// Every event, or nothing.
    All(bool),
    /// These events.
    Events(Vec<String>),
}

/// A decision about the message of a client.
#[derive(Clone, Debug)]
pub struct MessageAnswer {
    /// The response to the client.
    pub reply: Option<Box<RawValue>>,
    /// The status of the reply.
    pub status: Option<String>,
    /// Broadcast in place of the client's payload.
    pub payload: Option<Box<RawValue>>,
    /// Broadcast in place of the client's event.
    pub event: Option<String>,
    /// Whether there is a broadcast. Default: yes.
    pub broadcast: bool,
    /// Published before the reply, in order; at most 16.
    pub messages: Vec<Extra>,
}

/// A further message that an answer publishes.
#[derive(Clone, Debug, Deserialize)]
pub struct Extra {
    /// Its topic.
    pub topic: String,
    /// Its event.
    pub event: String,
    /// Its payload.
    pub payload: Box<RawValue>,
    /// Its id: a repetition with the same id is not published.
    pub id: Option<String>,
}
