//! Valid and invalid streams of frames for the decoder.
use proptest::prelude::*;
use simurgh_proto::ws::Role;

use crate::common::RawFrame;

/// Frames of a peer: messages in parts, control frames in between, and rarely a violation.
pub(crate) fn frames(role: Role) -> impl Strategy<Value = Vec<RawFrame>> {
    let message = (any::<bool>(), prop::collection::vec(part(), 1..4), any::<bool>());
    prop::collection::vec((message, prop::option::weighted(0.05, spoiled())), 1..6).prop_flat_map(
        move |messages| {
            let mut frames = Vec::new();
            for ((text, parts, control), spoiled) in messages {
                let last = parts.len() - 1;
                for (at, part) in parts.into_iter().enumerate() {
                    let opcode = if at > 0 {
                        0
                    } else if text {
                        1
                    } else {
                        2
                    };
                    let fin = if at == last { 0x80 } else { 0 };
                    let payload = if text { text_of(&part) } else { part };
                    frames.push((fin | opcode, payload));
                    if control {
                        frames.push((0x89 + (at as u8 & 1), vec![b'p'; at]));
                    }
                }
                frames.extend(spoiled);
            }
            masked(role, frames)
        },
    )
}

fn masked(role: Role, frames: Vec<(u8, Vec<u8>)>) -> impl Strategy<Value = Vec<RawFrame>> {
    let count = frames.len();
    // Wrongly masked or unmasked: once in a hundred frames.
    let keys = prop::collection::vec((any::<[u8; 4]>(), prop::bool::weighted(0.01)), count);
    keys.prop_map(move |keys| {
        let frames = frames.iter().cloned().zip(keys);
        frames
            .map(|((first, payload), (key, wrong))| {
                let mask = ((role == Role::Server) != wrong).then_some(key);
                RawFrame { first, mask, payload }
            })
            .collect()
    })
}

/// A payload with a length around those at which the length changes its form.
fn part() -> impl Strategy<Value = Vec<u8>> {
    let bytes = |size| prop::collection::vec(any::<u8>(), size);
    prop_oneof![8 => bytes(0..20), 2 => bytes(120..132), 1 => bytes(300..400)]
}

/// Valid text from any bytes, most of it beyond ASCII.
fn text_of(bytes: &[u8]) -> Vec<u8> {
    let chars = bytes.iter().map(|&byte| match byte % 4 {
        0 => char::from(byte % 128),
        1 => 'é',
        2 => 'ی',
        _ => '🦅',
    });
    chars.collect::<String>().into_bytes()
}

/// A frame that may break the rules, at any place.
fn spoiled() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let close = (prop_oneof![990_u16..1020, 2990_u16..3010, 4990_u16..5010], any::<bool>());
    prop_oneof![
        (any::<u8>(), part()),
        (Just(0x81), prop::collection::vec(any::<u8>(), 0..8)),
        (Just(0x01), prop::collection::vec(any::<u8>(), 0..8)),
        Just((0x88, Vec::new())),
        close.prop_map(|(code, valid)| {
            let reason = if valid { "bye é".as_bytes() } else { &[0xff] };
            (0x88, [&code.to_be_bytes(), reason].concat())
        }),
    ]
}
