//! The streams for topics with a history and for the log of notices, and how durable they are.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};
use simurgh_cluster::Prefix;
use simurgh_cluster::adapter::ID_SECONDS;

/// The settings of the JetStream streams for a cluster's topics with a history, and for its log of
/// notices.
///
/// The streams of a cluster are the same for all its nodes. Counts and ages are the largest that
/// any topic needs: nodes apply those of each topic themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamsConfig {
    /// How many streams of histories there are.
    pub streams: StreamCount,
    /// Whether there is also a stream for the log of notices. Nothing is removed from it except by
    /// purges.
    pub has_log: bool,
    /// How many servers each stream is on.
    pub replicas: Replicas,
    /// The storage on each server.
    pub storage: Storage,
    /// Whether this node creates and changes streams. Otherwise they must exist and fit.
    pub create_streams: bool,
    /// How many envelopes of each topic are kept. A stream that keeps more is not changed.
    pub count_max: u32,
    /// How long they are kept, at least [`ID_SECONDS`]: a broker stores ids no longer than
    /// messages. A stream that keeps them longer is not changed.
    pub age_max: Duration,
    /// The most bytes of all streams together, in equal parts; the oldest messages are removed
    /// first. The broker reserves them at once. None: no limit.
    pub engine_bytes: Option<u64>,
}

impl Default for StreamsConfig {
    /// One stream in files of one server; 100 envelopes of each topic, for five minutes.
    fn default() -> Self {
        Self {
            streams: StreamCount::One,
            has_log: false,
            replicas: Replicas::One,
            storage: Storage::File,
            create_streams: true,
            count_max: 100,
            age_max: Duration::from_secs(300),
            engine_bytes: None,
        }
    }
}

/// The number of streams. A stream is one log: its broker stores some ten thousand messages a
/// second in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamCount {
    /// No topic has a history.
    Zero,
    /// All topics are in one stream.
    One,
    /// Topics are divided by the first hexadecimal digit of their bucket.
    Sixteen,
}

impl StreamCount {
    /// The number.
    pub const fn get(self) -> usize {
        match self {
            Self::Zero => 0,
            Self::One => 1,
            Self::Sixteen => 16,
        }
    }
}

/// The number of servers of a stream: an odd number. More than half of them must run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// One server.
    One,
    /// Three servers: one may fail.
    Three,
    /// Five servers: two may fail.
    Five,
}

impl Replicas {
    /// The number.
    pub const fn get(self) -> u64 {
        match self {
            Self::One => 1,
            Self::Three => 3,
            Self::Five => 5,
        }
    }
}

/// The storage of a stream on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In files.
    File,
    /// In its memory.
    Memory,
}

impl Storage {
    /// Its name in JetStream.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Memory => "memory",
        }
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl StreamsConfig {
    /// Keeps this many envelopes of each topic, for this long; otherwise with the defaults.
    pub fn of(count_max: u32, age_max: Duration) -> Self {
        Self { count_max, age_max, ..Self::default() }
    }

    /// The same for histories of this count and age of envelopes, and for a log of notices if
    /// there is one; `None` if nothing is to be stored.
    pub fn needed(self, history: Option<(u32, Duration)>, has_log: bool) -> Option<Self> {
        let streams = if history.is_some() { self.streams } else { StreamCount::Zero };
        let (count_max, age_max) = history.unwrap_or((self.count_max, self.age_max));
        let needed = Self { streams, has_log, count_max, age_max, ..self };
        (needed.len() > 0).then_some(needed)
    }

    /// The names of the streams of a cluster, for [`Permissions::of`](crate::Permissions::of).
    pub fn stream_names(&self, prefix: &Prefix) -> Vec<String> {
        (0..self.len()).map(|at| self.stream_name(prefix, at)).collect()
    }

    /// The durability in words, for the operator.
    pub fn durability(&self) -> String {
        durability(self.storage.as_str(), self.replicas.get())
    }

    /// How many streams there are; that of the log is the last.
    pub(crate) const fn len(&self) -> usize {
        self.streams.get() + self.has_log as usize
    }

    const fn is_log(&self, at: usize) -> bool {
        at >= self.streams.get()
    }

    pub(crate) fn stream_name(&self, prefix: &Prefix, at: usize) -> String {
        let prefix = prefix.as_str().to_ascii_uppercase();
        if self.is_log(at) { format!("{prefix}_L0") } else { format!("{prefix}_H{at:x}") }
    }

    /// A subject of a stream that neither a topic nor a partition has.
    pub(crate) fn unused(&self, prefix: &Prefix, at: usize) -> String {
        let prefix = prefix.as_str();
        match self.is_log(at) {
            true => format!("{prefix}.l.none"),
            // `=~` begins the token of a hash, which is longer.
            false => format!("{prefix}.h.{at:x}.00.=~"),
        }
    }

    /// The index of the stream that stores a subject.
    pub(crate) fn stored_in(&self, prefix: &Prefix, subject: &[u8]) -> Option<usize> {
        let rest = subject.strip_prefix(prefix.as_str().as_bytes());
        let is_of_log = rest.is_some_and(|it| it.starts_with(b".l."));
        let log = (is_of_log && self.has_log).then_some(self.streams.get());
        log.or_else(|| self.stream_of(prefix, b".h.", subject))
    }

    /// The index of the stream of a subject in this space; `None` for another subject. A stream
    /// stores messages of space `h` and republishes them in space `b`.
    pub(crate) fn stream_of(&self, prefix: &Prefix, space: &[u8], subject: &[u8]) -> Option<usize> {
        let rest = subject.strip_prefix(prefix.as_str().as_bytes())?.strip_prefix(space)?;
        let digit = char::from(*rest.first()?).to_digit(16)?;
        match self.streams {
            StreamCount::Zero => None,
            StreamCount::One => Some(0),
            StreamCount::Sixteen => Some(digit as usize),
        }
    }

    /// The required configuration of a stream, as JetStream writes it.
    pub(crate) fn stream(&self, prefix: &Prefix, at: usize) -> Value {
        let name = self.stream_name(prefix, at);
        let prefix = prefix.as_str();
        let filter = |space: char| match self.streams {
            StreamCount::Zero | StreamCount::One => format!("{prefix}.{space}.>"),
            StreamCount::Sixteen => format!("{prefix}.{space}.{at:x}.>"),
        };
        let nanoseconds = |it: Duration| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX >> 1);
        let ids = Duration::from_secs(ID_SECONDS);
        let streams = self.streams.get().max(1) as u64;
        let max_bytes = self.engine_bytes.and_then(|it| i64::try_from(it / streams).ok());
        let mut stream = json!({
            "name": name,
            "description": "Kept topics of Simurgh",
            "subjects": [filter('h')],
            "storage": self.storage.as_str(),
            "num_replicas": self.replicas.get(),
            "retention": "limits",
            "discard": "old",
            "max_consumers": -1,
            "max_msgs": -1,
            "max_msg_size": -1,
            "max_msgs_per_subject": self.count_max.max(1),
            "max_age": nanoseconds(self.age_max.max(ids)),
            "max_bytes": max_bytes.map_or(-1, |it| it.max(1)),
            "duplicate_window": nanoseconds(ids),
            "allow_direct": true,
            "allow_msg_ttl": true,
            "allow_rollup_hdrs": false,
            "republish": { "src": filter('h'), "dest": filter('b') },
            "metadata": { METADATA: "1" },
        });
        if self.is_log(at) {
            stream["description"] = "Notices of Simurgh".into();
            stream["subjects"] = json!([format!("{prefix}.l.*")]);
            (stream["discard"], stream["allow_msg_ttl"]) = ("new".into(), false.into());
            (stream["max_msgs_per_subject"], stream["max_age"]) = ((-1).into(), 0.into());
            (stream["max_bytes"], stream["republish"]) = ((-1).into(), Value::Null);
        }
        stream
    }
}

/// The key in a stream's metadata that marks it as Simurgh's.
pub(crate) const METADATA: &str = "simurgh";
/// The key in a stream's metadata that counts how often it was set back.
pub(crate) const METADATA_EPOCH: &str = "simurgh.epoch";

pub(crate) fn durability(storage: &str, replicas: u64) -> String {
    let away = replicas.saturating_sub(1) / 2;
    let servers = match away {
        0 => "on one server".to_owned(),
        1 => format!("on {replicas} servers, one of which may fail"),
        _ => format!("on {replicas} servers, {away} of which may fail"),
    };
    let (place, survives) = match (storage, away) {
        ("memory", 0) => ("in memory", "they are lost when that server ends"),
        ("memory", _) => ("in memory", "they are lost when all of them end"),
        (_, 0) => (
            "in files",
            "they survive a killed process, but not a lost disk, and a power cut without the \
             last two minutes unless sync_interval is always",
        ),
        _ => (
            "in files",
            "they survive killed processes, and a power cut of all servers without the last two \
             minutes unless sync_interval is always",
        ),
    };
    format!("stored {place} {servers}: {survives}")
}

#[cfg(test)]
mod tests {
    use simurgh_cluster::Space;

    use super::*;

    fn prefix() -> Prefix {
        Prefix::new("a-1").unwrap()
    }

    #[test]
    fn every_topic_is_in_the_stream_of_its_digit() {
        let config = StreamsConfig { streams: StreamCount::Sixteen, ..StreamsConfig::default() };
        let names = config.stream_names(&prefix());
        assert_eq!((&*names[0], &*names[15], names.len()), ("A-1_H0", "A-1_Hf", 16));
        let mut found = [0; 16];
        for topic in 0..500 {
            let subject = prefix().topic(Space::Store, &format!("t:{topic}"));
            let at = config.stream_of(&prefix(), b".h.", subject.as_str().as_bytes()).unwrap();
            let filter = config.stream(&prefix(), at)["subjects"][0].as_str().unwrap().to_owned();
            assert!(subject.as_str().starts_with(filter.trim_end_matches('>')), "{subject}");
            let heard = prefix().topic(Space::Broadcast, &format!("t:{topic}"));
            let republished = config.stream_of(&prefix(), b".b.", heard.as_str().as_bytes());
            assert_eq!(republished, Some(at));
            assert_eq!(
                StreamsConfig::default().stream_of(&prefix(), b".h.", subject.as_str().as_bytes()),
                Some(0)
            );
            found[at] += 1;
        }
        assert!(found.iter().all(|it| *it > 0), "{found:?}");
    }

    #[test]
    fn subject_without_history_is_in_no_stream() {
        let config = StreamsConfig::default();
        let broadcast = prefix().topic(Space::Broadcast, "a");
        for subject in [broadcast.as_str(), "a-1.h.", "a-1.h", "b.h.0.00.a", "a-1.h.x.00.a", ""] {
            assert_eq!(config.stream_of(&prefix(), b".h.", subject.as_bytes()), None, "{subject}");
        }
    }

    #[test]
    fn stream_settings_match_the_contract() {
        let found = StreamsConfig::default().stream(&Prefix::new("simurgh").unwrap(), 0);
        let expected = json!({
            "name": "SIMURGH_H0", "subjects": ["simurgh.h.>"], "storage": "file",
            "num_replicas": 1, "retention": "limits", "discard": "old",
            "max_msgs_per_subject": 100, "max_age": 300_000_000_000_u64, "max_bytes": -1,
            "duplicate_window": 120_000_000_000_u64, "allow_direct": true, "allow_msg_ttl": true,
            "allow_rollup_hdrs": false,
            "republish": { "src": "simurgh.h.>", "dest": "simurgh.b.>" },
            "metadata": { "simurgh": "1" },
        });
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(found[key], *value, "{key}");
        }
    }

    #[test]
    fn b47_stream_of_the_log_is_the_last_and_removes_nothing_by_itself() {
        let history = (7, Duration::from_secs(600));
        assert_eq!(StreamsConfig::default().needed(None, false), None);
        let config = StreamsConfig { engine_bytes: Some(1 << 20), ..StreamsConfig::default() };
        for (history, at) in [(None, 0), (Some(history), 1)] {
            let config = config.clone().needed(history, true).unwrap();
            assert_eq!(config.stream_names(&prefix())[at..], ["A-1_L0"]);
            let log = prefix().log(15);
            assert_eq!(config.stored_in(&prefix(), log.as_str().as_bytes()), Some(at));
            let topic = prefix().topic(Space::Store, "t");
            let stored_in = config.stored_in(&prefix(), topic.as_str().as_bytes());
            assert_eq!(stored_in, history.map(|_| 0));
            let found = config.stream(&prefix(), at);
            for (key, value) in [
                ("subjects", json!(["a-1.l.*"])),
                ("discard", json!("new")),
                ("max_age", json!(0)),
                ("max_bytes", json!(-1)),
                ("max_msgs_per_subject", json!(-1)),
                ("republish", Value::Null),
            ] {
                assert_eq!(found[key], value, "{key}");
            }
        }
    }

    #[test]
    fn stream_remembers_ids_long_enough_and_shares_its_bytes() {
        let keeping = StreamsConfig {
            streams: StreamCount::Sixteen,
            age_max: Duration::from_secs(10),
            engine_bytes: Some(16_000),
            ..StreamsConfig::default()
        };
        let found = keeping.stream(&prefix(), 3);
        assert_eq!(found["max_age"], found["duplicate_window"]);
        assert_eq!(found["max_bytes"], 1_000);
    }

    #[test]
    fn sufficient_settings_are_described() {
        let said = |storage, replicas| {
            StreamsConfig { storage, replicas, ..StreamsConfig::default() }.durability()
        };
        let file = said(Storage::File, Replicas::One);
        assert!(file.starts_with("stored in files on one server: they survive"), "{file}");
        assert!(file.contains("without the last two minutes"), "{file}");
        let three = said(Storage::File, Replicas::Three);
        assert!(three.contains("on 3 servers, one of which may fail"), "{three}");
        let memory = said(Storage::Memory, Replicas::Five);
        assert!(memory.contains("on 5 servers, 2 of which may fail"), "{memory}");
        assert!(memory.contains("lost when all of them end"), "{memory}");
        assert!(said(Storage::Memory, Replicas::One).contains("lost when that server ends"));
    }
}
