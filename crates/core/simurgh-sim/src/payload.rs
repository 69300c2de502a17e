//! Payloads: the application puts a unique number into each, which identifies it on arrival.

use std::fmt::Write;

use simurgh_proto::message::Payload;

/// The response of a bare `ok`.
pub(crate) const EMPTY: u32 = u32::MAX;
/// The reason of a message whose broadcast cannot be sent.
pub(crate) const REFUSED: u32 = u32::MAX - 1;
/// Others without a number have a hash of their text, above all numbers.
const HASHED: u32 = 1 << 30;

/// A running hash: eight bytes at a time.
pub(crate) fn hashed(hash: u64, bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, rest) = bytes.as_chunks::<8>();
    let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    let hash = words.iter().fold(hash, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    let rest = rest.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    mix(hash, rest ^ bytes.len() as u64)
}

/// Makes a payload with a number, a word for the application, and this many bytes more.
pub(crate) fn make(id: u32, word: u32, pad: usize, is_binary: bool) -> Payload<'static> {
    let mut text = String::with_capacity(40 + pad);
    // Writing to a string does not fail.
    let _ = write!(text, "{{\"i\":{id},\"s\":{word}");
    if pad > 0 {
        text.push_str(",\"p\":\"");
        text.push_str(&"p".repeat(pad));
        text.push('"');
    }
    text.push('}');
    if is_binary { Payload::from_bytes(text.into_bytes()) } else { Payload::from_json(text) }
}

pub(crate) fn parse(payload: &Payload<'_>) -> (u32, u32) {
    let bytes = payload.data();
    if !bytes.starts_with(b"{\"i\":") {
        return (said(bytes), 0);
    }
    let (id, rest) = number(bytes.get(5..).unwrap_or_default());
    (id, number(rest.get(5..).unwrap_or_default()).0)
}

/// A hash of its bytes, and of whether they are text.
pub(crate) fn sum(payload: &Payload<'_>) -> u32 {
    let hash = hashed(u64::from(payload.binary().is_some()), payload.data());
    (hash >> 32) as u32
}

/// The number of a payload that has none of its own.
pub(crate) fn said(bytes: &[u8]) -> u32 {
    const REFUSALS: [&[u8]; 2] =
        [b"{\"reason\":\"payload_too_large\",\"limit\":", b"{\"reason\":\"broadcast_refused\""];
    match bytes {
        b"{}" => EMPTY,
        _ if REFUSALS.iter().any(|text| bytes.starts_with(text)) => REFUSED,
        _ => HASHED | (hashed(0, bytes) >> 34) as u32,
    }
}

/// The number of `{"reason":…}`.
pub(crate) fn reason(text: &str) -> u32 {
    said(format!(r#"{{"reason":"{text}"}}"#).as_bytes())
}

/// The value behind a name in JSON text, without quotes.
pub(crate) fn field<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let rest = json.split_once(name)?.1;
    rest.split(['"', ',', '}']).find(|it| !it.is_empty())
}

/// Splits the number from the beginning.
pub(crate) fn number(bytes: &[u8]) -> (u32, &[u8]) {
    let len = bytes.iter().take_while(|it| it.is_ascii_digit()).count();
    let (digits, rest) = bytes.split_at(len);
    let add = |sum: u32, digit: &u8| sum.wrapping_mul(10).wrapping_add(u32::from(digit - b'0'));
    (digits.iter().fold(0, add), rest)
}
