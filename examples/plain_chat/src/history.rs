//! The last messages of all users, kept by one thread.
//!
//! Connections are on several shards, and shards share nothing. A list behind a mutex would keep
//! the messages, but not the order of the *lists*: after one shard has appended, another may append
//! and broadcast first; then the older list follows the newer one and a message vanishes from the
//! page. A single owner that appends and broadcasts together avoids that, and needs no lock.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use simurgh::{Payload, PubSub};

/// Bytes that all kept messages may have together. Each of them is sent to all users with every
/// message, so this is the cost of a message; the newest is kept whatever its size.
const BYTES_MAX: usize = 256 << 10;
/// Messages that may wait to be kept.
const WAITING_MAX: usize = 1024;
/// How long to wait when the server is too busy to take a list.
const CONGESTED: Duration = Duration::from_millis(1);

/// Sends messages of connections to the history.
#[derive(Clone)]
pub(crate) struct Keeper(SyncSender<Box<str>>);

/// The receiver of these messages, for [`keep`].
pub(crate) type Kept = Receiver<Box<str>>;

/// A sender and a receiver of messages for the history.
pub(crate) fn keeper() -> (Keeper, Kept) {
    let (sender, receiver) = sync_channel(WAITING_MAX);
    (Keeper(sender), receiver)
}

impl Keeper {
    /// Sends a message without waiting, as a shard never waits. An error: too many are waiting.
    pub(crate) fn keep(&self, message: &Payload<'_>) -> Result<(), TrySendError<Box<str>>> {
        let text = match message {
            Payload::Json(text) => text.as_ref().into(),
            other => String::from_utf8_lossy(other.data()).into(),
        };
        self.0.try_send(text)
    }
}

/// Keeps the messages and each time broadcasts the whole list on `topic`.
pub(crate) fn keep(kept: Kept, messages_max: usize, topic: &'static str, pubsub: PubSub) {
    let mut history = History::new(messages_max);
    thread::spawn(move || {
        for message in kept {
            history.add(&message);
            let list = Payload::from_json(history.list());
            while pubsub.broadcast(topic, "text", &list).is_err() {
                thread::sleep(CONGESTED);
            }
        }
    });
}

/// The last messages, with a maximum number and size.
struct History {
    /// As JSON strings: encoded once, joined often.
    messages: VecDeque<String>,
    bytes: usize,
    messages_max: usize,
}

impl History {
    fn new(messages_max: usize) -> Self {
        Self { messages: VecDeque::new(), bytes: 0, messages_max }
    }

    fn add(&mut self, message: &str) {
        let message = serde_json::Value::from(message).to_string();
        self.bytes += message.len();
        self.messages.push_back(message);
        while self.messages.len() > self.messages_max.max(1)
            || (self.bytes > BYTES_MAX && self.messages.len() > 1)
        {
            let oldest = self.messages.pop_front().unwrap_or_default();
            self.bytes -= oldest.len();
        }
    }

    /// All messages as a JSON array, the oldest first.
    fn list(&self) -> String {
        let mut list = String::with_capacity(self.bytes + self.messages.len() + 2);
        for message in &self.messages {
            list.push(if list.is_empty() { '[' } else { ',' });
            list.push_str(message);
        }
        list.push(']');
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(history: &History) -> Vec<String> {
        serde_json::from_str(&history.list()).expect("a JSON array of strings")
    }

    #[test]
    fn a_history_lists_its_messages_in_order() {
        let mut history = History::new(10);
        for message in ["one", "{\"two\": 2}", "", "thrée \"3\"\n"] {
            history.add(message);
        }
        assert_eq!(read(&history), ["one", "{\"two\": 2}", "", "thrée \"3\"\n"]);
    }

    #[test]
    fn history_stores_only_the_newest_messages() {
        let mut history = History::new(3);
        for n in 0..10 {
            history.add(&n.to_string());
        }
        assert_eq!(read(&history), ["7", "8", "9"]);
        let mut none = History::new(0);
        none.add("a");
        none.add("b");
        assert_eq!(
            read(&none),
            ["b"],
            "a list that is sent has at least the message it is sent for"
        );
    }

    #[test]
    fn history_is_limited_by_bytes_but_stores_the_newest_message() {
        let mut history = History::new(1000);
        let half = "x".repeat(BYTES_MAX / 2);
        for _ in 0..5 {
            history.add(&half);
        }
        assert_eq!(history.messages.len(), 1, "two halves and their quotes are too much");
        history.add(&"y".repeat(2 * BYTES_MAX));
        assert_eq!(read(&history), ["y".repeat(2 * BYTES_MAX)]);
        history.add("small");
        assert_eq!(read(&history), ["small"]);
        assert_eq!(history.bytes, "\"small\"".len(), "what was dropped is not counted any more");
    }

    #[test]
    fn message_above_the_queue_limit_is_refused() {
        let (keeper, kept) = keeper();
        let message = Payload::from_json("\"m\"");
        let taken = (0..=WAITING_MAX).filter(|_| keeper.keep(&message).is_ok()).count();
        assert_eq!(taken, WAITING_MAX);
        assert!(kept.recv().is_ok());
        assert!(keeper.keep(&message).is_ok());
    }
}
