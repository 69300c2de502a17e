//! One end of a connection between controller and agent.

#![allow(
    clippy::disallowed_types,
    reason = "only threads of the process's own table are here; workers close what they inherit"
)]

use std::io::{self, BufReader, ErrorKind, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::wire::{FRAME_BYTES_MAX, SILENCE, STRANGER_BYTES_MAX, frame, read};

const READ_BYTES: usize = 64 << 10;

/// Why nothing more comes from the other side.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerLost {
    #[error("it closed the connection")]
    Closed,
    /// It sent nothing for [`SILENCE`].
    #[error("it sent nothing for {} s", SILENCE.as_secs())]
    Silent,
    #[error("{0}")]
    Io(io::Error),
    /// It sent an invalid message.
    #[error("it sent {0}")]
    Garbage(io::Error),
}

impl From<io::Error> for PeerLost {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // It may close before it has read everything.
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => Self::Closed,
            ErrorKind::InvalidData => Self::Garbage(error),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Silent,
            _ => Self::Io(error),
        }
    }
}

#[derive(Debug)]
pub(crate) struct PeerReader {
    stream: BufReader<TcpStream>,
    frame_bytes_max: usize,
}

/// Sends to the other side, from several threads.
#[derive(Clone, Debug)]
pub(crate) struct PeerWriter {
    stream: Arc<Mutex<TcpStream>>,
    /// The same socket, to close it while a thread sends.
    closer: Arc<TcpStream>,
}

/// Both directions of a new connection, whose other side is not authenticated yet.
pub(crate) fn open(stream: TcpStream) -> io::Result<(PeerReader, PeerWriter)> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let writer = PeerWriter {
        stream: Arc::new(Mutex::new(stream.try_clone()?)),
        closer: Arc::new(stream.try_clone()?),
    };
    let stream = BufReader::with_capacity(READ_BYTES, stream);
    Ok((PeerReader { stream, frame_bytes_max: STRANGER_BYTES_MAX }, writer))
}

impl PeerReader {
    pub(crate) fn trust(&mut self) {
        self.frame_bytes_max = FRAME_BYTES_MAX;
    }

    /// Waits for the next message. After an error no message will follow.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<T, PeerLost> {
        Ok(read(&mut self.stream, self.frame_bytes_max)?)
    }
}

impl PeerWriter {
    /// Sends a message; waits until the system has taken it. After an error the connection is
    /// closed.
    pub(crate) fn send<T: Serialize>(&self, message: &T) -> Result<(), PeerLost> {
        let frame = frame(message)?;
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        stream.write_all(&frame).map_err(|error| {
            // Half a frame may have been sent: nothing can follow.
            self.close();
            error.into()
        })
    }

    /// Closes the connection in both directions; the receiving thread then gets an error.
    pub(crate) fn close(&self) {
        // It may be closed already.
        let _ = self.closer.shutdown(Shutdown::Both);
    }
}
