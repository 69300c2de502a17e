//! The HTTP/1.1 upgrade that opens a WebSocket (RFC 6455 §4), as a server and as a client.
//!
//! A server calls, over the bytes it has so far: [`Request::parse`], then its own checks, then
//! [`negotiate`], [`check_upgrade`] and [`accept_deflate`], and answers with [`write_accept`] or
//! [`write_refusal`]. The order of checks is PROTOCOL §2's, in which the header check is the last.
//! A client writes a [`ClientRequest`] and reads the answer with [`check_response`].
use alloc::string::String;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use sha1::{Digest as _, Sha1};
use thiserror::Error;

mod client;
mod extension;
mod framing;
mod request;
mod response;
mod subprotocol;
#[cfg(test)]
mod tests;

pub use client::{ClientRequest, HandshakeError, Response, check_response, client_key};
pub use extension::{DEFLATE_OFFER, accept_deflate};
pub use framing::{Framing, FramingError};
pub use request::{HeadLimits, Request, Upgrade, UpgradeError, check_upgrade};
pub use response::{write_accept, write_refusal};
pub use subprotocol::{Negotiated, NoCommonSubprotocol, TOKEN_PREFIX, negotiate};

/// The suffix that every server adds to the key before hashing (RFC 6455 §1.3).
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Length of a `Sec-WebSocket-Accept`: the base64 form of a SHA-1.
const ACCEPT_BYTES: usize = 28;
/// Length of a `Sec-WebSocket-Key`: the base64 form of 16 bytes.
const KEY_BYTES: usize = 24;
/// Slots on the stack for the headers of a head, and the upper bound of the configured limit.
const HEADERS_MAX: usize = 100;

/// Base64 as clients write it: with or without `=`, and with any unused bits in the last character.
const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);

/// Why bytes are not an acceptable head of an HTTP/1.x message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeadError {
    /// Not HTTP/1.0 or HTTP/1.1.
    #[error("malformed HTTP head")]
    Malformed,
    /// A target longer than [`HeadLimits::target_bytes_max`].
    #[error("request target too long")]
    TargetTooLong,
    /// Longer than [`HeadLimits::bytes_max`].
    #[error("HTTP head too large")]
    TooLarge,
    /// More headers than [`HeadLimits::headers_max`].
    #[error("too many headers")]
    TooManyHeaders,
}

impl HeadError {
    /// The status to refuse with: 400, 414 or 431.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Malformed => 400,
            Self::TargetTooLong => 414,
            Self::TooLarge | Self::TooManyHeaders => 431,
        }
    }

    const fn from_httparse(error: httparse::Error) -> Self {
        match error {
            httparse::Error::TooManyHeaders => Self::TooManyHeaders,
            _ => Self::Malformed,
        }
    }
}

/// The `Sec-WebSocket-Accept` of a `Sec-WebSocket-Key` (RFC 6455 §4.2.2), in ASCII.
#[must_use]
pub fn accept_key(key: &str) -> [u8; 28] {
    let hash = Sha1::new().chain_update(key.as_bytes()).chain_update(KEY_SUFFIX).finalize();
    let mut out = [0; ACCEPT_BYTES];
    let written = STANDARD.encode_slice(hash, &mut out);
    debug_assert_eq!(written, Ok(ACCEPT_BYTES), "20 bytes make 28 characters");
    out
}

/// The elements of a comma-separated header value, without blanks and without empty ones.
fn tokens(value: &[u8]) -> impl Iterator<Item = &str> {
    value.split(|&byte| byte == b',').filter_map(|token| {
        let token = core::str::from_utf8(token.trim_ascii()).ok()?;
        (!token.is_empty()).then_some(token)
    })
}

/// Decodes base64 to text, in the standard or the URL-safe alphabet, with or without `=`.
fn decode_text(encoded: &str) -> Option<String> {
    const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);
    let bytes = STANDARD.decode(encoded).or_else(|_| URL_SAFE.decode(encoded)).ok()?;
    String::from_utf8(bytes).ok()
}
