//! JetStream's requests and answers, in JSON.
//!
//! <https://docs.nats.io/reference/reference-protocols/nats_api_reference>, and ADR-31 of
//! nats-io/nats-architecture-and-design for getting many messages at once.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::wire::Message;

pub(super) const STATUS_NOBODY: u16 = 503;
pub(super) const STATUS_NONE: u16 = 404;
/// The end of a batch of messages.
pub(super) const STATUS_END: u16 = 204;

pub(super) const NO_STREAM: u32 = 10_059;
/// A stream of that name with another configuration exists.
pub(super) const NAME_IN_USE: u32 = 10_058;
/// The broker's servers have no leader.
const UNAVAILABLE: u32 = 10_008;
/// Not all of the broker's servers have answered.
const INCOMPLETE: u32 = 10_004;
const NO_MESSAGE: u32 = 10_037;
/// The message expected another stream.
const OTHER_STREAM: u32 = 10_060;
const NOT_WRITTEN: u32 = 10_077;
/// An earlier message with the same id is being stored.
const IN_PROCESS: u32 = 10_158;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Failure {
    pub(super) code: u32,
    pub(super) err_code: u32,
    pub(super) description: String,
}

impl Failure {
    pub(super) fn nobody() -> Self {
        let description =
            "no response: JetStream is not enabled, the stream has no leader, or it was deleted";
        let description = description.to_owned();
        Self { code: STATUS_NOBODY.into(), err_code: 0, description }
    }

    /// Whether no server has received the request.
    pub(super) const fn is_nobody(&self) -> bool {
        matches!((self.code, self.err_code), (503, 0))
    }

    /// Whether the request had no effect, and a later attempt may succeed.
    pub(super) const fn is_passing(&self) -> bool {
        self.is_nobody() || matches!(self.err_code, UNAVAILABLE | INCOMPLETE)
    }

    /// Whether the message may be stored: other servers of the stream may have it.
    pub(super) const fn may_be_stored(&self, replicas: u64) -> bool {
        self.err_code == IN_PROCESS || (self.err_code == NOT_WRITTEN && replicas > 1)
    }

    pub(super) const fn is_no_message(&self) -> bool {
        self.err_code == NO_MESSAGE
    }

    pub(super) const fn is_other_stream(&self) -> bool {
        self.err_code == OTHER_STREAM
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.err_code {
            0 => f.write_str(&self.description),
            code => write!(f, "{} ({code})", self.description),
        }
    }
}

/// # Errors
/// The answer is an error, or cannot be read.
pub(super) fn read<A: DeserializeOwned>(message: &Message) -> Result<A, Failure> {
    #[derive(Deserialize)]
    struct Answer {
        error: Option<Failure>,
    }
    if message.status() == Some(STATUS_NOBODY) {
        return Err(Failure::nobody());
    }
    let unreadable = |error| Failure {
        code: 500,
        err_code: 0,
        description: format!("its response cannot be read: {error}"),
    };
    let answer: Answer = serde_json::from_slice(message.payload()).map_err(unreadable)?;
    match answer.error {
        Some(failure) => Err(failure),
        None => serde_json::from_slice(message.payload()).map_err(unreadable),
    }
}

/// The answer to `STREAM.INFO`, `STREAM.CREATE` and `STREAM.UPDATE`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamInfo {
    pub(super) config: Value,
    pub(super) created: String,
    /// The time of the answer, by the server's clock.
    pub(super) ts: String,
    pub(super) state: StreamState,
    cluster: Option<StreamCluster>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamState {
    pub(super) last_seq: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamCluster {
    leader: String,
}

impl StreamInfo {
    pub(super) fn replicas(&self) -> u64 {
        self.config["num_replicas"].as_u64().unwrap_or(1)
    }

    /// Whether it comes from a server with the whole stream. Without a leader any server answers
    /// from its own copy.
    pub(super) fn is_of_leader(&self) -> bool {
        self.replicas() <= 1 || self.cluster.as_ref().is_some_and(|it| !it.leader.is_empty())
    }
}

/// The answer to a stored message.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PubAck {
    pub(super) seq: u64,
    pub(super) duplicate: bool,
}

/// The answer to `STREAM.MSG.GET`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Got {
    pub(super) message: GotMessage,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct GotMessage {
    pub(super) seq: u64,
    /// In base64.
    pub(super) data: String,
    pub(super) time: String,
}

/// The answer to `STREAM.PURGE`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Purged {
    pub(super) success: bool,
}

pub(super) type Request = (String, Vec<u8>);

fn request(verb: &str, stream: &str, words: Option<Value>) -> Request {
    let words = words.map(|it| it.to_string().into_bytes()).unwrap_or_default();
    (format!("$JS.API.{verb}.{stream}"), words)
}

pub(super) fn info(stream: &str) -> Request {
    request("STREAM.INFO", stream, None)
}

pub(super) fn create(stream: &str, config: Value) -> Request {
    request("STREAM.CREATE", stream, Some(config))
}

pub(super) fn update(stream: &str, config: Value) -> Request {
    request("STREAM.UPDATE", stream, Some(config))
}

/// Removes everything on a subject before a number.
pub(super) fn purge(stream: &str, subject: &str, before: u64) -> Request {
    request("STREAM.PURGE", stream, Some(json!({ "filter": subject, "seq": before })))
}

/// The next message on a subject from a number on, from the leader.
pub(super) fn next_of_leader(stream: &str, subject: &str, seq: u64) -> Request {
    request("STREAM.MSG.GET", stream, Some(json!({ "next_by_subj": subject, "seq": seq })))
}

/// The first message from a time on, on any subject, from the leader.
pub(super) fn first_from(stream: &str, time: &str) -> Request {
    let words = json!({ "next_by_subj": ">", "start_time": time, "no_hdr": true });
    request("STREAM.MSG.GET", stream, Some(words))
}

/// The messages on a subject from a number on, from any server that has the stream.
pub(super) fn next(stream: &str, subject: &str, seq: u64, count: u32, bytes: usize) -> Request {
    let words = json!({
        "next_by_subj": subject, "seq": seq.max(1), "batch": count, "max_bytes": bytes.max(1),
    });
    request("DIRECT.GET", stream, Some(words))
}

/// The last message on each of these subjects from a number on, from any server that has the
/// stream. `up_to` 0: up to the end.
pub(super) fn last_of(
    stream: &str,
    subjects: &[&str],
    seq: u64,
    up_to: u64,
    bytes: usize,
) -> Request {
    let mut words = json!({ "multi_last": subjects, "max_bytes": bytes.max(1) });
    if seq > 0 {
        words["seq"] = seq.into();
    }
    if up_to > 0 {
        words["up_to_seq"] = up_to.into();
    }
    request("DIRECT.GET", stream, Some(words))
}

/// An empty request to any server with the stream: tests whether the node may ask it.
pub(super) fn none_direct(stream: &str, subject: &str) -> Request {
    request("DIRECT.GET", stream, Some(json!({ "last_by_subj": subject })))
}

/// An empty request to the leader: tests whether the node may ask it.
pub(super) fn none_of_leader(stream: &str, subject: &str) -> Request {
    request("STREAM.MSG.GET", stream, Some(json!({ "last_by_subj": subject })))
}
