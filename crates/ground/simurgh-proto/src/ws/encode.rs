//! Encoding: whole frames, appended to a buffer of the caller.
use alloc::vec::Vec;

use super::close::{CloseCode, REASON_BYTES_MAX};
use super::frame::{CONTROL_BYTES_MAX, HEAD_BYTES_MAX, OpCode, write_head};
use super::mask;

/// Bytes kept free for the head while [`encode_with`] writes: right for payloads of 126–65,535
/// bytes; other payloads are moved a few bytes.
const HEAD_BYTES_GUESSED: usize = 4;

/// Appends one unfragmented frame to `out`. A client passes a fresh unpredictable masking key (RFC
/// 6455 §5.3), a server `None`.
///
/// A control frame's payload must not exceed 125 bytes; the rest of a longer one is left out.
pub fn encode(opcode: OpCode, payload: &[u8], mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    let payload = if opcode.is_control() {
        debug_assert!(payload.len() <= CONTROL_BYTES_MAX, "control frames are short");
        payload.get(..CONTROL_BYTES_MAX).unwrap_or(payload)
    } else {
        payload
    };
    write_frame(opcode, false, payload, mask, out);
}

/// As [`encode`], for a text or binary message whose payload is
/// [compressed](super::Deflater::deflate).
pub fn encode_compressed(opcode: OpCode, payload: &[u8], mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    write_frame(opcode, true, payload, mask, out);
}

#[inline]
fn write_frame(
    opcode: OpCode,
    is_compressed: bool,
    payload: &[u8],
    mask: Option<[u8; 4]>,
    out: &mut Vec<u8>,
) {
    let mut head = [0; HEAD_BYTES_MAX];
    let head_bytes = write_head(opcode, is_compressed, payload.len(), mask, &mut head);
    out.reserve(head_bytes + payload.len());
    out.extend_from_slice(head.get(..head_bytes).unwrap_or(&head));
    let start = out.len();
    out.extend_from_slice(payload);
    if let (Some(key), Some(bytes)) = (mask, out.get_mut(start..)) {
        mask::apply(bytes, key, 0);
    }
}

/// Appends the head of one unmasked frame to `out`; `payload_bytes` have to follow.
pub fn encode_head(opcode: OpCode, payload_bytes: usize, out: &mut Vec<u8>) {
    let mut head = [0; HEAD_BYTES_MAX];
    let head_bytes = write_head(opcode, false, payload_bytes, None, &mut head);
    out.extend_from_slice(head.get(..head_bytes).unwrap_or(&head));
}

/// Appends a close frame to `out`. A reason of more than 123 bytes is cut at a character.
pub fn encode_close(code: CloseCode, reason: &str, mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    let reason = &reason.as_bytes()[..reason.floor_char_boundary(REASON_BYTES_MAX)];
    let mut payload = [0; CONTROL_BYTES_MAX];
    payload[..2].copy_from_slice(&code.0.to_be_bytes());
    payload[2..2 + reason.len()].copy_from_slice(reason);
    encode(OpCode::Close, &payload[..2 + reason.len()], mask, out);
}

/// Appends one unmasked frame to `out`. `write` appends the payload directly, so that no second
/// buffer is needed, and returns the frame's opcode.
///
/// `write` must only append. When it fails or panics, `out` is left unchanged.
///
/// # Errors
/// Those of `write`.
pub fn encode_with<E>(
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> Result<OpCode, E>,
) -> Result<(), E> {
    let tail = Tail { start: out.len(), done: false, out };
    tail.out.extend_from_slice(&[0; HEAD_BYTES_GUESSED]);
    let opcode = write(tail.out)?;
    tail.finish(opcode);
    Ok(())
}

/// The end of a buffer where a frame is being written; undone when dropped before it is finished.
struct Tail<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    done: bool,
}

impl Tail<'_> {
    fn finish(mut self, opcode: OpCode) {
        let payload_at = self.start + HEAD_BYTES_GUESSED;
        debug_assert!(self.out.len() >= payload_at, "the writer only appends");
        let payload_bytes = self.out.len().saturating_sub(payload_at);
        let mut head = [0; HEAD_BYTES_MAX];
        let head_bytes = write_head(opcode, false, payload_bytes, None, &mut head);
        let head = head.get(..head_bytes).unwrap_or(&head);
        if head_bytes != HEAD_BYTES_GUESSED {
            let end = self.start + head_bytes;
            // Longer for the move, or unchanged.
            self.out.resize(end.max(payload_at) + payload_bytes, 0);
            self.out.copy_within(payload_at..payload_at + payload_bytes, end);
            self.out.truncate(end + payload_bytes);
        }
        if let Some(place) = self.out.get_mut(self.start..self.start + head_bytes) {
            place.copy_from_slice(head);
        }
        self.done = true;
    }
}

impl Drop for Tail<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.out.truncate(self.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::convert::Infallible;
    use std::{panic, string::String, vec};

    #[test]
    fn payload_written_in_place_produces_the_same_frame() {
        for len in [0, 1, 5, 125, 126, 4096, 65_535, 65_536, 70_000] {
            let payload = vec![b'x'; len];
            let mut plain = b"before".to_vec();
            let mut placed = plain.clone();
            encode(OpCode::Text, &payload, None, &mut plain);
            let done: Result<(), Infallible> = encode_with(&mut placed, |out| {
                out.extend_from_slice(&payload);
                Ok(OpCode::Text)
            });
            assert_eq!(done, Ok(()));
            assert!(plain == placed, "{len} bytes");
            let mut parted = b"before".to_vec();
            encode_head(OpCode::Text, len, &mut parted);
            parted.extend_from_slice(&payload);
            assert!(plain == parted, "{len} bytes");
        }
    }

    #[test]
    fn failed_or_panicking_payload_writer_leaves_no_partial_frame() {
        let mut out = b"before".to_vec();
        let failed = encode_with(&mut out, |out| {
            out.extend_from_slice(b"half");
            Err("no")
        });
        assert_eq!((failed, out.as_slice()), (Err("no"), &b"before"[..]));
        let panicked = panic::catch_unwind(panic::AssertUnwindSafe(|| {
            encode_with(&mut out, |out| -> Result<OpCode, ()> {
                out.extend_from_slice(b"half");
                panic!("a writer with a bug");
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(out, b"before");
    }

    #[test]
    fn long_close_reason_is_truncated_at_a_character_boundary() {
        let mut out = Vec::new();
        let reason: String = core::iter::repeat_n('é', 80).collect();
        encode_close(CloseCode::RESTART, &reason, None, &mut out);
        assert_eq!(out.len(), 2 + 2 + 122);
        assert_eq!(&out[4..], &reason.as_bytes()[..122]);
    }
}
