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
/// Beginnings of compressed files: gzip (RFC 1952), xz, bzip2.
const COMPRESSED: [&[u8]; 3] = [&[0x1f, 0x8b, 8], b"\xfd7zXZ\0", b"BZh"];
/// The shortest text that may encode the beginning of a key.
const RUN_MIN: usize = 16;
/// Names of algorithms in DER, which stand near the beginning of a key: RSA, elliptic curves (RFC
/// 5480), Ed25519 and Ed448 (RFC 8410).
const ALGORITHMS: [&[u8]; 4] = [
    b"\x2a\x86\x48\x86\xf7\x0d\x01\x01",
    b"\x2a\x86\x48\xce\x3d\x02\x01",
    b"\x06\x03\x2b\x65\x70",
    b"\x06\x03\x2b\x65\x71",
];
/// The mark of UTF-8, which editors of Windows write before a text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Texts of keys without white space and quotes, and what they belong to.
const MARKS: &[(&str, &str)] = &[
    ("----BEGIN", "a key in PEM"),
    ("kty:", "a JSON Web Key"),
    ("kty=", "a JSON Web Key"),
    ("alg:", "a token or a JSON Web Key"),
    ("sb_publishable_", "a public key of Supabase"),
    ("65537", "an RSA key as text"),
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
            "it is {form}, perhaps encoded, not a secret: use PEM or a JWK set for keys"
        )));
    }
    if secret.starts_with(BYTE_ORDER_MARK) {
        return Err(KeyError::new(
            "the secret begins with a byte order mark: save the file as UTF-8 without BOM",
        ));
    }
    Ok(())
}

/// The form of a key in these bytes, which may be encoded `depth` times.
fn form(bytes: &[u8], depth: usize) -> Option<&'static str> {
    if is_der(bytes) {
        return Some("a key in DER");
    }
    if COMPRESSED.iter().any(|mark| bytes.starts_with(mark)) {
        return Some("a compressed file");
    }
    let has = |mark: &&[u8]| bytes.windows(mark.len()).any(|window| window == *mark);
    if ALGORITHMS.iter().any(has) {
        return Some("a key in DER");
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

/// The possible decodings of a text: percent signs, hexadecimal digits with or without separators,
/// and base64 of either alphabet, alone or after other text.
fn decoded(text: &str) -> Vec<Vec<u8>> {
    let digits = text.replace("0x", "").replace([':', ',', '-', ';'], "");
    let mut all: Vec<Vec<u8>> = Vec::new();
    if text.is_ascii() && text.contains('%') {
        all.push(percent_decode_str(text).collect());
    }
    for run in digits.split(|char: char| !char.is_ascii_hexdigit()) {
        all.extend(shifted(run, 2).map(hex));
    }
    for run in text.split(|char: char| !char.is_ascii_alphanumeric() && !"+/-_".contains(char)) {
        let run = run.replace('-', "+").replace('_', "/");
        all.extend(shifted(&run, 4).filter_map(|part| BASE64.decode(part).ok()));
    }
    all
}

/// A run of digits without its first ones, up to a group of them, and without a last one that is
/// alone.
fn shifted(run: &str, group: usize) -> impl Iterator<Item = &str> {
    let parts = (0..group).filter_map(|from| run.get(from..));
    let parts =
        parts.filter_map(move |part| part.get(..part.len() - usize::from(part.len() % group == 1)));
    parts.filter(|part| part.len() >= RUN_MIN)
}

fn hex(text: &str) -> Vec<u8> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).unwrap_or_default() as u8;
    text.as_bytes()
        .chunks(2)
        .map(|pair| pair.iter().fold(0, |all, one| all << 4 | digit(one)))
        .collect()
}

/// Whether they are a sequence of DER that begins with one or with a number, and no text, where a
/// 0 is the tag of a sequence. The final line break may be cut off, and anything may follow.
fn is_der(bytes: &[u8]) -> bool {
    let whole = [bytes, b"\r\n"].concat();
    let Some((content, _)) = der::element(&whole, der::SEQUENCE) else { return false };
    let is_key = |tag: &u8| der::element(content, *tag).is_some();
    content.len() >= DER_BYTES_MIN
        && !bytes.is_ascii()
        && [der::SEQUENCE, der::INTEGER].iter().any(is_key)
}
