//! Shared by the WebSocket tests: frames written by hand, and a decoder run to its end.
use simurgh_proto::ws::{Decoder, Event, FrameError, FrameLimits, Role};

pub(crate) type Seen = (Vec<Event<'static>>, Option<FrameError>);

/// A frame that may be invalid: [`simurgh_proto::ws::encode`] writes only valid ones.
#[derive(Clone, Debug)]
pub(crate) struct RawFrame {
    /// FIN, reserved bits and opcode.
    pub(crate) first: u8,
    pub(crate) mask: Option<[u8; 4]>,
    pub(crate) payload: Vec<u8>,
}

impl RawFrame {
    /// Appends the frame, its length in the shortest form.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let masked = if self.mask.is_some() { 0x80 } else { 0 };
        out.push(self.first);
        match self.payload.len() {
            len @ 0..126 => out.push(masked | len as u8),
            len @ 126..65_536 => {
                out.push(masked | 126);
                out.extend((len as u16).to_be_bytes());
            }
            len => {
                out.push(masked | 127);
                out.extend((len as u64).to_be_bytes());
            }
        }
        out.extend(self.mask.iter().flatten());
        let key = self.mask.unwrap_or_default();
        out.extend(self.payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
    }
}

pub(crate) fn decode(role: Role, limits: FrameLimits, stream: &[u8], cuts: &[usize]) -> Seen {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
    cuts.push(stream.len());
    cuts.sort_unstable();
    let mut decoder = Decoder::new();
    let mut events = Vec::new();
    let mut start = 0;
    for end in cuts {
        let mut piece = stream[start..end].to_vec();
        start = end;
        let mut input = piece.as_mut_slice();
        loop {
            match decoder.next(role, &limits, &mut input) {
                Ok(Some(event)) => events.push(event.into_owned()),
                Ok(None) => break,
                Err(error) => return (events, Some(error)),
            }
        }
    }
    (events, None)
}
