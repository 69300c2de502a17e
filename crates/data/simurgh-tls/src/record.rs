//! The record layer of an established TLS 1.3 connection (RFC 8446 §5), of either side.

mod cipher;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;
mod keys;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use ring::error::Unspecified;

pub use cipher::Suite;
use cipher::{Cipher, TAG_BYTES};
pub(crate) use keys::Direction;
pub use keys::{AES_128_GCM_BYTES, AES_256_GCM_BYTES, CHACHA20_POLY1305_BYTES, Keys};
use keys::{
    BODY, CLIENT, EMPTY, FLAGS, OPEN_MAX, OPENED_ALL, PARTIAL, RECORDS_MAX, SEALED_ALL, TICKET,
    TO_OPEN, TO_SEND,
};

/// Bytes of plaintext in one record at most (RFC 8446 §5.1).
pub const PLAIN_BYTES_MAX: usize = 1 << 14;
/// Bytes of one record at most, with its header (RFC 8446 §5.2): the most that a caller keeps
/// between two calls of [`Record::open`].
pub const INPUT_BYTES_MAX: usize = HEADER + BODY_MAX;

/// Records without data in a row: as many as rustls and BoringSSL take.
const EMPTY_MAX: u8 = 32;

const HEADER: usize = 5;
const BODY_MAX: usize = PLAIN_BYTES_MAX + 256;

// Content types and handshake messages (RFC 8446 §5.1, §4).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

// Alerts (RFC 8446 §6).
const CLOSE_NOTIFY: u8 = 0;
const UNEXPECTED_MESSAGE: Alert = Alert(10);
const BAD_RECORD_MAC: Alert = Alert(20);
const RECORD_OVERFLOW: Alert = Alert(22);
const ILLEGAL_PARAMETER: Alert = Alert(47);
const DECODE_ERROR: Alert = Alert(50);
const INTERNAL_ERROR: Alert = Alert(80);
const USER_CANCELED: u8 = 90;
const WARNING: u8 = 1;
const FATAL: u8 = 2;

/// Why nothing was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// A programming error of the caller, which has to split.
    #[error("the data for one TLS record is longer than {PLAIN_BYTES_MAX} bytes")]
    TooLong,
    /// `close_notify` or an alert has ended this direction.
    #[error("the TLS connection is closed for sending")]
    Closed,
    /// ring refused a key or a length; no input is known that leads here.
    #[error("sealing the TLS record failed")]
    Cipher,
}

impl From<Unspecified> for SealError {
    fn from(_: Unspecified) -> Self {
        Self::Cipher
    }
}

/// How the peer's direction, or the connection, ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The peer sent `close_notify`. What we send still arrives (RFC 8446 §6.1).
    Closed,
    /// The peer ended the connection with this alert.
    Alert(u8),
    /// The peer broke the protocol. The alert is in the answer, unless our side had closed.
    Failed(u8),
}

/// The result of [`Record::open`].
#[derive(Debug, PartialEq, Eq)]
pub struct Opened {
    /// Where the plaintext of all records is in the input.
    pub plain: Range<usize>,
    /// Bytes of the input that are done with. The caller keeps the rest, an incomplete record of
    /// less than [`INPUT_BYTES_MAX`] bytes, and puts it in front of the next bytes.
    pub used: usize,
    /// Data before the end is in `plain`.
    pub end: Option<End>,
}

/// An alert that ends the connection.
#[derive(Clone, Copy)]
struct Alert(u8);

impl From<Unspecified> for Alert {
    fn from(_: Unspecified) -> Self {
        INTERNAL_ERROR
    }
}

impl From<SealError> for Alert {
    fn from(_: SealError) -> Self {
        INTERNAL_ERROR
    }
}

/// A view of the [`Keys`] of any suite, which seals and opens records.
pub struct Record<'a>(&'a mut [u8]);

impl fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("suite", &self.suite()).finish_non_exhaustive()
    }
}

impl Record<'_> {
    /// The cipher suite of this connection.
    #[must_use]
    pub fn suite(&self) -> Suite {
        Suite::from_bits(self.0[FLAGS])
    }

    /// Appends one record with all `pieces` to `out`. Once in 2^23 records, a key update comes
    /// before it.
    ///
    /// # Errors
    /// The pieces together are longer than [`PLAIN_BYTES_MAX`], or this side has closed.
    pub fn seal<'p>(
        &mut self,
        pieces: impl IntoIterator<Item = &'p [u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        if self.has(SEALED_ALL) {
            return Err(SealError::Closed);
        }
        if self.number(TO_SEND) >= RECORDS_MAX {
            self.update(out)?;
        }
        self.append(APPLICATION_DATA, pieces, out)
    }

    /// Appends `close_notify` to `out` (RFC 8446 §6.1), once.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        self.alert(WARNING, CLOSE_NOTIFY, out);
    }

    /// Opens all complete records at the front of `input` in place. Appends to `answer` what the
    /// peer has to get: key updates that it requested, or our alert. After an end, all further
    /// input is taken and ignored.
    pub fn open(&mut self, input: &mut [u8], answer: &mut Vec<u8>) -> Opened {
        let mut opened = Opened { plain: 0..0, used: 0, end: None };
        let mut cipher = None;
        while !self.has(OPENED_ALL) {
            match self.open_one(&mut cipher, input, &mut opened, answer) {
                Ok(true) => {}
                Ok(false) => return opened,
                Err(Alert(number)) => {
                    self.alert(FATAL, number, answer);
                    self.0[FLAGS] |= OPENED_ALL;
                    opened.end = Some(End::Failed(number));
                }
            }
        }
        opened.used = input.len();
        opened
    }

    /// Opens one record; false if none is complete.
    fn open_one(
        &mut self,
        cipher: &mut Option<Cipher>,
        input: &mut [u8],
        opened: &mut Opened,
        answer: &mut Vec<u8>,
    ) -> Result<bool, Alert> {
        let Some((header, body)) = complete(input.get(opened.used..).unwrap_or_default())? else {
            return Ok(false);
        };
        let start = opened.used + HEADER;
        opened.used = start + body;
        let number = self.number(TO_OPEN);
        // A number must not wrap (RFC 8446 §5.3).
        if number == OPEN_MAX {
            return Err(INTERNAL_ERROR);
        }
        if opened.plain.is_empty() {
            opened.plain = start..start;
        }
        let to = opened.plain.end;
        let in_out = input.get_mut(to..opened.used).ok_or(INTERNAL_ERROR)?;
        let key = match cipher {
            Some(key) => key,
            None => cipher.insert(self.suite().opening(&self.0[self.secret_to_open()])?),
        };
        // Authenticates, and moves the plaintext behind that of the last record.
        let text = key.open(number, header, in_out, start - to).map_err(|_| BAD_RECORD_MAC)?;
        self.set_number(TO_OPEN, number + 1);
        if text.len() > PLAIN_BYTES_MAX + 1 {
            return Err(RECORD_OVERFLOW);
        }
        // The last byte that is not padding is the type (RFC 8446 §5.4).
        let end = text.iter().rposition(|byte| *byte != 0).ok_or(UNEXPECTED_MESSAGE)?;
        let (content, kind) = (&text[..end], text[end]);
        if self.number(PARTIAL) != 0 && kind != HANDSHAKE {
            return Err(UNEXPECTED_MESSAGE);
        }
        match kind {
            APPLICATION_DATA => {
                opened.plain.end += end;
                if content.is_empty() { self.count_empty()? } else { self.0[EMPTY] = 0 }
            }
            ALERT => opened.end = self.alerted(content)?,
            HANDSHAKE => {
                self.count_empty()?;
                if let Some(is_requested) = self.messages(content)? {
                    self.next_to_open()?;
                    *cipher = None;
                    if is_requested && !self.has(SEALED_ALL) {
                        self.update(answer)?;
                    }
                }
            }
            _ => return Err(UNEXPECTED_MESSAGE),
        }
        Ok(true)
    }

    /// One record without data more (`user_canceled` is one, too).
    fn count_empty(&mut self) -> Result<(), Alert> {
        self.0[EMPTY] = self.0[EMPTY].saturating_add(1);
        if self.0[EMPTY] > EMPTY_MAX { Err(UNEXPECTED_MESSAGE) } else { Ok(()) }
    }

    /// The peer's alert (RFC 8446 §6). All but two end the connection, whatever their level.
    fn alerted(&mut self, content: &[u8]) -> Result<Option<End>, Alert> {
        match *content {
            [_, CLOSE_NOTIFY] => {
                self.0[FLAGS] |= OPENED_ALL;
                Ok(Some(End::Closed))
            }
            [WARNING, USER_CANCELED] => self.count_empty().map(|()| None),
            [_, number] => {
                self.0[FLAGS] |= OPENED_ALL | SEALED_ALL;
                Ok(Some(End::Alert(number)))
            }
            [] => Err(UNEXPECTED_MESSAGE),
            _ => Err(DECODE_ERROR),
        }
    }

    /// Reads the handshake messages of one record (RFC 8446 §4.6). A key update must end its record
    /// (§5.1): then this is whether it requests ours. A client skips tickets.
    fn messages(&mut self, mut bytes: &[u8]) -> Result<Option<bool>, Alert> {
        if bytes.is_empty() {
            return Err(UNEXPECTED_MESSAGE);
        }
        while let Some((&byte, rest)) = bytes.split_first() {
            if !self.has(BODY) {
                self.header_byte(byte)?;
                bytes = rest;
            } else if self.has(TICKET) {
                let missing = self.number(PARTIAL);
                let skipped = bytes.len().min(usize::try_from(missing).unwrap_or(usize::MAX));
                self.set_number(PARTIAL, missing - skipped as u64);
                if skipped as u64 == missing {
                    self.0[FLAGS] &= !BODY;
                }
                bytes = &bytes[skipped..];
            } else {
                self.set_number(PARTIAL, 0);
                self.0[FLAGS] &= !BODY;
                return match bytes {
                    [request @ (0 | 1)] => Ok(Some(*request == 1)),
                    [_] => Err(ILLEGAL_PARAMETER),
                    _ => Err(UNEXPECTED_MESSAGE),
                };
            }
        }
        Ok(None)
    }

    /// The next byte of the header of a handshake message: type, and a length of three bytes.
    fn header_byte(&mut self, byte: u8) -> Result<(), Alert> {
        let [came, middle] = [self.0[PARTIAL.start], self.0[PARTIAL.start + 1]];
        match (came, byte) {
            (0, KEY_UPDATE) => self.0[FLAGS] &= !TICKET,
            (0, NEW_SESSION_TICKET) if self.has(CLIENT) => self.0[FLAGS] |= TICKET,
            (0, _) => return Err(UNEXPECTED_MESSAGE),
            // No message may have 64 KiB.
            (1, 0) => {}
            (1, _) => return Err(DECODE_ERROR),
            (2, _) => self.0[PARTIAL.start + 1] = byte,
            _ => {
                let length = u16::from_be_bytes([middle, byte]);
                if length == 0 || (length != 1 && !self.has(TICKET)) {
                    return Err(DECODE_ERROR);
                }
                self.set_number(PARTIAL, length.into());
                self.0[FLAGS] |= BODY;
                return Ok(());
            }
        }
        self.0[PARTIAL.start] = came + 1;
        Ok(())
    }

    /// Appends a record with an alert that is the last of this side.
    fn alert(&mut self, level: u8, number: u8, out: &mut Vec<u8>) {
        if !self.has(SEALED_ALL) {
            // Without its alert the connection ends all the same.
            let _ = self.append(ALERT, [&[level, number][..]], out);
            self.0[FLAGS] |= SEALED_ALL;
        }
    }

    /// Appends a key update that requests none, and goes to the next key (RFC 8446 §4.6.3, §7.2).
    pub(crate) fn update(&mut self, out: &mut Vec<u8>) -> Result<(), SealError> {
        let next = self.suite().next_secret(&self.0[self.secret_to_send()])?;
        self.append(HANDSHAKE, [&[KEY_UPDATE, 0, 0, 1, 0][..]], out)?;
        let secret = &next[..self.suite().secret_bytes()];
        Ok(self.set_sending(Direction { secret, number: 0 })?)
    }

    fn append<'p>(
        &mut self,
        kind: u8,
        pieces: impl IntoIterator<Item = &'p [u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        let key = Cipher::new(self.suite(), &self.0[self.key_to_send()])?;
        let start = out.len();
        out.extend_from_slice(&[0; HEADER]);
        pieces.into_iter().for_each(|piece| out.extend_from_slice(piece));
        let text = out.len() - start - HEADER;
        if text > PLAIN_BYTES_MAX {
            out.truncate(start);
            return Err(SealError::TooLong);
        }
        out.push(kind);
        let [high, low] = ((text + 1 + TAG_BYTES) as u16).to_be_bytes();
        let header = [APPLICATION_DATA, 3, 3, high, low];
        out[start..start + HEADER].copy_from_slice(&header);
        // Moves first: no number is used twice, whatever happens below.
        let number = self.number(TO_SEND);
        self.set_number(TO_SEND, number + 1);
        let sealed = key.seal(number, header, &mut out[start + HEADER..]);
        match sealed {
            Ok(tag) => out.extend_from_slice(tag.as_ref()),
            Err(Unspecified) => out.truncate(start),
        }
        Ok(sealed.map(drop)?)
    }
}

/// Header, and length of the body, of the record at the front of `input`, if it is complete.
fn complete(input: &[u8]) -> Result<Option<([u8; HEADER], usize)>, Alert> {
    if input.first().is_some_and(|kind| *kind != APPLICATION_DATA) {
        return Err(UNEXPECTED_MESSAGE);
    }
    // The version in the header is ignored (RFC 8446 §5.1), but authenticated.
    let Some(header @ [_, _, _, high, low]) = input.first_chunk() else { return Ok(None) };
    let body = usize::from(u16::from_be_bytes([*high, *low]));
    if body > BODY_MAX {
        return Err(RECORD_OVERFLOW);
    }
    Ok((input.len() >= HEADER + body).then_some((*header, body)))
}
