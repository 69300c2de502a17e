//! Payloads: the application puts a unique number into each, which identifies it on arrival.

use std::fmt::Write;

use simurgh_proto::message::Payload;

/// The response of a bare `ok`.
pub(crate) const EMPTY: u32 = u32::MAX;
/// A payload that cannot have been made here.
pub(crate) const STRANGE: u32 = u32::MAX - 1;
/// `{"reason":…}`, by the word.
pub(crate) const UNMATCHED: u32 = u32::MAX - 2;
/// The reason of a join beyond the most channels of a socket.
pub(crate) const TOO_MANY: u32 = u32::MAX - 3;
pub(crate) const JOIN_CRASHED: u32 = u32::MAX - 4;
pub(crate) const JOIN_TIMED_OUT: u32 = u32::MAX - 5;
pub(crate) const CHANNEL_CRASH: u32 = u32::MAX - 6;
pub(crate) const TOO_LONG: u32 = u32::MAX - 8;
pub(crate) const TOO_LARGE: u32 = u32::MAX - 9;
/// The reason of a message whose broadcast cannot be sent.
pub(crate) const REFUSED: u32 = u32::MAX - 10;

pub(crate) const UNCONFIRMED: u32 = u32::MAX - 11;
pub(crate) const NOT_STORED: u32 = u32::MAX - 12;
pub(crate) const BAD_RESUME: u32 = u32::MAX - 13;

/// Payloads of presence are numbered from their content, above all numbers of the application.
const PRESENCE: u32 = 1 << 30;
/// The same for payloads of exceeded rates.
const LIMITED: u32 = 1 << 29;

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
    match bytes {
        b"{}" => EMPTY,
        b"{\"reason\":\"unmatched topic\"}" => UNMATCHED,
        b"{\"reason\":\"too many channels joined\"}" => TOO_MANY,
        b"{\"reason\":\"join crashed\"}" => JOIN_CRASHED,
        b"{\"reason\":\"join timed out\"}" => JOIN_TIMED_OUT,
        b"{\"reason\":\"channel_crash\"}" => CHANNEL_CRASH,
        b"{\"reason\":\"topic or join_ref too long\"}" => TOO_LONG,
        b"{\"reason\":\"payload_too_large\"}" => TOO_LARGE,
        b"{\"reason\":\"unconfirmed\"}" => UNCONFIRMED,
        b"{\"reason\":\"not stored\"}" => NOT_STORED,
        b"{\"reason\":\"bad resume\"}" => BAD_RESUME,
        _ if bytes.starts_with(b"{\"reason\":\"payload_too_large\",\"limit\":")
            || bytes.starts_with(b"{\"reason\":\"broadcast_refused\"") =>
        {
            REFUSED
        }
        _ if bytes.starts_with(b"{\"reason\":\"rate_limited\"") => {
            LIMITED | (hashed(0, bytes) >> 35) as u32
        }
        _ if is_of_presence(bytes) => PRESENCE | (hashed(0, bytes) >> 34) as u32,
        _ => STRANGE,
    }
}

fn is_of_presence(bytes: &[u8]) -> bool {
    const BEGINS: [&[u8]; 2] = [b"{\"joins\":", b"{\"count\":"];
    let metas = || bytes.windows(10).take(64).any(|it| it == b":{\"metas\":");
    BEGINS.iter().any(|it| bytes.starts_with(it)) || metas()
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
