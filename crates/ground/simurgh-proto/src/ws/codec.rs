//! Decoding: reads messages and control frames from a read buffer of the caller.
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use super::close::{self, CloseFrame};
use super::deflate::Compressed;
use super::frame::{Context, FrameError, FrameLimits, HEAD_BYTES_MAX, Head, OpCode, Role};
use super::mask;
use super::utf8::{self, Text};

/// The least that is reserved for a message that is being gathered, in bytes.
const RESERVE_BYTES_MIN: usize = 64;

/// Decodes WebSocket frames, for either role.
///
/// ```
/// use simurgh_proto::ws::{Decoder, Event, FrameLimits, Role};
///
/// let mut bytes = *b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
/// let mut input = bytes.as_mut_slice();
/// let mut decoder = Decoder::new();
/// let event = decoder.next(Role::Server, &FrameLimits::default(), &mut input)?;
/// assert_eq!(event, Some(Event::Text("Hello".into())));
/// # Ok::<(), simurgh_proto::ws::FrameError>(())
/// ```
#[derive(Debug, Default)]
pub struct Decoder {
    partial: Option<Box<Partial>>,
}

// Every connection's record has one of these, and most connections are idle.
const _: () = assert!(size_of::<Decoder>() == 8 || cfg!(not(target_pointer_width = "64")));

/// A decoded message or control frame of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A whole text message, joined from all its frames.
    Text(Cow<'a, str>),
    /// A whole binary message, joined from all its frames.
    Binary(Cow<'a, [u8]>),
    /// A whole compressed message, only from [`Decoder::next_with_deflate`].
    Compressed(Compressed<'a>),
    /// A ping, to be answered with a pong of the same payload (at most 125 bytes).
    Ping(Cow<'a, [u8]>),
    /// A pong (at most 125 bytes).
    Pong(Cow<'a, [u8]>),
    /// The peer closes: what it sends after this is ignored (RFC 6455 §5.5.1).
    Close(Option<CloseFrame<'a>>),
}

impl Event<'_> {
    /// The same event with owned bytes.
    #[must_use]
    pub fn into_owned(self) -> Event<'static> {
        match self {
            Self::Text(text) => Event::Text(Cow::Owned(text.into_owned())),
            Self::Binary(bytes) => Event::Binary(Cow::Owned(bytes.into_owned())),
            Self::Compressed(it) => Event::Compressed(it.into_owned()),
            Self::Ping(bytes) => Event::Ping(Cow::Owned(bytes.into_owned())),
            Self::Pong(bytes) => Event::Pong(Cow::Owned(bytes.into_owned())),
            Self::Close(frame) => Event::Close(frame.map(CloseFrame::into_owned)),
        }
    }
}

impl Decoder {
    /// A decoder at the start of a connection, after the handshake.
    #[must_use]
    pub const fn new() -> Self {
        Self { partial: None }
    }

    /// Takes bytes off the front of `input` until one event is complete; `None` means that all of
    /// `input` is used up. Call it until then: what is left in `input` is not kept.
    ///
    /// A message in one frame that is complete in `input` is unmasked there and borrowed, without
    /// allocation. Anything else is gathered on the heap and returned owned. `role` and `limits`
    /// are arguments because they are the same for thousands of connections.
    ///
    /// # Errors
    /// If the peer broke the protocol or a limit: close the connection with
    /// [`FrameError::close_code`]. The gathered bytes are freed. A text that is not UTF-8 fails at
    /// its first bad byte, not when the message ends.
    #[inline]
    pub fn next<'a>(
        &mut self,
        role: Role,
        limits: &FrameLimits,
        input: &mut &'a mut [u8],
    ) -> Result<Option<Event<'a>>, FrameError> {
        self.next_with_deflate(role, limits, false, input)
    }

    /// As [`next`](Self::next); if `has_deflate`, on a connection with permessage-deflate (RFC
    /// 7692). Its compressed messages are [`Event::Compressed`], and within the limits as they
    /// came.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    #[inline]
    pub fn next_with_deflate<'a>(
        &mut self,
        role: Role,
        limits: &FrameLimits,
        has_deflate: bool,
        input: &mut &'a mut [u8],
    ) -> Result<Option<Event<'a>>, FrameError> {
        let result = self.pull(role, limits, has_deflate, input);
        if result.is_err() {
            self.partial = None;
        }
        result
    }

    /// Bytes of heap of the half-received frame or message, for a budget over all connections. It
    /// grows only as data arrives, never by an announced length; it is at most about twice what has
    /// arrived.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.partial.as_deref().map_or(0, |partial| size_of::<Partial>() + partial.capacity())
    }

    /// Received bytes of the half-received message, without its frames' heads.
    #[must_use]
    pub fn received(&self) -> usize {
        let partial = self.partial.as_deref();
        partial.map_or(0, |it| it.message.len().unwrap_or(0) + it.control.len())
    }

    /// Whether a frame or message is half received: the end of the stream would cut it.
    #[must_use]
    pub const fn in_message(&self) -> bool {
        self.partial.is_some()
    }

    fn pull<'a>(
        &mut self,
        role: Role,
        limits: &FrameLimits,
        has_deflate: bool,
        input: &mut &'a mut [u8],
    ) -> Result<Option<Event<'a>>, FrameError> {
        loop {
            if self.partial.as_deref().is_none_or(|partial| partial.frame.is_none()) {
                let Some(head) = self.head(role, limits, has_deflate, input)? else {
                    return Ok(None);
                };
                let alone =
                    head.opcode.is_control() || (head.fin && head.opcode != OpCode::Continuation);
                if alone && head.payload_bytes <= input.len() {
                    let payload = take(input, head.payload_bytes);
                    if let Some(key) = head.mask {
                        mask::apply(payload, key, 0);
                    }
                    self.free_if_done();
                    return event(head, payload).map(Some);
                }
                self.partial.get_or_insert_default().begin(head);
            }
            let Some(partial) = self.partial.as_deref_mut() else { return Ok(None) };
            let event = match partial.gather(limits, input)? {
                Gathered::Incomplete => return Ok(None),
                Gathered::Part => continue,
                Gathered::Event(event) => event,
            };
            self.free_if_done();
            return Ok(Some(event));
        }
    }

    /// Reads the head of a frame, from `input` alone or continuing a kept part.
    #[inline]
    fn head(
        &mut self,
        role: Role,
        limits: &FrameLimits,
        has_deflate: bool,
        input: &mut &mut [u8],
    ) -> Result<Option<Head>, FrameError> {
        let message_bytes = self.partial.as_deref().and_then(|partial| partial.message.len());
        let context = Context { role, limits, message_bytes, has_deflate };
        if let Some(partial) = self.partial.as_deref_mut()
            && partial.head_bytes != 0
        {
            return partial.resume_head(context, input);
        }
        let head = Head::parse(input, context)?;
        match head {
            Some(head) => {
                take(input, head.head_bytes);
            }
            None if !input.is_empty() => {
                let rest = mem::take(input);
                self.partial.get_or_insert_default().keep_head(rest);
            }
            None => {}
        }
        Ok(head)
    }

    /// Frees the buffers once no message is half received.
    #[inline]
    fn free_if_done(&mut self) {
        if self.partial.as_deref().is_some_and(|partial| partial.message.len().is_none()) {
            self.partial = None;
        }
    }
}

#[derive(Debug, Default)]
struct Partial {
    /// The message in progress, without the current frame if that is a control frame.
    message: Message,
    /// The kind of the message in progress, if it is compressed.
    compressed: Option<OpCode>,
    frame: Option<Frame>,
    /// The payload so far of a control frame; these may come between the parts of a message.
    control: Vec<u8>,
    /// The first bytes of an incomplete head, `head_bytes` of them.
    head: [u8; HEAD_BYTES_MAX],
    head_bytes: u8,
}

// At most one of these for each half-received message; a budget per shard counts them.
const _: () = assert!(size_of::<Partial>() <= 144);

#[derive(Debug)]
struct Frame {
    head: Head,
    taken: usize,
}

#[derive(Debug, Default)]
enum Message {
    #[default]
    None,
    Text(Text),
    /// Or a compressed message of either kind.
    Binary(Vec<u8>),
}

enum Gathered {
    Incomplete,
    Part,
    Event(Event<'static>),
}

impl Partial {
    fn capacity(&self) -> usize {
        let message = match &self.message {
            Message::None => 0,
            Message::Text(text) => text.capacity(),
            Message::Binary(bytes) => bytes.capacity(),
        };
        message + self.control.capacity()
    }

    fn keep_head(&mut self, bytes: &[u8]) {
        let free = self.head.iter_mut().skip(usize::from(self.head_bytes));
        for (slot, byte) in free.zip(bytes) {
            *slot = *byte;
            self.head_bytes += 1;
        }
    }

    /// Adds bytes of `input` to the incomplete head, one by one: there are thirteen at most.
    fn resume_head(
        &mut self,
        context: Context<'_>,
        input: &mut &mut [u8],
    ) -> Result<Option<Head>, FrameError> {
        while !input.is_empty() {
            self.keep_head(take(input, 1));
            let kept = self.head.get(..usize::from(self.head_bytes)).unwrap_or(&self.head);
            if let Some(head) = Head::parse(kept, context)? {
                self.head_bytes = 0;
                return Ok(Some(head));
            }
        }
        Ok(None)
    }

    fn begin(&mut self, head: Head) {
        if head.is_compressed {
            self.compressed = Some(head.opcode);
        }
        match head.opcode {
            OpCode::Text if !head.is_compressed => self.message = Message::Text(Text::default()),
            OpCode::Text | OpCode::Binary => self.message = Message::Binary(Vec::new()),
            _ => {}
        }
        self.frame = Some(Frame { head, taken: 0 });
    }

    fn gather(
        &mut self,
        limits: &FrameLimits,
        input: &mut &mut [u8],
    ) -> Result<Gathered, FrameError> {
        let Some(frame) = &mut self.frame else { return Ok(Gathered::Part) };
        let head = frame.head;
        let left = head.payload_bytes - frame.taken;
        let piece = take(input, left.min(input.len()));
        if let Some(key) = head.mask {
            mask::apply(piece, key, frame.taken);
        }
        frame.taken += piece.len();
        let complete = frame.taken == head.payload_bytes;
        if complete {
            self.frame = None;
        }
        if head.opcode.is_control() {
            self.control.extend_from_slice(piece);
        } else {
            let room = if head.fin { left } else { usize::MAX };
            self.message.push(piece, room, limits.message_bytes_max)?;
        }
        match (complete, head.fin) {
            (false, _) => Ok(Gathered::Incomplete),
            (true, false) => Ok(Gathered::Part),
            (true, true) if head.opcode.is_control() => {
                let payload = mem::take(&mut self.control);
                Ok(Gathered::Event(event(head, &payload)?.into_owned()))
            }
            (true, true) => {
                let compressed = self.compressed.take();
                Ok(Gathered::Event(mem::take(&mut self.message).finish(compressed)?))
            }
        }
    }
}

impl Message {
    /// Bytes gathered, or `None` when no message is in progress.
    #[inline]
    fn len(&self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Text(text) => Some(text.len()),
            Self::Binary(bytes) => Some(bytes.len()),
        }
    }

    /// Adds a piece of a message that can grow by at most `room`.
    fn push(&mut self, piece: &[u8], room: usize, bytes_max: usize) -> Result<(), FrameError> {
        match self {
            Self::None => Ok(()),
            Self::Text(text) => {
                let target = grown(text.capacity(), text.len(), piece.len(), room, bytes_max);
                text.reserve_exact(target.saturating_sub(text.len()));
                text.push(piece)
            }
            Self::Binary(bytes) => {
                let target = grown(bytes.capacity(), bytes.len(), piece.len(), room, bytes_max);
                bytes.reserve_exact(target.saturating_sub(bytes.len()));
                bytes.extend_from_slice(piece);
                Ok(())
            }
        }
    }

    fn finish(self, compressed: Option<OpCode>) -> Result<Event<'static>, FrameError> {
        Ok(match (self, compressed) {
            (Self::None, _) => Event::Binary(Cow::Owned(Vec::new())),
            (Self::Text(text), _) => Event::Text(Cow::Owned(text.finish()?)),
            (Self::Binary(bytes), None) => Event::Binary(Cow::Owned(bytes)),
            (Self::Binary(bytes), Some(kind)) => {
                let is_text = kind == OpCode::Text;
                Event::Compressed(Compressed { is_text, payload: Cow::Owned(bytes) })
            }
        })
    }
}

/// The capacity for `len` bytes and `more`: the greatest possible length, halved as often as these
/// still fit. So it doubles, which keeps gathering linear, and while the last bytes come, memory
/// never has the whole message and nearly as much again.
pub(super) fn grown(
    capacity: usize,
    len: usize,
    more: usize,
    room: usize,
    bytes_max: usize,
) -> usize {
    let wanted = (len + more).max(RESERVE_BYTES_MIN);
    if wanted <= capacity {
        return capacity;
    }
    let end = len.saturating_add(room).min(bytes_max).max(len + more);
    end >> (end / wanted).checked_ilog2().unwrap_or(0)
}

/// Splits `bytes_max` bytes, or all there are, off the front of `input`.
#[inline]
fn take<'a>(input: &mut &'a mut [u8], bytes_max: usize) -> &'a mut [u8] {
    let all = mem::take(input);
    let (front, rest) = all.split_at_mut(bytes_max.min(all.len()));
    *input = rest;
    front
}

/// The event of an unfragmented frame.
#[inline]
fn event(head: Head, payload: &[u8]) -> Result<Event<'_>, FrameError> {
    Ok(match head.opcode {
        OpCode::Text | OpCode::Binary if head.is_compressed => {
            let is_text = head.opcode == OpCode::Text;
            Event::Compressed(Compressed { is_text, payload: Cow::Borrowed(payload) })
        }
        OpCode::Text => Event::Text(Cow::Borrowed(utf8::check(payload)?)),
        OpCode::Binary | OpCode::Continuation => Event::Binary(Cow::Borrowed(payload)),
        OpCode::Ping => Event::Ping(Cow::Borrowed(payload)),
        OpCode::Pong => Event::Pong(Cow::Borrowed(payload)),
        OpCode::Close => Event::Close(close::parse(payload)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ws::encode;
    use std::vec;

    const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

    fn next<'a>(
        decoder: &mut Decoder,
        input: &mut &'a mut [u8],
    ) -> Result<Option<Event<'a>>, FrameError> {
        decoder.next(Role::Server, &FrameLimits::default(), input)
    }

    /// A frame by hand, because [`encode`] writes no fragmented ones.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(OpCode::Binary, payload, Some(KEY), &mut bytes);
        bytes[0] = first;
        bytes
    }

    #[test]
    fn whole_frames_are_borrowed_without_heap_memory() {
        let mut bytes = Vec::new();
        encode(OpCode::Text, "سلام".as_bytes(), Some(KEY), &mut bytes);
        encode(OpCode::Binary, &[7; 300], Some(KEY), &mut bytes);
        encode(OpCode::Ping, b"abc", Some(KEY), &mut bytes);
        let mut input = bytes.as_mut_slice();
        let mut decoder = Decoder::new();
        for _ in 0..3 {
            match next(&mut decoder, &mut input).unwrap().unwrap() {
                Event::Text(Cow::Borrowed(text)) => assert_eq!(text, "سلام"),
                Event::Binary(Cow::Borrowed(payload)) => assert_eq!(payload, [7; 300]),
                Event::Ping(Cow::Borrowed(payload)) => assert_eq!(payload, b"abc"),
                other => panic!("{other:?}"),
            }
            assert_eq!((decoder.buffered(), decoder.in_message()), (0, false));
        }
        assert_eq!(next(&mut decoder, &mut input), Ok(None));
    }

    #[test]
    fn decoder_memory_follows_received_data_not_the_announced_length() {
        let payload = vec![0x20; 9_000_000];
        let mut bytes = frame(0x82, &payload);
        let mut decoder = Decoder::new();
        let mut came = 0;
        let mut pieces = bytes.chunks_mut(100_000).peekable();
        while let Some(mut piece) = pieces.next() {
            came += piece.len();
            let event = next(&mut decoder, &mut piece).unwrap();
            if pieces.peek().is_none() {
                let Some(Event::Binary(Cow::Owned(all))) = event else { panic!("not whole") };
                assert!(all == payload);
                assert_eq!(all.capacity(), payload.len(), "no more than the message needs");
            } else {
                assert_eq!(event, None);
                assert!(decoder.buffered() <= 2 * came + 256, "{} of {came}", decoder.buffered());
            }
        }
        assert_eq!((decoder.buffered(), decoder.in_message()), (0, false));
    }

    #[test]
    fn message_received_bytewise_is_buffered_in_little_memory() {
        let mut decoder = Decoder::new();
        let mut bytes = frame(0x81, "فرشته".as_bytes());
        let last = bytes.len() - 1;
        for (at, byte) in bytes.chunks_mut(1).enumerate() {
            let mut input = byte;
            let event = next(&mut decoder, &mut input).unwrap();
            assert_eq!(event, (at == last).then(|| Event::Text("فرشته".into())));
            assert_eq!(decoder.in_message(), at != last);
            assert!(decoder.buffered() <= 256);
        }
        assert_eq!(decoder.buffered(), 0);
    }

    #[test]
    fn invalid_utf8_fails_before_its_message_ends() {
        let mut bytes = frame(0x01, b"\xce\xba\xf4\x90 and more");
        let mut decoder = Decoder::new();
        let (mut first, mut second) = bytes.split_at_mut(6 + 3);
        assert_eq!(next(&mut decoder, &mut first), Ok(None));
        let (mut bad, _) = second.split_at_mut(1);
        assert_eq!(next(&mut decoder, &mut bad), Err(FrameError::InvalidUtf8));
        assert_eq!(decoder.buffered(), 0, "an error frees what was gathered");
        second = &mut [];
        assert_eq!(next(&mut decoder, &mut second), Ok(None));
    }

    #[test]
    fn buffer_growth_doubles_up_to_the_possible_message_size() {
        assert_eq!(grown(0, 0, 10, 10, 1000), 10);
        assert_eq!(grown(0, 0, 10, usize::MAX, 1000), 125);
        assert_eq!(grown(125, 120, 10, usize::MAX, 1000), 250);
        assert_eq!(grown(250, 250, 251, usize::MAX, 1000), 1000);
        assert_eq!(grown(64, 60, 10, 10, 1000), 70);
        assert_eq!(grown(600, 600, 10, usize::MAX, 1000), 1000);
        assert_eq!(grown(100, 50, 50, 50, 1000), 100);
    }
}
