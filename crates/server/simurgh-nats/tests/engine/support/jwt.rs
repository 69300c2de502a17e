//! Keys and tokens of NATS, as `nsc` makes them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};

const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// An nkey, of an operator, an account or a user.
pub(crate) struct Key {
    kind: u8,
    bytes: [u8; 32],
    pair: Ed25519KeyPair,
}

impl Key {
    pub(crate) fn operator(byte: u8) -> Self {
        Self::new(14, byte)
    }

    pub(crate) fn account(byte: u8) -> Self {
        Self::new(0, byte)
    }

    pub(crate) fn user(byte: u8) -> Self {
        Self::new(20, byte)
    }

    fn new(letter: u8, byte: u8) -> Self {
        let bytes = [byte; 32];
        let pair = Ed25519KeyPair::from_seed_unchecked(&bytes).unwrap();
        Self { kind: letter << 3, bytes, pair }
    }

    pub(crate) fn public(&self) -> String {
        let mut bytes = vec![self.kind];
        bytes.extend_from_slice(self.pair.public_key().as_ref());
        base32(bytes)
    }

    pub(crate) fn seed(&self) -> String {
        let mut bytes = vec![18 << 3 | self.kind >> 5, self.kind << 3];
        bytes.extend_from_slice(&self.bytes);
        base32(bytes)
    }

    /// A token for another key, signed with this one.
    pub(crate) fn token(&self, about: &Self, name: &str, nats: Value) -> String {
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let head = part(json!({ "typ": "JWT", "alg": "ed25519-nkey" }));
        let body = part(json!({
            "jti": name, "iat": 1_700_000_000, "iss": self.public(), "name": name,
            "sub": about.public(), "nats": nats,
        }));
        let signed = format!("{head}.{body}");
        let signature = URL_SAFE_NO_PAD.encode(self.pair.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }
}

fn base32(mut bytes: Vec<u8>) -> String {
    let mut sum = 0_u16;
    for byte in &bytes {
        sum ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            sum = if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x1021 };
        }
    }
    bytes.extend_from_slice(&sum.to_le_bytes());
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |it| it >> (7 - at % 8) & 1);
    let chars = (0..(bytes.len() * 8).div_ceil(5)).map(|char| {
        let value = (0..5).fold(0, |value, at| value << 1 | bit(char * 5 + at));
        char::from(ALPHABET[usize::from(value)])
    });
    chars.collect()
}
