//! Close codes, and the payload of a close frame (RFC 6455 §5.5.1, §7.4).
use alloc::borrow::Cow;
use core::fmt;

use super::frame::{CONTROL_BYTES_MAX, FrameError};

/// The longest reason that fits a close frame besides its code, in bytes of UTF-8.
pub(super) const REASON_BYTES_MAX: usize = CONTROL_BYTES_MAX - 2;

/// The status code of a close frame; any number is possible, see [`CloseCode::may_be_received`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CloseCode(
    /// The code on the wire.
    pub u16,
);

impl CloseCode {
    /// 1000: the purpose of the connection is fulfilled.
    pub const NORMAL: Self = Self(1000);
    /// 1001: an endpoint goes away; also used for a `disconnect` broadcast.
    pub const GOING_AWAY: Self = Self(1001);
    /// 1002: protocol error; also used for an idle connection.
    pub const PROTOCOL: Self = Self(1002);
    /// 1003: a kind of data that cannot be accepted.
    pub const UNSUPPORTED: Self = Self(1003);
    /// 1007: data that does not match the type of the message, such as bad UTF-8 in a text.
    pub const INVALID_DATA: Self = Self(1007);
    /// 1008: a message that violates a policy.
    pub const POLICY: Self = Self(1008);
    /// 1009: a message too big to process.
    pub const TOO_BIG: Self = Self(1009);
    /// 1011: the server met a condition that it did not expect.
    pub const INTERNAL: Self = Self(1011);
    /// 1012: the service restarts; the client may reconnect at once.
    pub const RESTART: Self = Self(1012);
    /// 1013: try again later; also used for a slow reader.
    pub const TRY_AGAIN: Self = Self(1013);
    /// 3000: unauthorized (IANA registry); used at the end of a socket's or its token's lifetime.
    pub const UNAUTHORIZED: Self = Self(3000);

    /// Whether a peer may send this code in a close frame (RFC 6455 §7.4 and the IANA registry):
    /// 1000–1003, 1007–1014 and 3000–4999.
    #[must_use]
    pub const fn may_be_received(self) -> bool {
        matches!(self.0, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The content of a close frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseFrame<'a> {
    /// The code; a received one always satisfies [`CloseCode::may_be_received`].
    pub code: CloseCode,
    /// Text for a log, not for people; at most 123 bytes.
    pub reason: Cow<'a, str>,
}

impl CloseFrame<'_> {
    /// The same frame with an owned reason.
    #[must_use]
    pub fn into_owned(self) -> CloseFrame<'static> {
        CloseFrame { code: self.code, reason: Cow::Owned(self.reason.into_owned()) }
    }
}

pub(super) fn parse(payload: &[u8]) -> Result<Option<CloseFrame<'_>>, FrameError> {
    let Some((code, reason)) = payload.split_first_chunk::<2>() else {
        return if payload.is_empty() { Ok(None) } else { Err(FrameError::CloseTooShort) };
    };
    let code = CloseCode(u16::from_be_bytes(*code));
    if !code.may_be_received() {
        return Err(FrameError::CloseCode(code));
    }
    let reason = core::str::from_utf8(reason).map_err(|_| FrameError::InvalidUtf8)?;
    Ok(Some(CloseFrame { code, reason: Cow::Borrowed(reason) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_registered_close_codes_are_accepted_from_a_peer() {
        let allowed: std::vec::Vec<u16> =
            (0..=u16::MAX).filter(|&code| CloseCode(code).may_be_received()).collect();
        assert_eq!(allowed.len(), 4 + 8 + 2000);
        for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 2000, 2999, 5000, 65535] {
            assert!(!allowed.contains(&code), "{code}");
        }
    }

    #[test]
    fn close_payload_is_empty_or_a_code_with_reason() {
        assert_eq!(parse(b""), Ok(None));
        assert_eq!(parse(b"\x03"), Err(FrameError::CloseTooShort));
        assert_eq!(parse(&[0x03, 0xed]), Err(FrameError::CloseCode(CloseCode(1005))));
        assert_eq!(parse(&[0x03, 0xe8, 0xff]), Err(FrameError::InvalidUtf8));
        let frame = parse(b"\x03\xe9bye").unwrap().unwrap();
        assert_eq!((frame.code, &*frame.reason), (CloseCode::GOING_AWAY, "bye"));
    }
}
