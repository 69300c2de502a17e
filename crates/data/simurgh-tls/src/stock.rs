//! Connections that stay with rustls, under the calls of [`Record`](crate::Record).

use std::fmt;
use std::io::{Read as _, Write as _};

use rustls::{Connection, Error};

use crate::record::{End, Opened, SealError};

/// Bytes of a record's header, and of the longest body that rustls takes (RFC 5246 §6.2.3).
const HEADER: usize = 5;
const BODY_MAX: usize = (1 << 14) + 2048;

/// A whole rustls connection, some kilobytes: of TLS 1.2, or of any version on request.
pub struct Stock {
    connection: Connection,
    has_closed: bool,
    has_ended: bool,
}

impl fmt::Debug for Stock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stock").finish_non_exhaustive()
    }
}

impl Stock {
    pub(crate) fn new(mut connection: Connection) -> Self {
        // All that is written leaves in the same call.
        connection.set_buffer_limit(None);
        Self { connection, has_closed: false, has_ended: false }
    }

    /// Appends all `pieces` as records to `out`.
    ///
    /// # Errors
    /// This side has closed.
    pub fn seal<'p>(
        &mut self,
        pieces: impl IntoIterator<Item = &'p [u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        if self.has_closed {
            return Err(SealError::Closed);
        }
        for piece in pieces {
            self.connection.writer().write_all(piece).map_err(|_| SealError::Cipher)?;
        }
        send(&mut self.connection, out);
        Ok(())
    }

    /// Opens all complete records at the front of `input`, and appends their data to `plain`:
    /// `Opened::plain` is its place there. The rest of `input` is the caller's to keep, as with
    /// [`Record::open`](crate::Record::open). rustls does not name its alert, so an
    /// [`End::Failed`] has the one that fits its error best.
    pub fn open(&mut self, input: &[u8], plain: &mut Vec<u8>, answer: &mut Vec<u8>) -> Opened {
        let start = plain.len();
        let (mut used, mut end) = (0, None);
        while !self.has_ended {
            let Some(record) = complete(input.get(used..).unwrap_or_default()) else { break };
            used += record.len();
            let fed = feed(&mut self.connection, record);
            // An error only says that there is no more.
            let _ = self.connection.reader().read_to_end(plain);
            end = match fed {
                Ok(false) => None,
                Ok(true) => Some(End::Closed),
                Err(Error::AlertReceived(alert)) => Some(End::Alert(alert.into())),
                Err(error) => Some(End::Failed(alert_of(&error))),
            };
            self.has_ended = end.is_some();
            self.has_closed |= matches!(end, Some(End::Alert(_) | End::Failed(_)));
        }
        send(&mut self.connection, answer);
        if self.has_ended {
            used = input.len();
        }
        Opened { plain: start..plain.len(), used, end }
    }

    /// Appends `close_notify` to `out`, once.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        if !self.has_closed {
            self.has_closed = true;
            self.connection.send_close_notify();
            send(&mut self.connection, out);
        }
    }
}

/// Whether `input` begins as TLS does: with a handshake record, or with an alert.
pub(crate) fn is_tls(input: &[u8]) -> bool {
    matches!(input, [] | [21 | 22] | [21 | 22, 3, ..])
}

/// The record at the front of `input`, if it is complete; of one that is too long, the header,
/// which rustls refuses.
pub(crate) fn complete(input: &[u8]) -> Option<&[u8]> {
    let [_, _, _, high, low] = *input.first_chunk()?;
    let body = usize::from(u16::from_be_bytes([high, low]));
    input.get(..HEADER + if body > BODY_MAX { 0 } else { body })
}

/// Gives rustls one record; true if the peer has closed.
pub(crate) fn feed(connection: &mut Connection, mut record: &[u8]) -> Result<bool, Error> {
    loop {
        let read = connection.read_tls(&mut record);
        let read = read.map_err(|error| Error::General(error.to_string()))?;
        let state = connection.process_new_packets()?;
        if read == 0 || record.is_empty() || state.peer_has_closed() {
            return Ok(state.peer_has_closed());
        }
    }
}

/// Moves all that rustls has to send to `out`.
pub(crate) fn send(connection: &mut Connection, out: &mut Vec<u8>) {
    while connection.wants_write() && connection.write_tls(out).is_ok_and(|bytes| bytes > 0) {}
}

/// RFC 8446 §6.2.
fn alert_of(error: &Error) -> u8 {
    match error {
        Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. }
        | Error::PeerMisbehaved(_) => 10,
        Error::DecryptError => 20,
        Error::PeerSentOversizedRecord => 22,
        Error::InvalidMessage(_) => 50,
        _ => 80,
    }
}
