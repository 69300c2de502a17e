//! What the bytes of a key are: recognised positively, never by default.
//!
//! A public key that is taken for a secret lets everybody sign who can read it. So a text is the
//! secret of HS256 only if the configuration says so, or if it is one line that no format of keys
//! has.

use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::error::KeyError;
use crate::verifier::KeySource;

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const BASE64: GeneralPurpose = GeneralPurpose::new(&STANDARD, LENIENT);
const BASE64URL: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, LENIENT);

/// Bytes of a bare public key of Ed25519 or X25519, and of as many random ones.
const BARE_BYTES: usize = 32;
/// Bytes of a bare point of P-256, which begins with this byte.
const POINT_BYTES: usize = 65;
const POINT: u8 = 4;
/// The tag of a sequence, with which all keys in DER begin.
const SEQUENCE: u8 = 0x30;

const SSH: &[&str] = &["ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-", "PuTTY-"];

impl KeySource {
    /// Recognises keys: PEM, JSON, or a secret. With `is_secret` the caller says that it is the
    /// secret of HS256; without, a text is one only if it is a line of printable characters that is
    /// no key, and cannot be a bare one.
    ///
    /// # Errors
    /// Keys in another form, whatever the caller says, and what is not recognised.
    pub fn recognise(bytes: &[u8], is_secret: bool) -> Result<Self, KeyError> {
        let text = std::str::from_utf8(bytes).ok();
        let text = text.map(|text| text.trim_start_matches('\u{feff}').trim_start());
        match text {
            Some(text) if text.starts_with('{') => return Ok(Self::Jwks(text.to_owned())),
            Some(text) if text.starts_with('[') => {
                let why = "it is a list of keys: a set is {\"keys\": [ … ]}";
                return Err(KeyError::new(why));
            }
            Some(text) if text.contains("-----BEGIN ") => return Ok(Self::Pem(text.to_owned())),
            _ => {}
        }
        refuse_key(bytes)?;
        if is_secret || text.is_some_and(is_line) {
            return Ok(Self::Secret(bytes.to_vec()));
        }
        Err(KeyError::new(
            "it is neither PEM nor JSON, and might be a bare public key. If it is the secret of \
             HS256, say so: algorithms = [\"HS256\"], or --secret on the command line",
        ))
    }
}

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
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) || bytes.contains(&0) {
        return Some("a text in UTF-16, or binary");
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
    size >= BARE_BYTES && size == content.len()
}

/// Whether a text is one line, and not one in which bare keys are written.
fn is_line(text: &str) -> bool {
    let text = text.trim_end();
    let is_printable = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    let is_digit = |byte: u8| byte.is_ascii_hexdigit() || b": ".contains(&byte);
    let is_bare = |bytes: &Vec<u8>| bytes.len() == BARE_BYTES;
    !text.starts_with('<')
        && text.bytes().all(is_printable)
        && !(text.contains([':', ' ']) && text.bytes().all(is_digit))
        && !decoded(text).iter().any(is_bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPKI: &str = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEEVs/o5+uQbTjL3chynL4wXgUg2R9q9UU8I5mEovUf86QZ7kOBIjJwqnzD1omageEHWwHdBO6B+dFabmdT9POxg==";
    /// As `mix phx.gen.secret` makes it.
    const SECRET: &str = "jzC8A6PhPYq2PrSqDGjbUqmPoA0hV8Vb1c0nF9f3kM0QbZf1Zc0T1u6vN8tq2XyR";

    fn kind(bytes: impl AsRef<[u8]>, is_secret: bool) -> String {
        match KeySource::recognise(bytes.as_ref(), is_secret) {
            Ok(source) => format!("{source:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn no_form_of_a_public_key_is_a_secret_whatever_the_caller_says() {
        let der = BASE64.decode(SPKI).unwrap();
        let hex: String = der.iter().map(|byte| format!("{byte:02x}")).collect();
        let point = BASE64.encode(&der[der.len() - 65..]);
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{SPKI}\n-----END PUBLIC KEY-----\n");
        let utf16: Vec<u8> = pem.encode_utf16().flat_map(|unit| unit.to_le_bytes()).collect();
        let jwk = r#"{"kty":"EC","crv":"P-256","x":"EVs","y":"9KI"}"#;
        for is_secret in [false, true] {
            for form in [
                SPKI.as_bytes(),
                &der,
                hex.as_bytes(),
                hex.to_uppercase().as_bytes(),
                point.as_bytes(),
                BASE64URL.encode(&der).as_bytes(),
                BASE64.encode(&pem).as_bytes(),
                BASE64.encode(jwk).as_bytes(),
                &utf16,
                b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8x user@host",
                b"ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTY= user@host",
                b"AAAAC3NzaC1lZDI1NTE5AAAAIDQVjXOLPE0oBs3zbbQZb3sBz6yb7uG+PZUj6Vd5Cb7t",
                b"---- BEGIN SSH2 PUBLIC KEY ----\nAAAA\n---- END SSH2 PUBLIC KEY ----",
                format!("[{jwk}]").as_bytes(),
            ] {
                let found = kind(form, is_secret);
                assert!(found != "Secret", "{}", String::from_utf8_lossy(form));
            }
            assert_eq!(kind(format!("\u{feff}{pem}"), is_secret), "Pem");
            assert_eq!(kind(format!("my key\n{pem}"), is_secret), "Pem");
            assert_eq!(kind(format!("\u{feff} {jwk}"), is_secret), "Jwks");
        }
    }

    #[test]
    fn one_line_is_a_secret_unless_it_may_be_a_bare_key() {
        let supabase = BASE64.encode([7; 64]);
        let phrase = "a passphrase of more than thirty-two characters";
        for secret in [SECRET, &supabase, phrase, "0123456789abcdef0123456789abcdef0"] {
            assert_eq!(kind(secret, false), "Secret", "{secret}");
        }
        let hex_of_32 = "0123456789abcdef".repeat(4);
        let base64_of_32 = BASE64.encode([7; 32]);
        let colons = "04:5b".repeat(12);
        let lines = "untrusted comment: a key of minisign\nRWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1";
        for said in [&*hex_of_32, &base64_of_32, &colons, lines] {
            assert!(kind(said, false).contains("algorithms = [\"HS256\"]"), "{said}");
            assert_eq!(kind(said, true), "Secret", "{said}");
        }
    }
}
