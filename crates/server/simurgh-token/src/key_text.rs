//! Keys in forms that are no secret, whatever the configuration says.
//!
//! A public key that is taken for a secret lets everybody sign who can read it.

use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::error::KeyError;

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(&STANDARD, LENIENT);
pub(crate) const BASE64URL: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, LENIENT);

/// The least bytes of a key in DER.
const DER_BYTES_MIN: usize = 32;
/// Bytes of a bare point of P-256, which begins with this byte.
const POINT_BYTES: usize = 65;
const POINT: u8 = 4;
/// The tag of a sequence, with which all keys in DER begin.
const SEQUENCE: u8 = 0x30;

const SSH: &[&str] = &["ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-", "PuTTY-"];

/// Refuses a secret that is a key in some form, public or private.
pub(crate) fn refuse_key(secret: &[u8]) -> Result<(), KeyError> {
    match form(secret) {
        None => Ok(()),
        Some(form) => Err(KeyError::new(format!(
            "it is {form}, which is no secret: give keys as PEM or as a JWK set"
        ))),
    }
}

/// The form of a key that is not a secret.
fn form(bytes: &[u8]) -> Option<&'static str> {
    if is_der(bytes) {
        return Some("a key in DER");
    }
    if is_utf16(bytes) {
        return Some("a text in UTF-16");
    }
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    if text.contains("-----BEGIN ") {
        return Some("a key in PEM");
    }
    if text.starts_with('{') || text.starts_with("[{") {
        return Some("JSON");
    }
    if text.starts_with("---- BEGIN SSH2")
        || text.split_whitespace().any(|word| SSH.iter().any(|begin| word.starts_with(begin)))
    {
        return Some("a key of SSH");
    }
    decoded(text).into_iter().find_map(|bytes| of_decoded(&bytes))
}

/// Whether a text is in UTF-16: it says so, or each second byte is zero.
fn is_utf16(bytes: &[u8]) -> bool {
    let is_zero = |at: usize| bytes.iter().skip(at).step_by(2).all(|byte| *byte == 0);
    let is_marked = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
    is_marked || (bytes.len() > 1 && (is_zero(0) || is_zero(1)))
}

fn of_decoded(bytes: &[u8]) -> Option<&'static str> {
    if is_der(bytes) {
        return Some("a key in DER, encoded");
    }
    // An SSH key begins with the length of its kind.
    if bytes.starts_with(&[0, 0, 0]) && bytes.get(4..).is_some_and(|kind| kind.starts_with(b"ssh-"))
        || bytes.get(4..).is_some_and(|kind| kind.starts_with(b"ecdsa-sha2-"))
    {
        return Some("a key of SSH, encoded");
    }
    if bytes.starts_with(b"{\"") || bytes.starts_with(b"-----BEGIN ") {
        return Some("a key, encoded");
    }
    (bytes.len() == POINT_BYTES && bytes.first() == Some(&POINT)).then_some("a bare public key")
}

/// The bytes that a text may encode, in base64 of either alphabet and in hexadecimal digits.
fn decoded(text: &str) -> Vec<Vec<u8>> {
    let packed: String = text.chars().filter(|char| !char.is_whitespace()).collect();
    let mut all: Vec<Vec<u8>> = Vec::new();
    all.extend(BASE64.decode(&packed).ok());
    all.extend(BASE64URL.decode(&packed).ok());
    all.extend(hex(&packed));
    all
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| match pair {
        [high, low] => u8::try_from(digit(high)? * 16 + digit(low)?).ok(),
        _ => None,
    };
    pairs.map(byte).collect()
}

/// Whether a sequence of DER has exactly these bytes.
fn is_der(bytes: &[u8]) -> bool {
    let [SEQUENCE, length, rest @ ..] = bytes else { return false };
    let (size, content) = match length {
        0x81..=0x84 => {
            let (size, content) =
                rest.split_at_checked(usize::from(length - 0x80)).unwrap_or_default();
            (size.iter().fold(0_usize, |all, byte| all << 8 | usize::from(*byte)), content)
        }
        length => (usize::from(*length), rest),
    };
    size >= DER_BYTES_MIN && size == content.len()
}
