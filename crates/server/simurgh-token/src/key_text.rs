//! Keys in forms that are no secret, whatever the configuration says.
//!
//! If a public key were taken for a secret, everybody who can read it could sign. So a secret is
//! decoded a few times, and refused if a mark of a key is found at any step.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use percent_encoding::percent_decode_str;

use crate::error::KeyError;
use crate::jwt::der;

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(&STANDARD, LENIENT);

/// How often a key may be encoded.
const DEPTH: usize = 3;
/// The least bytes of a key in DER.
const DER_BYTES_MIN: usize = 32;
/// Bytes of a bare point of P-256, which begins with this byte.
const POINT_BYTES: usize = 65;
const POINT: u8 = 4;
/// RFC 1952: two bytes of identification, and the only method of compression.
const GZIP: &[u8] = &[0x1f, 0x8b, 8];
/// The mark of UTF-8, which editors of Windows write before a text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Texts of keys without white space and quotes, and what they belong to.
const MARKS: &[(&str, &str)] = &[
    ("----BEGIN", "a key in PEM"),
    ("kty:", "a JSON Web Key"),
    ("Public-Key:", "a key as `openssl -text` prints it"),
    ("Private-Key:", "a key as `openssl -text` prints it"),
    ("Modulus", "an RSA key as text or XML"),
    ("KeyValue>", "a key in XML"),
    ("ssh-rsa", "a key of SSH"),
    ("ssh-dss", "a key of SSH"),
    ("ssh-ed25519", "a key of SSH"),
    ("ecdsa-sha2-", "a key of SSH"),
    ("PuTTY-User-Key", "a key of SSH"),
];

/// Refuses a secret that is a key in some form, public or private.
pub(crate) fn refuse_key(secret: &[u8]) -> Result<(), KeyError> {
    let text = std::str::from_utf8(secret).unwrap_or_default().trim_start();
    let form = if is_utf16(secret) {
        Some("a text in UTF-16")
    } else if text.starts_with('{') || text.starts_with("[{") {
        Some("JSON")
    } else {
        form(secret, DEPTH)
    };
    if let Some(form) = form {
        return Err(KeyError::new(format!(
            "it is {form}, perhaps encoded, and no secret: give keys as PEM or as a JWK set"
        )));
    }
    if secret.starts_with(BYTE_ORDER_MARK) {
        return Err(KeyError::new(
            "the secret begins with a byte order mark, which other programs leave out: save the \
             file as UTF-8 without BOM",
        ));
    }
    Ok(())
}

/// The form of a key in these bytes, which may be encoded `depth` times.
fn form(bytes: &[u8], depth: usize) -> Option<&'static str> {
    if is_der(bytes) {
        return Some("a key in DER");
    }
    if bytes.starts_with(GZIP) {
        return Some("a file of gzip");
    }
    if depth < DEPTH && bytes.len() == POINT_BYTES && bytes.first() == Some(&POINT) {
        return Some("a bare public key");
    }
    let text = packed(bytes);
    let found = MARKS.iter().find(|(mark, _)| text.contains(mark)).map(|(_, form)| *form);
    let depth = depth.checked_sub(1);
    found.or_else(|| decoded(&text).iter().find_map(|bytes| form(bytes, depth?)))
}

/// Whether each second byte is zero.
fn is_utf16(bytes: &[u8]) -> bool {
    let is_marked = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
    let bytes = bytes.get(usize::from(is_marked) * 2..).unwrap_or_default();
    let is_zero = |at: usize| bytes.iter().skip(at).step_by(2).all(|byte| *byte == 0);
    bytes.len() > 1 && (is_zero(0) || is_zero(1))
}

/// A text without white space, quotes, escapes and byte order marks.
fn packed(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).replace("\\n", "").replace("\\r", "");
    text.replace(|char: char| char.is_whitespace() || "\"'\\\0\u{feff}".contains(char), "")
}

/// What a text may encode: in percent signs, in hexadecimal digits with or without separators, and
/// in base64 of either alphabet, alone or between other things.
fn decoded(text: &str) -> Vec<Vec<u8>> {
    let digits = text.replace("0x", "").replace([':', ',', '-', ';'], "");
    let mut all: Vec<Vec<u8>> = hex(&digits).into_iter().collect();
    if text.is_ascii() && text.contains('%') {
        all.push(percent_decode_str(text).collect());
    }
    for run in text.split(|char: char| !char.is_ascii_alphanumeric() && !"+/-_".contains(char)) {
        all.extend(hex(run));
        all.extend(BASE64.decode(run.replace('-', "+").replace('_', "/")).ok());
    }
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

/// Whether they are a sequence of DER that begins with one or with a number, and no text, where a
/// 0 is the tag of a sequence. The final line break may be cut off, and blanks may follow.
fn is_der(bytes: &[u8]) -> bool {
    let whole = [bytes, b"\r\n"].concat();
    let Some((content, rest)) = der::element(&whole, der::SEQUENCE) else { return false };
    let is_key = |tag: &u8| der::element(content, *tag).is_some();
    content.len() >= DER_BYTES_MIN
        && !bytes.is_ascii()
        && [der::SEQUENCE, der::INTEGER].iter().any(is_key)
        && rest.iter().all(|byte| byte.is_ascii_whitespace() || *byte == 0)
}
