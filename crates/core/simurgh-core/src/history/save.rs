//! Saved histories for a planned restart, for any number of shards.

use simurgh_channel::{Kept, KeptContent, home_shard};
use simurgh_history::{KeptTopic, SaveError, Saver, saved};

use super::HandedOverNumbers;
use super::kept_topics::KeptTopics;
use simurgh_data::prelude::*;

/// The histories that a shard has kept.
#[derive(Debug, Default)]
pub struct SavedHistory {
    pub(super) topics: Vec<(Box<str>, KeptTopic<Kept>)>,
}

/// Events and payloads are separated by the length before them.
const JSON: u8 = 0;
const BINARY: u8 = 1;

impl SavedHistory {
    /// How many topics there are.
    pub fn topics(&self) -> usize {
        self.topics.len()
    }

    /// Encodes everything that shards have kept, part by part, so that it is not in memory twice:
    /// each topic is dropped when it is encoded. Returns how many topics there were.
    ///
    /// # Errors
    /// The first error of `write`, which gets the parts in order.
    pub fn encode<E>(
        all: impl IntoIterator<Item = Self>,
        mut write: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let (mut saver, mut out, mut topics) = (Saver::new(), Vec::new(), 0);
        for (name, topic) in all.into_iter().flat_map(|it| it.topics) {
            saver.topic(&mut out, &name, &topic, put);
            drop(topic);
            write(&out)?;
            out.clear();
            topics += 1;
        }
        saver.finish(&mut out);
        write(&out)?;
        Ok(topics)
    }

    /// Decodes it, by shards; `seed` is secret.
    ///
    /// # Errors
    /// The bytes are not what [`encode`](Self::encode) has made.
    pub fn decode(bytes: &[u8], shards: usize, seed: u64) -> Result<Vec<Self>, SaveError> {
        let mut all: Vec<Self> = (0..shards).map(|_| Self::default()).collect();
        for (name, topic) in saved(bytes, seed, take)? {
            if let Some(shard) = all.get_mut(home_shard(name, shards)) {
                shard.topics.push((name.into(), topic));
            }
        }
        Ok(all)
    }
}

fn put(kept: &Kept, out: &mut Vec<u8>) {
    let (event, payload) = (kept.content.event(), kept.content.payload());
    out.push(if payload.json().is_some() { JSON } else { BINARY });
    out.extend_from_slice(&kept.sender.to_le_bytes());
    out.extend_from_slice(&(event.len() as u32).to_le_bytes());
    out.extend_from_slice(event.as_bytes());
    out.extend_from_slice(payload.data());
}

fn take(bytes: &[u8]) -> Option<Kept> {
    let (kind, rest) = bytes.split_first()?;
    let (sender, rest) = rest.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (event, payload) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    let event: Arc<str> = str::from_utf8(event).ok()?.into();
    let content = match *kind {
        JSON => KeptContent::Json(event, str::from_utf8(payload).ok()?.into()),
        BINARY => KeptContent::Binary(event, payload.into()),
        _ => return None,
    };
    Some(Kept { sender: u64::from_le_bytes(*sender), content })
}

impl KeptTopics {
    pub(super) fn take(&mut self) -> SavedHistory {
        SavedHistory { topics: self.drain() }
    }

    pub(super) fn numbers(&self) -> HandedOverNumbers {
        let (epoch, forgotten) = self.forgotten.through();
        let (last, forgotten) = (self.clock.seq, forgotten.max(self.evicted_through).seq);
        HandedOverNumbers { epoch: epoch.get(), last, forgotten }
    }

    pub(super) fn restore(&mut self, saved: SavedHistory, now_ms: u64) {
        for (name, topic) in saved.topics {
            if self.rule(&name).is_some() {
                self.insert(&name, topic, now_ms);
            }
        }
    }
}
