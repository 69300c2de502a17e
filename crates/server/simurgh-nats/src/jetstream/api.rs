//! What JetStream is asked, and how it answers: JSON.
//!
//! <https://docs.nats.io/reference/reference-protocols/nats_api_reference>, and ADR-31 of
//! nats-io/nats-architecture-and-design for getting many messages at once.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::wire::Message;

/// Nobody is there who would answer.
pub(super) const STATUS_NOBODY: u16 = 503;
/// There is nothing of that kind.
pub(super) const STATUS_NONE: u16 = 404;
/// The end of many messages.
pub(super) const STATUS_END: u16 = 204;

/// The stream is not there.
pub(super) const NO_STREAM: u32 = 10_059;
/// There is one of that name already, of another shape.
pub(super) const NAME_IN_USE: u32 = 10_058;
/// Servers of the engine that do not have a leader.
const UNAVAILABLE: u32 = 10_008;
/// Not all of the engine's servers answered.
const INCOMPLETE: u32 = 10_004;
/// No such message.
const NO_MESSAGE: u32 = 10_037;
/// What is stored should be in another stream.
const OTHER_STREAM: u32 = 10_060;
/// It could not be written.
const NOT_WRITTEN: u32 = 10_077;
/// An earlier one with the same id is on its way.
const IN_PROCESS: u32 = 10_158;

/// What JetStream says in place of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Failure {
    pub(super) code: u32,
    pub(super) err_code: u32,
    pub(super) description: String,
}

impl Failure {
    /// Nobody is there who would answer.
    pub(super) fn nobody() -> Self {
        let description = "nobody answers for it: JetStream is not enabled, no server leads the \
                           stream, or it is gone";
        let description = description.to_owned();
        Self { code: STATUS_NOBODY.into(), err_code: 0, description }
    }

    /// Nothing was done, and that may be otherwise soon.
    pub(super) const fn is_passing(&self) -> bool {
        matches!((self.code, self.err_code), (503, 0) | (_, UNAVAILABLE | INCOMPLETE))
    }

    /// It does not say whether it is stored: others of a stream's servers may have it.
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

/// What is there in an answer besides its error.
pub(super) trait Answer: Default + for<'a> Deserialize<'a> {
    fn error(&mut self) -> Option<Failure>;
}

macro_rules! answers {
    ($($name:ty),+) => {
        $(impl Answer for $name {
            fn error(&mut self) -> Option<Failure> {
                self.error.take()
            }
        })+
    };
}

answers!(StreamInfo, PubAck, Got, Purged);

/// Reads an answer.
///
/// # Errors
/// It is an error, or cannot be read.
pub(super) fn read<A: Answer>(message: &Message) -> Result<A, Failure> {
    if message.status() == Some(STATUS_NOBODY) {
        return Err(Failure::nobody());
    }
    let mut answer: A = serde_json::from_slice(message.payload()).map_err(|error| Failure {
        code: 500,
        err_code: 0,
        description: format!("its answer cannot be read: {error}"),
    })?;
    match answer.error() {
        Some(failure) => Err(failure),
        None => Ok(answer),
    }
}

/// To `STREAM.INFO`, `STREAM.CREATE` and `STREAM.UPDATE`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamInfo {
    error: Option<Failure>,
    pub(super) config: Value,
    pub(super) created: String,
    /// When it said so, by its clock.
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

    /// Whether it comes from who has all of the stream. Without a leader any server answers with
    /// what it has.
    pub(super) fn is_of_leader(&self) -> bool {
        self.replicas() <= 1 || self.cluster.as_ref().is_some_and(|it| !it.leader.is_empty())
    }
}

/// To what is stored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PubAck {
    error: Option<Failure>,
    pub(super) seq: u64,
    pub(super) duplicate: bool,
}

/// To `STREAM.MSG.GET`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Got {
    error: Option<Failure>,
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

/// To `STREAM.PURGE`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Purged {
    error: Option<Failure>,
    pub(super) success: bool,
}

/// What is asked: to which subject, and in which words.
pub(super) type Question = (String, Vec<u8>);

fn question(verb: &str, stream: &str, words: Option<Value>) -> Question {
    let words = words.map(|it| it.to_string().into_bytes()).unwrap_or_default();
    (format!("$JS.API.{verb}.{stream}"), words)
}

pub(super) fn info(stream: &str) -> Question {
    question("STREAM.INFO", stream, None)
}

pub(super) fn create(stream: &str, config: Value) -> Question {
    question("STREAM.CREATE", stream, Some(config))
}

pub(super) fn update(stream: &str, config: Value) -> Question {
    question("STREAM.UPDATE", stream, Some(config))
}

/// Everything on a subject before a number is forgotten.
pub(super) fn purge(stream: &str, subject: &str, before: u64) -> Question {
    question("STREAM.PURGE", stream, Some(json!({ "filter": subject, "seq": before })))
}

/// The next on a subject from a number on, of the leader.
pub(super) fn next_of_leader(stream: &str, subject: &str, seq: u64) -> Question {
    question("STREAM.MSG.GET", stream, Some(json!({ "next_by_subj": subject, "seq": seq })))
}

/// The first from a time on, of the leader, whatever its subject.
pub(super) fn first_from(stream: &str, time: &str) -> Question {
    let words = json!({ "next_by_subj": ">", "start_time": time, "no_hdr": true });
    question("STREAM.MSG.GET", stream, Some(words))
}

/// Those on a subject from a number on, of any server that has the stream.
pub(super) fn next(stream: &str, subject: &str, seq: u64, count: u32, bytes: usize) -> Question {
    let words = json!({
        "next_by_subj": subject, "seq": seq.max(1), "batch": count, "max_bytes": bytes.max(1),
    });
    question("DIRECT.GET", stream, Some(words))
}

/// The last of each of these from a number on, of any server that has the stream. `up_to` 0: up to
/// the last there is.
pub(super) fn last_of(
    stream: &str,
    subjects: &[&str],
    seq: u64,
    up_to: u64,
    bytes: usize,
) -> Question {
    let mut words = json!({ "multi_last": subjects, "max_bytes": bytes.max(1) });
    if seq > 0 {
        words["seq"] = seq.into();
    }
    if up_to > 0 {
        words["up_to_seq"] = up_to.into();
    }
    question("DIRECT.GET", stream, Some(words))
}

/// Nothing, of any server that has the stream: whether it may be asked.
pub(super) fn none_direct(stream: &str, subject: &str) -> Question {
    question("DIRECT.GET", stream, Some(json!({ "last_by_subj": subject })))
}

/// Nothing, of the leader: whether it may be asked.
pub(super) fn none_of_leader(stream: &str, subject: &str) -> Question {
    question("STREAM.MSG.GET", stream, Some(json!({ "last_by_subj": subject })))
}
