//! Support for the black-box tests: real server binaries as child processes, and a client that
//! shares no code with the server under test.
//!
//! The tests hold the binaries to PROTOCOL §14 row by row; nothing in here links the server's
//! crates. [`Server`] starts a binary and ends it by its pid when dropped. [`Client`] is a blocking
//! Channels client of both serializers over tungstenite. [`Raw`] speaks bytes, for everything a
//! well-behaved client cannot say. [`Load`] is a run of the load generator. Every wait ends after
//! [`WAIT`] and then says what was awaited and what came instead.

// A surprise ends a test where it is met; there is no caller that could handle an error instead.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "these sockets never meet a shard's table")]

mod client;
mod load;
mod message;
mod poller;
mod process;
mod raw;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use client::{Client, Incoming};
pub use load::{Load, LoadBuilder, Loaded, count};
pub use message::{BinaryFields, Msg, Replied, binary_push, is_compact};
pub use poller::{Polled, Poller, post};
pub use process::{Server, ServerBuilder};
pub use raw::{Frame, Head, Raw, Response, frame, opcode};

/// The longest any single answer may take.
pub const WAIT: Duration = Duration::from_secs(30);

/// How long, in milliseconds, a connection is watched before it counts as silent. Short, because
/// silence is proven by a heartbeat behind the message in question; the time only covers what
/// crosses shards.
pub const QUIET_MS: u64 = 150;

/// The two serializers of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vsn {
    /// JSON objects with topic, event, payload and ref.
    V1,
    /// JSON arrays of five, and binary frames.
    V2,
}

impl Vsn {
    /// The value of the `vsn` query parameter.
    pub fn param(self) -> &'static str {
        match self {
            Vsn::V1 => "1.0.0",
            Vsn::V2 => "2.0.0",
        }
    }

    /// Path and query of the main socket in this serializer.
    pub fn path(self) -> String {
        format!("/socket/websocket?vsn={}", self.param())
    }
}

impl fmt::Display for Vsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Runs a row of the checklist in V1 and in V2; a failure names the serializer.
pub fn both(mut row: impl FnMut(Vsn)) {
    for vsn in [Vsn::V1, Vsn::V2] {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| row(vsn))) {
            eprintln!("failed with serializer {vsn}");
            resume_unwind(panic);
        }
    }
}

/// `prefix` with a number behind it that no other call in this process gets, so that tests which
/// share a server never share a topic.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{prefix}{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Asks `done` every 20 ms until it says yes.
///
/// # Panics
/// When [`WAIT`] is over, with `awaited`.
#[track_caller]
pub fn eventually(awaited: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < WAIT, "waited {WAIT:?} in vain for: {awaited}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// At most 300 bytes of `text`, so that a failure with a megabyte in it stays readable.
pub(crate) fn shortened(text: &str) -> String {
    if text.len() <= 300 {
        return text.to_owned();
    }
    let end = (0..=300).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    format!("{}… ({} bytes)", &text[..end], text.len())
}
