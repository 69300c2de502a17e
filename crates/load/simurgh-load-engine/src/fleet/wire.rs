//! Messages of controller and agent: frames of JSON after their length in four bytes (big endian).
//!
//! ```text
//! controller                         agent
//! Hello            ───────────────►  other token: closes without an answer
//!                  ◄───────────────  Greeting: welcome, or busy, or another version
//! Ping, 1/s        ───────────────►
//!                  ◄───────────────  Pong: the agent's clock
//! Prepare          ───────────────►
//!                  ◄───────────────  Prepared, or Failed
//! WorkerCommand …          ───────────────►
//!                  ◄───────────────  WorkerEvent …, WorkerLost
//! Over             ───────────────►  ends its workers and closes
//! ```
//!
//! `Hello` and `Greeting` never change, so that versions can name each other; all other messages
//! belong to one version.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use simurgh_load_scenario::Scenario;
use simurgh_reactor::raise_descriptor_limit;
use subtle::ConstantTimeEq as _;

use crate::command::{WorkerCommand, WorkerEvent};
use crate::pool::Part;

/// Version of this protocol.
pub const PROTOCOL: u32 = 1;
/// Version of this program: both sides must have the same.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// A side that sends nothing for this time is lost.
pub const SILENCE: Duration = Duration::from_secs(5);
/// How often the controller pings an agent to which it sends nothing else.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of a frame before authentication.
pub const STRANGER_BYTES_MAX: usize = 4 << 10;
/// Bytes of a frame after it: a scenario with its data files.
pub const FRAME_BYTES_MAX: usize = 256 << 20;

/// The controller's first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// [`VERSION`].
    pub version: String,
    /// The token that the agent was started with.
    pub token: String,
}

impl Hello {
    /// A greeting of this version.
    pub fn new(token: String) -> Self {
        Self { protocol: PROTOCOL, version: VERSION.to_owned(), token }
    }

    /// Whether the token is right; the time this takes depends only on the token's length.
    pub fn knows(&self, token: &str) -> bool {
        self.token.as_bytes().ct_eq(token.as_bytes()).into()
    }

    /// Whether both sides have the same version.
    pub fn is_of_this_version(&self) -> bool {
        (self.protocol, self.version.as_str()) == (PROTOCOL, VERSION)
    }
}

/// The agent's answer to a [`Hello`] with the right token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// [`VERSION`].
    pub version: String,
    /// The run that keeps the agent busy; `None`: it now serves this controller.
    pub busy: Option<String>,
    /// Cores that it may use.
    pub cores: u64,
    /// Connections that one of its workers can hold.
    pub capacity: u64,
}

impl Greeting {
    /// The greeting of this host.
    pub fn of_this_host() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            protocol: PROTOCOL,
            version: VERSION.to_owned(),
            busy: None,
            cores: cores as u64,
            capacity: raise_descriptor_limit().0,
        }
    }

    /// Whether both sides have the same version.
    pub fn is_of_this_version(&self) -> bool {
        (self.protocol, self.version.as_str()) == (PROTOCOL, VERSION)
    }
}

/// A message of the controller. Times are of the agent's session clock, 0 at the connect.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToAgent {
    /// Asks for the time. The agent returns `sent_ns` with it.
    Ping { sent_ns: u64 },
    /// Asks the agent to start its workers.
    Prepare { scenario: Box<Scenario>, part: Part, receive_stamps: bool },
    /// A command for all workers.
    #[serde(rename = "Order")]
    Command(WorkerCommand),
    /// The run is over.
    Over,
}

/// A message of an agent after the greeting.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromAgent {
    /// Answers a ping, with the time of the session clock.
    Pong { sent_ns: u64, clock_ns: u64 },
    /// The workers are ready; connections that each can hold.
    Prepared { capacity: u64 },
    /// The workers could not be started.
    Failed { why: String },
    #[serde(rename = "Word")]
    Worker(WorkerEvent),
    /// The thread of a worker has ended unexpectedly.
    WorkerLost { thread: u16, why: String },
}

/// Why bytes are not a frame of this protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A frame's length, and the length that is allowed.
    #[error("a frame of {0} bytes, where {1} are the most")]
    TooLong(usize, usize),
    /// A frame that is not a message.
    #[error("a frame that is no message: {0}")]
    NotAMessage(String),
}

/// Splits received bytes into frames.
#[derive(Debug)]
pub struct Frames {
    bytes: Vec<u8>,
    at: usize,
    frame_bytes_max: usize,
}

const LENGTH_BYTES: usize = 4;

impl Frames {
    /// For frames of at most this many bytes.
    pub fn new(frame_bytes_max: usize) -> Self {
        Self { bytes: Vec::new(), at: 0, frame_bytes_max }
    }

    /// Allows longer frames from now on.
    pub fn allow(&mut self, frame_bytes_max: usize) {
        self.frame_bytes_max = frame_bytes_max;
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.at > 0 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, without its length; `None`: more bytes are needed. Fails if it is
    /// longer than allowed, as soon as its length has come.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some((length, rest)) = rest.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > self.frame_bytes_max {
            return Err(FrameError::TooLong(length, self.frame_bytes_max));
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        self.at += LENGTH_BYTES + length;
        Ok(Some(frame))
    }

    /// The next message; `None`: more bytes are needed. Fails if it is too long or invalid.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let Some(frame) = self.next_frame()? else { return Ok(None) };
        let message = serde_json::from_slice(frame);
        message.map(Some).map_err(|error| FrameError::NotAMessage(error.to_string()))
    }
}

/// Encodes a message as a frame. Fails if it is longer than [`FRAME_BYTES_MAX`].
pub fn frame<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut frame, message)
        .map_err(|error| FrameError::NotAMessage(error.to_string()))?;
    let length = frame.len() - LENGTH_BYTES;
    if length > FRAME_BYTES_MAX {
        return Err(FrameError::TooLong(length, FRAME_BYTES_MAX));
    }
    let head = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    frame.iter_mut().zip(head).for_each(|(byte, length)| *byte = length);
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_honest_hello_is_known_and_others_are_not() {
        let hello = Hello::new("secret".into());
        assert!(hello.knows("secret") && hello.is_of_this_version());
        for other in ["", "secre", "secret ", "Secret", "secretsecret"] {
            assert!(!hello.knows(other), "{other:?}");
        }
        let old = Hello { version: "0.0.9".into(), ..hello.clone() };
        let next = Hello { protocol: PROTOCOL + 1, ..hello };
        assert!(!old.is_of_this_version() && !next.is_of_this_version());
    }

    #[test]
    fn a_greeting_of_a_later_version_is_still_understood() {
        let later =
            br#"{"protocol":9,"version":"7.0.0","busy":null,"cores":1,"capacity":2,"x":[]}"#;
        let mut frames = Frames::new(STRANGER_BYTES_MAX);
        frames.push(&(later.len() as u32).to_be_bytes());
        frames.push(later);
        let greeting: Greeting = frames.next_message().unwrap().unwrap();
        assert_eq!((greeting.protocol, greeting.version.as_str()), (9, "7.0.0"));
        assert!(!greeting.is_of_this_version());
    }

    #[test]
    fn a_length_that_is_too_long_is_refused_before_its_bytes_come() {
        // A browser's request to the port.
        let mut frames = Frames::new(STRANGER_BYTES_MAX);
        frames.push(b"GET");
        assert_eq!(frames.next_frame(), Ok(None));
        frames.push(b" ");
        let length = u32::from_be_bytes(*b"GET ") as usize;
        assert_eq!(frames.next_frame(), Err(FrameError::TooLong(length, STRANGER_BYTES_MAX)));
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in_however_they_are_cut(
            messages in prop::collection::vec(".{0,200}", 0..8),
            cuts in prop::collection::vec(1_usize..64, 1..64),
        ) {
            let bytes: Vec<u8> =
                messages.iter().flat_map(|message| frame(message).unwrap()).collect();
            let mut frames = Frames::new(STRANGER_BYTES_MAX);
            let (mut rest, mut out) = (bytes.as_slice(), Vec::<String>::new());
            for cut in cuts.into_iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at(cut.min(rest.len()));
                frames.push(now);
                rest = later;
                while let Some(message) = frames.next_message().unwrap() {
                    out.push(message);
                }
            }
            prop_assert_eq!(out, messages);
            prop_assert_eq!(frames.next_frame(), Ok(None));
        }

        #[test]
        fn garbage_is_an_error_or_waits_within_its_bound(
            bytes in prop::collection::vec(any::<u8>(), 0..3000),
            short in any::<bool>(),
        ) {
            let mut frames = Frames::new(1000);
            if short {
                // Valid lengths, so that the frames' content is tested as well.
                frames.push(&((bytes.len() / 2).min(1000) as u32).to_be_bytes());
            }
            frames.push(&bytes);
            loop {
                match frames.next_message::<ToAgent>() {
                    Ok(Some(_)) => {}
                    Ok(None) => {
                        prop_assert!(frames.bytes.len() - frames.at < LENGTH_BYTES + 1000);
                        break;
                    }
                    Err(_) => break,
                }
            }
        }
    }
}
