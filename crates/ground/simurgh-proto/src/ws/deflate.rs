//! Compressed messages (RFC 7692), without context takeover: each message is a stream of its own,
//! so one inflater and one deflater serve all connections of a thread.
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use zlib_rs::{Deflate, DeflateConfig, DeflateFlush, Inflate, InflateFlush, Status};

use super::codec::{Event, grown};
use super::frame::{
    Context, FrameError, FrameLimits, HEAD_BYTES_MAX, Head, OpCode, Role, write_head,
};
use super::utf8;

/// Shorter payloads are never compressed: they hardly shrink.
pub const DEFLATE_BYTES_MIN: usize = 256;
/// What ends every flushed stream, and is left out of a message (RFC 7692 §7.2.1).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];
/// The tail and a final empty block: a stream that does not end with it was cut.
const TAIL_AND_END: [u8; 6] = [0, 0, 0xff, 0xff, 3, 0];
/// How much is inflated before it is counted.
const CHUNK_BYTES: usize = 16 << 10;
/// The window of what we compress, in bits. Python's `websockets` asks for this one; 15 bits save
/// 1 % of a text of 60 kB at most.
pub(super) const WINDOW_BITS: u8 = 12;
/// Each further level takes 10 % longer, and saves less than 1 % of a text.
const LEVEL: i32 = 2;

/// A whole message of a peer that is still compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compressed<'a> {
    pub(super) is_text: bool,
    pub(super) payload: Cow<'a, [u8]>,
}

impl Compressed<'_> {
    /// The same message with owned bytes.
    #[must_use]
    pub fn into_owned(self) -> Compressed<'static> {
        Compressed { is_text: self.is_text, payload: Cow::Owned(self.payload.into_owned()) }
    }

    /// Its bytes as they came; inflated they may be a thousand times as many.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The message: an [`Event::Text`] or [`Event::Binary`].
    ///
    /// # Errors
    /// If it is more than `bytes_max` bytes, no whole stream, or a text that is not UTF-8.
    pub fn inflate(
        &self,
        inflater: &mut Inflater,
        bytes_max: usize,
    ) -> Result<Event<'static>, FrameError> {
        let bytes = inflater.inflate(&self.payload, bytes_max)?;
        if !self.is_text {
            return Ok(Event::Binary(Cow::Owned(bytes)));
        }
        utf8::check(&bytes)?;
        let text = String::from_utf8(bytes).map_err(|_| FrameError::InvalidUtf8)?;
        Ok(Event::Text(Cow::Owned(text)))
    }
}

/// Inflates messages; about 60 kB.
pub struct Inflater {
    state: Inflate,
    chunk: Box<[u8]>,
}

impl Default for Inflater {
    fn default() -> Self {
        Self { state: Inflate::new(false, 15), chunk: vec![0; CHUNK_BYTES].into_boxed_slice() }
    }
}

impl Inflater {
    /// Inflates the payload of a message of at most `bytes_max` bytes. Memory never exceeds that by
    /// more than 16 KiB, whatever the payload promises.
    ///
    /// # Errors
    /// If it is longer, or no whole stream.
    pub fn inflate(&mut self, payload: &[u8], bytes_max: usize) -> Result<Vec<u8>, FrameError> {
        let mut message = Vec::new();
        self.state.reset(false);
        let is_final = self.append(payload, &mut message, bytes_max)?;
        // Some send nothing, or no byte 00 after a final block (RFC 7692 §7.2.3.4).
        if is_final || payload.is_empty() || self.append(&TAIL_AND_END, &mut message, bytes_max)? {
            return Ok(message);
        }
        Err(FrameError::Compression)
    }

    /// Inflates a part of a message; returns whether it ended with a final block.
    fn append(
        &mut self,
        mut part: &[u8],
        message: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<bool, FrameError> {
        loop {
            let before = (self.state.total_in(), self.state.total_out());
            let status = self.state.decompress(part, &mut self.chunk, InflateFlush::NoFlush);
            let status = status.map_err(|_| FrameError::Compression)?;
            let taken = (self.state.total_in() - before.0) as usize;
            let given = (self.state.total_out() - before.1) as usize;
            part = part.get(taken..).unwrap_or_default();
            let piece = self.chunk.get(..given).unwrap_or_default();
            if piece.len() > bytes_max - message.len() {
                return Err(FrameError::MessageTooBig);
            }
            // A message that fits one chunk takes what it needs.
            let room = if given < CHUNK_BYTES { given } else { usize::MAX };
            let target = grown(message.capacity(), message.len(), given, room, bytes_max);
            message.reserve_exact(target.saturating_sub(message.len()));
            message.extend_from_slice(piece);
            match status {
                Status::StreamEnd if part.is_empty() => return Ok(true),
                // More blocks may follow a final one.
                Status::StreamEnd => self.state.reset(false),
                Status::Ok | Status::BufError if given < CHUNK_BYTES => return Ok(false),
                Status::Ok | Status::BufError => {}
            }
        }
    }
}

/// What compressing has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deflated {
    /// Messages that are compressed now.
    pub messages: u64,
    /// Bytes of their payloads before.
    pub before: u64,
    /// Bytes of their payloads now.
    pub after: u64,
}

/// Compresses messages; about 250 kB.
pub struct Deflater {
    state: Deflate,
    deflated: Vec<u8>,
}

impl Default for Deflater {
    fn default() -> Self {
        let window_bits = -i32::from(WINDOW_BITS);
        let config = DeflateConfig { level: LEVEL, window_bits, ..DeflateConfig::default() };
        Self { state: Deflate::new_with_config(config), deflated: Vec::new() }
    }
}

impl Deflater {
    /// The compressed form of a payload; `None` if that is not shorter.
    pub fn deflate(&mut self, payload: &[u8]) -> Option<&[u8]> {
        // What fits here is shorter once its tail is gone.
        let room = payload.len() + TAIL.len() - 1;
        if self.deflated.len() < room {
            self.deflated.resize(room, 0);
        }
        self.state.reset();
        let out = self.deflated.get_mut(..room)?;
        self.state.compress(payload, out, DeflateFlush::SyncFlush).ok()?;
        let written = self.deflated.get(..self.state.total_out() as usize)?;
        // A full buffer may lack the end of the stream.
        written.strip_suffix(&TAIL).filter(|_| written.len() < room)
    }

    /// Compresses the messages in whole unmasked frames where that makes them shorter; binary ones
    /// only if `with_binary`.
    pub fn compress(&mut self, frames: &mut Vec<u8>, with_binary: bool) -> Deflated {
        let (mut done, mut at) = (Deflated::default(), 0);
        while let Some((head, payload)) = frame_at(frames, at) {
            at = payload.end;
            let is_message = match head.opcode {
                OpCode::Text => true,
                OpCode::Binary => with_binary,
                _ => false,
            };
            if !is_message || payload.len() < DEFLATE_BYTES_MIN {
                continue;
            }
            let Some(short) = frames.get(payload.clone()).and_then(|it| self.deflate(it)) else {
                continue;
            };
            done.messages += 1;
            done.before += payload.len() as u64;
            done.after += short.len() as u64;
            let mut bytes = [0; HEAD_BYTES_MAX];
            let head_bytes = write_head(head.opcode, true, short.len(), None, &mut bytes);
            let start = payload.start - head.head_bytes;
            at = start + head_bytes + short.len();
            frames.splice(
                start..payload.end,
                bytes.into_iter().take(head_bytes).chain(short.iter().copied()),
            );
        }
        done
    }
}

/// The frame at this place, whole and unmasked, and where its payload is.
fn frame_at(frames: &[u8], at: usize) -> Option<(Head, Range<usize>)> {
    let limits = FrameLimits { frame_bytes_max: usize::MAX, message_bytes_max: usize::MAX };
    let context =
        Context { role: Role::Client, limits: &limits, message_bytes: None, has_deflate: false };
    let head = Head::parse(frames.get(at..)?, context).ok()??;
    let start = at + head.head_bytes;
    let payload = start..start.checked_add(head.payload_bytes)?;
    frames.get(payload.clone()).map(|_| (head, payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ws::{Decoder, encode};
    use std::format;

    fn text(bytes: usize) -> String {
        let mut text = String::new();
        for n in 0_u32.. {
            text +=
                &format!(r#"{{"id":{n},"user":"user-{}"}},"#, n.wrapping_mul(2_654_435_769) >> 20);
            if text.len() >= bytes {
                break;
            }
        }
        text.truncate(bytes);
        text
    }

    #[test]
    fn compressed_frames_are_read_back() {
        let (mut deflater, mut inflater) = (Deflater::default(), Inflater::default());
        let (long, short) = (text(4000), "short");
        let mut frames = Vec::new();
        encode(OpCode::Text, short.as_bytes(), None, &mut frames);
        encode(OpCode::Text, long.as_bytes(), None, &mut frames);
        encode(OpCode::Binary, long.as_bytes(), None, &mut frames);
        let done = deflater.compress(&mut frames, false);
        assert_eq!((done.messages, done.before), (1, 4000));
        assert!(done.after < 2000, "{}", done.after);
        let (mut input, mut decoder, mut seen) = (&mut frames[..], Decoder::new(), Vec::new());
        let limits = FrameLimits::default();
        while let Ok(Some(event)) =
            decoder.next_with_deflate(Role::Client, &limits, true, &mut input)
        {
            seen.push(match event {
                Event::Compressed(it) => it.inflate(&mut inflater, 4000).unwrap(),
                other => other.into_owned(),
            });
        }
        let long: Cow<'_, str> = Cow::Owned(long);
        let binary = Event::Binary(Cow::Owned(long.as_bytes().to_vec()));
        assert_eq!(seen, [Event::Text(short.into()), Event::Text(long.clone()), binary]);
        let mut frames = Vec::new();
        encode(OpCode::Binary, long.as_bytes(), None, &mut frames);
        assert_eq!(deflater.compress(&mut frames, true).messages, 1, "if it is wanted");
    }

    #[test]
    fn payload_that_does_not_shrink_is_left_alone() {
        let mut deflater = Deflater::default();
        let mut state = 1_u32;
        let mut draw = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let noise: Vec<u8> = (0..1000).map(|_| draw()).collect();
        assert_eq!(deflater.deflate(&noise), None);
        let mut frames = Vec::new();
        encode(OpCode::Binary, &noise, None, &mut frames);
        let before = frames.clone();
        assert_eq!(deflater.compress(&mut frames, true), Deflated::default());
        assert_eq!(frames, before);
        assert!(deflater.deflate(text(300).as_bytes()).is_some(), "the next one is");
    }

    /// RFC 7692 §7.2.3.
    #[test]
    fn examples_of_the_rfc_are_inflated() {
        let mut inflater = Inflater::default();
        let mut inflate = |payload: &[u8]| inflater.inflate(payload, 100);
        let hello = Ok(b"Hello".to_vec());
        assert_eq!(inflate(&[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]), hello);
        let stored = [0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00];
        assert_eq!(inflate(&stored), hello, "a block without compression");
        assert_eq!(inflate(&[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00]), hello, "BFINAL");
        assert_eq!(inflate(&[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]), hello, "without byte 00");
        let two = [0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00];
        assert_eq!(inflate(&two), hello, "two blocks");
        assert_eq!(inflate(&[0x00]), Ok(Vec::new()), "the empty message");
        assert_eq!(inflate(&[]), Ok(Vec::new()), "as some send it");
    }

    #[test]
    fn cut_or_corrupt_stream_is_an_error() {
        let (mut deflater, mut inflater) = (Deflater::default(), Inflater::default());
        let text = text(2000);
        let whole = deflater.deflate(text.as_bytes()).unwrap().to_vec();
        for cut in 1..whole.len() {
            assert_ne!(
                inflater.inflate(&whole[..cut], 4000).as_deref(),
                Ok(text.as_bytes()),
                "{cut}"
            );
        }
        let cut = inflater.inflate(&whole[..whole.len() / 2], 4000);
        assert_eq!(cut, Err(FrameError::Compression));
        assert_eq!(inflater.inflate(&[0xff; 8], 4000), Err(FrameError::Compression));
        assert_eq!(inflater.inflate(&whole, 4000).as_deref(), Ok(text.as_bytes()), "as before");
        let bad =
            Compressed { is_text: true, payload: (&[0, 1, 0, 0xfe, 0xff, 0xff, 0][..]).into() };
        assert_eq!(bad.inflate(&mut inflater, 10), Err(FrameError::InvalidUtf8));
    }

    #[test]
    fn bomb_is_refused_at_the_limit() {
        let (mut inflater, zeros) = (Inflater::default(), vec![0; 1 << 20]);
        let mut state = Deflate::new(9, false, 15);
        let mut bomb = vec![0; 2 << 20];
        for _ in 0..64 {
            let at = state.total_out() as usize;
            state.compress(&zeros, &mut bomb[at..], DeflateFlush::SyncFlush).unwrap();
        }
        bomb.truncate(state.total_out() as usize - TAIL.len());
        assert_eq!(inflater.inflate(&bomb, 100_000), Err(FrameError::MessageTooBig));
        let whole = inflater.inflate(&bomb, 64 << 20).unwrap();
        assert_eq!((whole.len(), whole.capacity()), (64 << 20, 64 << 20), "no more than the limit");
    }
}
