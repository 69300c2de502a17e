//! The bytes that a connection keeps, and their layout:
//!
//! ```text
//! 0      flags: suite, side, what has ended, what of a split message came
//! 1      records without data in a row
//! 2..4   of a split message: bytes of its header that came and its third byte, or bytes missing
//! 4..8   number of the next record to send
//! 8..14  number of the next record to open
//! 14..   secret for sending, secret for receiving, key for sending, IV for sending
//! ```
//!
//! The key for sending is stored, because a broadcast seals for thousands of connections in a row.
//! The one for opening is derived from its secret on each call.

use std::fmt;
use std::ops::Range;

use ring::error::Unspecified;
use zeroize::Zeroize;

use super::Record;
use super::cipher::{IV_BYTES, Suite};

/// Bytes of [`Keys`] of [`Suite::Aes128Gcm`].
pub const AES_128_GCM_BYTES: usize = keys_bytes(Suite::Aes128Gcm);
/// Bytes of [`Keys`] of [`Suite::ChaCha20Poly1305`].
pub const CHACHA20_POLY1305_BYTES: usize = keys_bytes(Suite::ChaCha20Poly1305);
/// Bytes of [`Keys`] of [`Suite::Aes256Gcm`].
pub const AES_256_GCM_BYTES: usize = keys_bytes(Suite::Aes256Gcm);

/// Records sealed with one key. AES-GCM allows 2^24.5 (RFC 8446 §5.5).
pub(super) const RECORDS_MAX: u64 = 1 << 23;
/// Higher numbers have no place.
pub(super) const OPEN_MAX: u64 = (1 << 48) - 1;

// Places in the bytes of `Keys`.
pub(super) const FLAGS: usize = 0;
pub(super) const EMPTY: usize = 1;
pub(super) const PARTIAL: Range<usize> = 2..4;
pub(super) const TO_SEND: Range<usize> = 4..8;
pub(super) const TO_OPEN: Range<usize> = 8..14;
/// Bytes before the secrets.
const STATE: usize = 14;

// Flags; the two lowest bits are the suite.
pub(super) const CLIENT: u8 = 1 << 2;
/// `close_notify` or a fatal alert was sent or received: nothing more is sealed.
pub(super) const SEALED_ALL: u8 = 1 << 3;
/// The peer closed, or an alert ended the connection: nothing more is opened.
pub(super) const OPENED_ALL: u8 = 1 << 4;
/// The split message is a ticket, not a key update.
pub(super) const TICKET: u8 = 1 << 5;
/// The header of the split message is complete.
pub(super) const BODY: u8 = 1 << 6;

const fn keys_bytes(suite: Suite) -> usize {
    STATE + 2 * suite.secret_bytes() + suite.key_bytes() + IV_BYTES
}

/// All that an established TLS 1.3 connection keeps between two calls. The bytes are wiped on drop.
pub struct Keys<const N: usize>([u8; N]);

/// A secret of one direction, and the number of its next record.
#[derive(Clone, Copy)]
pub(crate) struct Direction<'a> {
    pub(crate) secret: &'a [u8],
    pub(crate) number: u64,
}

impl<const N: usize> Keys<N> {
    /// # Errors
    /// `N` or a secret does not belong to `suite`, or a number is too high.
    pub(crate) fn new(
        suite: Suite,
        is_client: bool,
        to_send: Direction<'_>,
        to_open: Direction<'_>,
    ) -> Result<Self, Unspecified> {
        let secrets = [to_send.secret, to_open.secret];
        let is_fit = N == keys_bytes(suite)
            && secrets.iter().all(|secret| secret.len() == suite.secret_bytes())
            && to_send.number <= RECORDS_MAX
            && to_open.number <= OPEN_MAX;
        if !is_fit {
            return Err(Unspecified);
        }
        let mut keys = Self([0; N]);
        keys.0[FLAGS] = suite as u8 | if is_client { CLIENT } else { 0 };
        let mut record = keys.record();
        record.set_number(TO_OPEN, to_open.number);
        let place = record.secret_to_open();
        record.0[place].copy_from_slice(to_open.secret);
        record.set_sending(to_send)?;
        Ok(keys)
    }

    /// The record layer on these keys.
    pub fn record(&mut self) -> Record<'_> {
        Record(&mut self.0)
    }
}

impl<const N: usize> Drop for Keys<N> {
    fn drop(&mut self) {
        self.record().wipe();
    }
}

impl<const N: usize> fmt::Debug for Keys<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

impl Record<'_> {
    /// Not public: wiped keys would go on sealing.
    pub(super) fn wipe(&mut self) {
        self.0.zeroize();
    }

    pub(super) fn next_to_open(&mut self) -> Result<(), Unspecified> {
        let place = self.secret_to_open();
        let next = self.suite().next_secret(&self.0[place.clone()])?;
        let secret = &next[..place.len()];
        self.0[place].copy_from_slice(secret);
        self.set_number(TO_OPEN, 0);
        Ok(())
    }

    /// Sets the secret for sending and what is derived from it.
    pub(super) fn set_sending(&mut self, direction: Direction<'_>) -> Result<(), Unspecified> {
        let key = self.suite().key_and_iv(direction.secret)?;
        let place = self.key_to_send();
        let key = &key[..place.len()];
        self.0[place].copy_from_slice(key);
        let place = self.secret_to_send();
        self.0[place].copy_from_slice(direction.secret);
        self.set_number(TO_SEND, direction.number);
        Ok(())
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.0[FLAGS] & flag != 0
    }

    pub(super) fn number(&self, place: Range<usize>) -> u64 {
        self.0[place].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    pub(super) fn set_number(&mut self, place: Range<usize>, number: u64) {
        let bytes = number.to_be_bytes();
        let unused = bytes.len() - place.len();
        self.0[place].copy_from_slice(&bytes[unused..]);
    }

    pub(super) fn secret_to_send(&self) -> Range<usize> {
        STATE..STATE + self.suite().secret_bytes()
    }

    pub(super) fn secret_to_open(&self) -> Range<usize> {
        let start = self.secret_to_send().end;
        start..start + self.suite().secret_bytes()
    }

    pub(super) fn key_to_send(&self) -> Range<usize> {
        self.secret_to_open().end..keys_bytes(self.suite())
    }
}
