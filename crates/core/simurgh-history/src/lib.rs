//! The last messages of a topic, without sockets, clocks, randomness or any knowledge of how nodes
//! communicate: a client that was away is sent exactly what it missed, in order, once, or the
//! reason why that is impossible.
//!
//! ```text
//!   store(value, id)                       since(position)
//!        │                                      │
//!        ▼                                      ▼
//!  ┌───────────────────────── KeptTopic ──────────────────────────┐
//!  │ Ids: stored before?                                          │
//!  │                                                              │
//!  │ Ring   …forgotten… ) place, place, place, place … ( to come  │
//!  │                   floor ──► why                  head        │
//!  └───────┬───────────────────────────┬──────────────────────────┘
//!          ▼                           ▼
//!   Position, as the ref        Replay: everything after the position,
//!   of the message              or a gap, its reason, and what is left
//! ```
//!
//! Values are dropped from the front: by count, bytes and age ([`Ring::enforce`]), when memory is
//! short ([`Ring::evict_half`]), or on request ([`Ring::purge`]). So one place, the floor, decides
//! for any position whether everything after it is there.
//!
//! # Which node needs what
//! 1. *A node on its own* gives the numbers: [`KeptTopic`].
//! 2. *Nodes with a broker* get numbers from it: a [`Ring`] of each topic they listen to.
//! 3. *Both* read the resume data of a joining client ([`Resume`]) and answer from the ring
//!    ([`Ring::since`], [`Ring::portion`]).
//! 4. *Over a planned restart* [`Saver`] writes topics down and [`saved`] reads them.
//!
//! ```
//! use simurgh_history::{Epoch, GapReason, KeptTopic, Limits, Position, ReplayLimits, Since,
//! Stored};
//!
//! let limits = Limits { count: 2, bytes: 1_000, age_ms: 300_000 };
//! let mut topic = KeptTopic::new(Epoch::from_seed(7), 0x5eed);
//! let mut seen = Vec::new();
//! for (text, at_ms) in [("one", 1_000), ("two", 2_000), ("three", 3_000)] {
//!     let Stored::New(position, _) = topic.store(text, text.len(), None, at_ms, &limits) else {
//!         unreachable!("it has no id");
//!     };
//!     seen.push(position.to_string());
//! }
//! assert_eq!(seen, ["a00007.1", "a00007.2", "a00007.3"]);
//!
//! // A client that has received the first gets the others.
//! let ring = topic.ring();
//! let after = |text| Since::After(Position::parse(text).unwrap());
//! let all = ReplayLimits { count: 1_000, bytes: 1 << 20 };
//! let replay = ring.since(after("a00007.1"), &all);
//! assert_eq!(replay.gap, None);
//! let missed = ring.entries(replay.entries).map(|entry| *entry.value);
//! assert_eq!(missed.collect::<Vec<_>>(), ["two", "three"]);
//!
//! // Another has missed the first, too: there is no longer room for it.
//! assert_eq!(ring.since(after("a00007.0"), &all).gap, Some(GapReason::Overwritten));
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod engine;
mod ids;
mod position;
mod reason;
mod resume;
mod ring;
mod save;
mod topic;

pub use engine::{EngineEvent, NotKept, Retention, StoredAt};
pub use ids::Ids;
pub use position::{Epoch, Place, Position};
pub use reason::GapReason;
pub use resume::{
    AT, BAD_RESUME, BadResume, GAP, KEY, NEXT, RESUMED, Resume, Since, encode_gap, encode_resumed,
    id_hash,
};
pub use ring::{Dropped, Entry, Limits, Marks, Portion, Replay, ReplayLimits, Ring};
pub use save::{SaveError, Saver, saved};
pub use topic::{KeptTopic, Stored};
