//! Properties of any stream: cutting it changes nothing, encoded messages are decoded again, and no
//! bytes of a peer cause a panic or take memory that they do not fill.
use proptest::prelude::*;
use simurgh_proto::ws::{
    CloseCode, CloseFrame, Decoder, Deflater, Event, FrameLimits, Inflater, OpCode, Role, encode,
    encode_close,
};

use crate::common::{RawFrame, decode};
use crate::frames::frames;

fn roles() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Server), Just(Role::Client)]
}

fn limits() -> impl Strategy<Value = FrameLimits> {
    let small = (0_usize..500, 0_usize..500);
    prop_oneof![
        Just(FrameLimits::default()),
        small.prop_map(|(frame_bytes_max, message_bytes_max)| FrameLimits {
            frame_bytes_max,
            message_bytes_max
        }),
    ]
}

fn stream_of(frames: &[RawFrame]) -> Vec<u8> {
    let mut stream = Vec::new();
    for frame in frames {
        frame.write(&mut stream);
    }
    stream
}

fn events() -> impl Strategy<Value = Event<'static>> {
    let short = || prop::collection::vec(any::<u8>(), 0..=125);
    let code = prop_oneof![1000_u16..=1003, 1007_u16..=1014, 3000_u16..=4999];
    prop_oneof![
        ".{0,200}".prop_map(|text| Event::Text(text.into())),
        prop::collection::vec(any::<u8>(), 0..2000).prop_map(|bytes| Event::Binary(bytes.into())),
        short().prop_map(|bytes| Event::Ping(bytes.into())),
        short().prop_map(|bytes| Event::Pong(bytes.into())),
        (code, ".{0,30}").prop_map(|(code, reason)| {
            Event::Close(Some(CloseFrame { code: CloseCode(code), reason: reason.into() }))
        }),
        Just(Event::Close(None)),
    ]
}

fn write(event: &Event<'_>, mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    match event {
        Event::Text(text) => encode(OpCode::Text, text.as_bytes(), mask, out),
        Event::Binary(bytes) => encode(OpCode::Binary, bytes, mask, out),
        Event::Compressed(_) => unreachable!("none is drawn"),
        Event::Ping(bytes) => encode(OpCode::Ping, bytes, mask, out),
        Event::Pong(bytes) => encode(OpCode::Pong, bytes, mask, out),
        Event::Close(None) => encode(OpCode::Close, b"", mask, out),
        Event::Close(Some(frame)) => encode_close(frame.code, &frame.reason, mask, out),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn splitting_a_stream_does_not_change_the_decoded_events(
        (role, frames) in roles().prop_flat_map(|role| (Just(role), frames(role))),
        limits in limits(),
        cuts in prop::collection::vec(any::<usize>(), 0..12),
        lost in 0_usize..20,
    ) {
        let mut stream = stream_of(&frames);
        stream.truncate(stream.len().saturating_sub(lost));
        let whole = decode(role, limits, &stream, &[]);
        prop_assert_eq!(&whole, &decode(role, limits, &stream, &cuts));
        let everywhere: Vec<usize> = (0..stream.len()).collect();
        prop_assert_eq!(&whole, &decode(role, limits, &stream, &everywhere));
    }

    #[test]
    fn encoded_websocket_messages_are_decoded_back(
        events in prop::collection::vec(events(), 0..8),
        key in prop::option::of(any::<[u8; 4]>()),
        cuts in prop::collection::vec(any::<usize>(), 0..4),
    ) {
        let mut stream = Vec::new();
        for event in &events {
            write(event, key, &mut stream);
        }
        let role = if key.is_some() { Role::Server } else { Role::Client };
        prop_assert_eq!(decode(role, FrameLimits::default(), &stream, &cuts), (events, None));
    }

    #[test]
    fn fragmented_message_equals_the_whole_message(
        text in "\\PC{0,80}",
        ends in prop::collection::vec(any::<usize>(), 0..5),
        cuts in prop::collection::vec(any::<usize>(), 0..4),
    ) {
        // Parts may end inside a character.
        let mut ends: Vec<usize> = ends.iter().map(|end| end % (text.len() + 1)).collect();
        ends.sort_unstable();
        ends.push(text.len());
        let (mut stream, mut pings, mut start) = (Vec::new(), 0, 0);
        let last = ends.len() - 1;
        for (at, end) in ends.into_iter().enumerate() {
            let first = u8::from(at == 0) | if at == last { 0x80 } else { 0 };
            let payload = text.as_bytes()[start..end].to_vec();
            RawFrame { first, mask: Some([9, 8, 7, at as u8]), payload }.write(&mut stream);
            start = end;
            if at != last {
                encode(OpCode::Ping, b"still there?", Some([1; 4]), &mut stream);
                pings += 1;
            }
        }
        let (events, error) = decode(Role::Server, FrameLimits::default(), &stream, &cuts);
        prop_assert_eq!(error, None);
        prop_assert_eq!(events.len(), pings + 1);
        prop_assert_eq!(events.last(), Some(&Event::Text(text.into())));
    }

    #[test]
    fn compressed_message_is_the_same_however_it_is_cut(
        text in "[a-d]{0,3}(\\PC{0,4}[a-d]{200}){0,4}",
        ends in prop::collection::vec(any::<usize>(), 0..5),
        pieces in 1_usize..700,
        bytes_max in 0_usize..1000,
    ) {
        let (mut deflater, mut inflater) = (Deflater::default(), Inflater::default());
        let Some(payload) = deflater.deflate(text.as_bytes()) else { return Ok(()) };
        let mut ends: Vec<usize> = ends.iter().map(|end| end % (payload.len() + 1)).collect();
        ends.sort_unstable();
        ends.push(payload.len());
        let (mut stream, mut start) = (Vec::new(), 0);
        let last = ends.len() - 1;
        for (at, end) in ends.into_iter().enumerate() {
            let first = if at == 0 { 0x41 } else { 0 } | if at == last { 0x80 } else { 0 };
            let payload = payload[start..end].to_vec();
            RawFrame { first, mask: Some([9, 8, 7, at as u8]), payload }.write(&mut stream);
            start = end;
        }
        let (mut decoder, mut events) = (Decoder::new(), Vec::new());
        let limits = FrameLimits::default();
        for mut piece in stream.chunks_mut(pieces) {
            while let Some(event) =
                decoder.next_with_deflate(Role::Server, &limits, true, &mut piece).unwrap()
            {
                events.push(event.into_owned());
            }
        }
        let [Event::Compressed(message)] = &events[..] else { panic!("{events:?}") };
        let inflated = message.inflate(&mut inflater, bytes_max);
        prop_assert_eq!(inflated.is_ok(), text.len() <= bytes_max);
        let whole = message.inflate(&mut inflater, text.len());
        prop_assert_eq!(whole, Ok(Event::Text(text.into())));
    }

    #[test]
    fn arbitrary_websocket_bytes_are_decoded_or_rejected(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        role in roles(),
        limits in limits(),
        pieces in 1_usize..50,
    ) {
        let mut bytes = bytes;
        let mut decoder = Decoder::new();
        let mut came = 0;
        for piece in bytes.chunks_mut(pieces) {
            came += piece.len();
            let mut input = piece;
            while let Ok(Some(_)) = decoder.next(role, &limits, &mut input) {}
            prop_assert!(decoder.buffered() <= 2 * came + 256);
        }
    }
}
