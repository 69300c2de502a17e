//! Any bytes as a stream of WebSocket frames.
//!
//! The first byte chooses role, limits and permessage-deflate, the second how the rest is cut. The
//! events must be the same however it is cut, and memory must be bounded by the bytes that came.
use simurgh_proto::ws::{
    CloseFrame, Decoder, Event, FrameError, FrameLimits, OpCode, Role, encode, encode_close,
    encode_compressed,
};

type Seen = (Vec<Event<'static>>, Option<FrameError>);

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    let [choice, seed, stream @ ..] = data else { return };
    let role = if choice & 1 == 0 { Role::Server } else { Role::Client };
    let has_deflate = choice & 8 != 0;
    let limits = match choice >> 1 & 3 {
        0 => FrameLimits::default(),
        1 => FrameLimits { frame_bytes_max: 64, message_bytes_max: 100 },
        2 => FrameLimits { frame_bytes_max: 1000, message_bytes_max: 200 },
        _ => FrameLimits { frame_bytes_max: 0, message_bytes_max: 0 },
    };
    let whole = decode(role, limits, has_deflate, stream, |left| left);
    assert_eq!(whole, decode(role, limits, has_deflate, stream, |_| 1), "a byte at a time");
    let mut state = u32::from(*seed);
    let cut = |left: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as usize % 23 % left + 1
    };
    assert_eq!(whole, decode(role, limits, has_deflate, stream, cut), "cut by seed {seed}");
    for event in whole.0 {
        come_back(role, event);
    }
}

/// Decodes a stream that comes in pieces; `piece` gets the bytes left and says how many come.
fn decode(
    role: Role,
    limits: FrameLimits,
    has_deflate: bool,
    stream: &[u8],
    mut piece: impl FnMut(usize) -> usize,
) -> Seen {
    let mut bytes = stream.to_vec();
    let mut decoder = Decoder::new();
    let mut events = Vec::new();
    let (mut rest, mut came) = (bytes.as_mut_slice(), 0);
    while !rest.is_empty() {
        let (mut input, later) = rest.split_at_mut(piece(rest.len()));
        rest = later;
        came += input.len();
        loop {
            match decoder.next_with_deflate(role, &limits, has_deflate, &mut input) {
                Ok(Some(event)) => events.push(event.into_owned()),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(decoder.buffered(), 0);
                    return (events, Some(error));
                }
            }
        }
        assert!(input.is_empty(), "all of a piece is used up");
        assert!(decoder.buffered() <= 2 * came + 256, "memory without data");
        assert_eq!(decoder.in_message(), decoder.buffered() != 0);
    }
    (events, None)
}

/// A decoded frame must be the same when it is encoded, unmasked and decoded again.
fn come_back(role: Role, event: Event<'static>) {
    let mask = (role == Role::Server).then_some([1, 2, 3, 250]);
    let mut bytes = Vec::new();
    match &event {
        Event::Text(text) => encode(OpCode::Text, text.as_bytes(), mask, &mut bytes),
        Event::Binary(payload) => encode(OpCode::Binary, payload, mask, &mut bytes),
        Event::Compressed(message) => {
            let before = bytes.len();
            encode_compressed(OpCode::Binary, message.payload(), mask, &mut bytes);
            let seen = decode(role, FrameLimits::default(), true, &bytes[before..], |left| left).0;
            let [Event::Compressed(again)] = &seen[..] else { panic!("{seen:?}") };
            return assert_eq!(again.payload(), message.payload());
        }
        Event::Ping(payload) => encode(OpCode::Ping, payload, mask, &mut bytes),
        Event::Pong(payload) => encode(OpCode::Pong, payload, mask, &mut bytes),
        Event::Close(None) => encode(OpCode::Close, b"", mask, &mut bytes),
        Event::Close(Some(CloseFrame { code, reason })) => {
            encode_close(*code, reason, mask, &mut bytes);
        }
    }
    let seen = decode(role, FrameLimits::default(), false, &bytes, |left| left);
    assert_eq!(seen, (vec![event], None));
}
