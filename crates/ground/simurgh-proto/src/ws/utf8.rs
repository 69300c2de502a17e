//! UTF-8 in pieces: checked once, as it arrives, and kept as a string.
use alloc::string::String;

use super::frame::FrameError;

const CHAR_BYTES_MAX: usize = 4;

/// A text that is being gathered; a character cut by the end of a piece waits in `tail`.
#[derive(Debug, Default)]
pub(super) struct Text {
    text: String,
    tail: [u8; CHAR_BYTES_MAX],
    tail_bytes: usize,
}

impl Text {
    pub(super) fn len(&self) -> usize {
        self.text.len() + self.tail_bytes
    }

    pub(super) fn capacity(&self) -> usize {
        self.text.capacity()
    }

    pub(super) fn reserve_exact(&mut self, additional: usize) {
        self.text.reserve_exact(additional);
    }

    /// Adds a piece; fails at the first byte that cannot belong to any UTF-8 text.
    pub(super) fn push(&mut self, piece: &[u8]) -> Result<(), FrameError> {
        let mut piece = piece;
        while self.tail_bytes != 0 {
            let Some((&byte, rest)) = piece.split_first() else { return Ok(()) };
            self.push_to_tail(byte)?;
            piece = rest;
        }
        match simdutf8::compat::from_utf8(piece) {
            Ok(text) => self.text.push_str(text),
            Err(error) if error.error_len().is_some() => return Err(FrameError::InvalidUtf8),
            Err(error) => {
                let (whole, cut) = piece.split_at_checked(error.valid_up_to()).unwrap_or_default();
                let whole = check(whole)?;
                self.text.push_str(whole);
                for &byte in cut {
                    self.push_to_tail(byte)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the text; fails when its last character is cut.
    pub(super) fn finish(self) -> Result<String, FrameError> {
        if self.tail_bytes == 0 { Ok(self.text) } else { Err(FrameError::InvalidUtf8) }
    }

    fn push_to_tail(&mut self, byte: u8) -> Result<(), FrameError> {
        let tail = self.tail.get_mut(..=self.tail_bytes).ok_or(FrameError::InvalidUtf8)?;
        if let Some(last) = tail.last_mut() {
            *last = byte;
        }
        match core::str::from_utf8(tail) {
            Ok(text) => {
                self.text.push_str(text);
                self.tail_bytes = 0;
            }
            Err(error) if error.error_len().is_some() => return Err(FrameError::InvalidUtf8),
            Err(_) => self.tail_bytes += 1,
        }
        Ok(())
    }
}

#[inline]
pub(super) fn check(bytes: &[u8]) -> Result<&str, FrameError> {
    simdutf8::basic::from_utf8(bytes).map_err(|_| FrameError::InvalidUtf8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<String, FrameError> {
        let mut text = Text::default();
        for piece in pieces {
            text.push(piece)?;
        }
        text.finish()
    }

    #[test]
    fn text_is_valid_however_it_is_split() {
        let whole = "κόσμε – سیمرغ – 🦅 end";
        let bytes = whole.as_bytes();
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                assert_eq!(gather(pieces).as_deref(), Ok(whole), "cut at {first} and {second}");
            }
        }
        assert_eq!(gather(bytes.chunks(1)).as_deref(), Ok(whole));
    }

    #[test]
    fn invalid_byte_fails_the_piece_that_contains_it() {
        // Autobahn 6.4: no code point begins with F4 90, so the second byte already fails.
        let mut text = Text::default();
        assert_eq!(text.push("κόσμε".as_bytes()), Ok(()));
        assert_eq!(text.push(&[0xf4]), Ok(()));
        assert_eq!(text.push(&[0x90]), Err(FrameError::InvalidUtf8));
        for bad in [&[0xc0][..], &[0xed, 0xa0], &[0xe0, 0x80], &[0x80], &[0xff], &[0xf5]] {
            assert_eq!(Text::default().push(bad), Err(FrameError::InvalidUtf8), "{bad:x?}");
        }
    }

    #[test]
    fn text_ending_inside_a_character_fails_at_its_end() {
        for cut in [&[0xc3][..], &[0xe2, 0x82], &[0xf0, 0x9f, 0xa6]] {
            assert_eq!(gather([cut]), Err(FrameError::InvalidUtf8), "{cut:x?}");
        }
    }
}
