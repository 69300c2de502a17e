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

use std::io::{self, Read};
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
}

/// Whether the other side has the same version.
pub fn is_this_version(protocol: u32, version: &str) -> bool {
    (protocol, version) == (PROTOCOL, VERSION)
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

const LENGTH_BYTES: usize = 4;

/// Reads the next message. Fails with `InvalidData` if it is none, or a frame of more than
/// `bytes_max`: then before its bytes come.
pub fn read<T: DeserializeOwned>(from: &mut impl Read, bytes_max: usize) -> io::Result<T> {
    let mut length = [0; LENGTH_BYTES];
    from.read_exact(&mut length)?;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    check_length(length, bytes_max)?;
    let mut frame = Vec::new();
    if from.take(length as u64).read_to_end(&mut frame)? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&frame)
        .map_err(|error| invalid(&format!("that is not a message: {error}")))
}

/// Encodes a message as a frame. Fails if it is longer than [`FRAME_BYTES_MAX`].
pub fn frame<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut frame, message)?;
    let length = frame.len() - LENGTH_BYTES;
    check_length(length, FRAME_BYTES_MAX)?;
    let head = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    frame.iter_mut().zip(head).for_each(|(byte, length)| *byte = length);
    Ok(frame)
}

fn check_length(length: usize, bytes_max: usize) -> io::Result<()> {
    match length <= bytes_max {
        true => Ok(()),
        false => Err(invalid(&format!("of {length} bytes, the maximum is {bytes_max}"))),
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a frame {what}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hello_is_accepted_only_with_the_right_token_and_version() {
        let hello = Hello::new("secret".into());
        assert!(hello.knows("secret") && is_this_version(hello.protocol, &hello.version));
        for other in ["", "secre", "secret ", "Secret", "secretsecret"] {
            assert!(!hello.knows(other), "{other:?}");
        }
        let old = Hello { version: "0.0.9".into(), ..hello.clone() };
        let next = Hello { protocol: PROTOCOL + 1, ..hello };
        for other in [old, next] {
            assert!(!is_this_version(other.protocol, &other.version));
        }
    }

    #[test]
    fn greeting_of_a_later_version_is_parsed() {
        let later =
            br#"{"protocol":9,"version":"7.0.0","busy":null,"cores":1,"capacity":2,"x":[]}"#;
        let frame = [&(later.len() as u32).to_be_bytes(), &later[..]].concat();
        let greeting: Greeting = read(&mut &frame[..], STRANGER_BYTES_MAX).unwrap();
        assert_eq!((greeting.protocol, greeting.version.as_str()), (9, "7.0.0"));
        assert!(!is_this_version(greeting.protocol, &greeting.version));
    }

    #[test]
    fn too_large_length_is_refused_before_its_bytes_arrive() {
        let read = |mut bytes: &[u8]| read::<String>(&mut bytes, STRANGER_BYTES_MAX).unwrap_err();
        // A browser's request to the port.
        assert_eq!(read(b"GET").kind(), io::ErrorKind::UnexpectedEof);
        assert!(read(b"GET ").to_string().contains(&u32::from_be_bytes(*b"GET ").to_string()));
        assert_eq!(read(b"\0\0\0\x09\"half").kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(read(b"\0\0\0\x04null").kind(), io::ErrorKind::InvalidData);
    }

    proptest! {
        #[test]
        fn fleet_messages_survive_a_round_trip(
            messages in prop::collection::vec(".{0,200}", 0..8),
        ) {
            let bytes: Vec<u8> =
                messages.iter().flat_map(|message| frame(message).unwrap()).collect();
            let mut rest = bytes.as_slice();
            for message in messages {
                prop_assert_eq!(read::<String>(&mut rest, STRANGER_BYTES_MAX).unwrap(), message);
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn fleet_garbage_is_refused_within_its_size_limit(
            bytes in prop::collection::vec(any::<u8>(), 0..3000),
            short in any::<bool>(),
        ) {
            // Valid lengths, so that the frames' content is tested as well.
            let length = ((bytes.len() / 2).min(1000) as u32).to_be_bytes();
            let all = [if short { &length[..] } else { &[] }, &bytes].concat();
            let mut rest = all.as_slice();
            while read::<ToAgent>(&mut rest, 1000).is_ok() {}
            prop_assert!(all.len() - rest.len() <= 1000 + LENGTH_BYTES || short);
        }
    }
}
