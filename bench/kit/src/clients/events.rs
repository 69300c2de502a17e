//! Reads only the heads of a server's frames: the event and the length. Payloads are skipped, so
//! that thousands of clients cost little beside the copying.

use crate::frames;

/// The event of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `phx_reply`.
    Reply,
    /// `presence_state`.
    State,
    /// `presence_diff`.
    Diff,
    /// `presence_summary`.
    Summary,
    /// The plain broadcast.
    Message,
    /// `simurgh:resumed`: missed messages follow.
    Resumed,
    /// `phx_close`: the channel has ended.
    Closed,
    /// A close frame, a fragment, or any other event.
    Other,
}

/// The head of a frame that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The event.
    pub event: Event,
    /// Bytes of the whole frame, head included.
    pub bytes: usize,
}

/// The part of a frame that is read: its head, refs, topic and event.
const READ_MAX: usize = 90;

/// How far one connection's stream has been read.
#[derive(Default)]
pub struct EventReader {
    /// Bytes of a frame whose head is not whole yet.
    partial: Vec<u8>,
    current: Option<Frame>,
    /// Bytes of the frame that are still to come.
    left: usize,
}

impl EventReader {
    /// Reads the next bytes; `whole` gets the frames that end in them.
    pub fn read(&mut self, mut input: &[u8], mut whole: impl FnMut(Frame)) {
        loop {
            if let Some(frame) = self.current {
                let count = self.left.min(input.len());
                self.left -= count;
                input = input.get(count..).unwrap_or_default();
                if self.left > 0 {
                    return;
                }
                self.current = None;
                whole(frame);
            }
            let before = self.partial.len();
            let found = if before == 0 {
                head(input)
            } else {
                let more = READ_MAX.saturating_sub(before).min(input.len());
                self.partial.extend_from_slice(input.get(..more).unwrap_or_default());
                head(&self.partial)
            };
            let Some(frame) = found else {
                if before == 0 {
                    self.partial.extend_from_slice(input);
                }
                return;
            };
            self.partial.clear();
            self.current = Some(frame);
            self.left = frame.bytes - before;
        }
    }
}

/// The frame at the front of these bytes; `None`: more are needed.
fn head(bytes: &[u8]) -> Option<Frame> {
    let (header, length) = frames::lengths(bytes)?;
    let shown = bytes.get(header..READ_MAX.min(header + length))?;
    let event = if bytes.first() == Some(&0x81) { event(shown) } else { Event::Other };
    Some(Frame { event, bytes: header + length })
}

/// `[join_ref,ref,"topic","event",`: no topic of the benchmark has a comma.
fn event(payload: &[u8]) -> Event {
    match payload.split(|byte| *byte == b',').nth(3) {
        Some(b"\"phx_reply\"") => Event::Reply,
        Some(b"\"presence_state\"") => Event::State,
        Some(b"\"presence_diff\"") => Event::Diff,
        Some(b"\"presence_summary\"") => Event::Summary,
        Some(b"\"new:msg\"") => Event::Message,
        Some(b"\"simurgh:resumed\"") => Event::Resumed,
        Some(b"\"phx_close\"") => Event::Closed,
        _ => Event::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_frames_are_found_once_and_complete() {
        let long = format!("[\"1\",null,\"rooms:1\",\"presence_state\",{{\"a\":\"{:0>300}\"}}]", 0);
        let messages = [
            "[\"1\",\"1\",\"rooms:1\",\"phx_reply\",{\"status\":\"ok\",\"response\":{}}]",
            "[null,null,\"rooms:1\",\"presence_diff\",{\"joins\":{},\"leaves\":{}}]",
            &long,
            "[null,\"k7ku80.60\",\"rooms:1\",\"new:msg\",{}]",
            "[\"1\",\"k7ku.40\",\"rooms:1\",\"simurgh:resumed\",{\"recovered\":true,\"count\":2}]",
            "[null,null,\"rooms:1\",\"presence_summary\",{}]",
            "[\"1\",\"1\",\"rooms:1\",\"phx_close\",{}]",
            "[]",
        ];
        let frames: Vec<Vec<u8>> =
            messages.iter().map(|text| frames::plain(text.as_bytes())).collect();
        let events = [
            Event::Reply,
            Event::Diff,
            Event::State,
            Event::Message,
            Event::Resumed,
            Event::Summary,
            Event::Closed,
            Event::Other,
        ];
        let stream = frames.concat();
        let lengths = frames.iter().map(Vec::len);
        let wanted: Vec<Frame> =
            events.iter().zip(lengths).map(|(&event, bytes)| Frame { event, bytes }).collect();
        for size in 1..stream.len() {
            let (mut reader, mut found) = (EventReader::default(), Vec::new());
            for part in stream.chunks(size) {
                reader.read(part, |it| found.push(it));
            }
            assert_eq!(found, wanted, "in parts of {size}");
        }
    }

    #[test]
    fn incomplete_or_non_text_frames_are_not_events() {
        let text = b"[null,null,\"rooms:1\",\"presence_diff\",{}]";
        for first in [0x01, 0x80, 0x82, 0x88] {
            let mut frame = frames::plain(text);
            frame[0] = first;
            assert_eq!(head(&frame).unwrap().event, Event::Other);
        }
    }
}
