//! The part of DER (X.690) with the kind of key in a PEM file.

use super::Algorithm;

/// A public key of a `SubjectPublicKeyInfo` (RFC 5280 §4.1.2.7): what it is for, and its bytes.
pub(super) fn public_key(spki: &[u8]) -> Option<(Option<Algorithm>, &[u8])> {
    let (content, []) = element(spki, SEQUENCE)? else { return None };
    let (algorithm, rest) = element(content, SEQUENCE)?;
    let (bits, []) = element(rest, BIT_STRING)? else { return None };
    // The first byte is the number of unused bits of the last.
    let key = bits.strip_prefix(&[0])?;
    Some((purpose(algorithm)?, key))
}

/// The algorithm that a private key in PKCS #8 (RFC 5958 §2) is for.
pub(super) fn private_key_purpose(pkcs8: &[u8]) -> Option<Option<Algorithm>> {
    let (content, []) = element(pkcs8, SEQUENCE)? else { return None };
    let (_version, rest) = element(content, INTEGER)?;
    let (algorithm, _) = element(rest, SEQUENCE)?;
    purpose(algorithm)
}

/// Modulus and exponent of an `RSAPublicKey` (RFC 8017 A.1.1), without leading zeros.
pub(super) fn rsa_public_key(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (content, []) = element(der, SEQUENCE)? else { return None };
    let (modulus, rest) = element(content, INTEGER)?;
    let (exponent, []) = element(rest, INTEGER)? else { return None };
    Some((unsigned(modulus), unsigned(exponent)))
}

pub(super) fn unsigned(bytes: &[u8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes.get(zeros..).unwrap_or_default()
}

/// By the object identifiers of RFC 8017, RFC 5480 and RFC 8410; none within for another curve, or
/// a key that is not for signatures.
fn purpose(algorithm: &[u8]) -> Option<Option<Algorithm>> {
    let (identifier, parameters) = element(algorithm, OBJECT_IDENTIFIER)?;
    Some(match (identifier, element(parameters, OBJECT_IDENTIFIER)) {
        (RSA_ENCRYPTION, _) => Some(Algorithm::Rs256),
        (ED25519, _) => Some(Algorithm::EdDsa),
        (EC_PUBLIC_KEY, Some((PRIME256V1, []))) => Some(Algorithm::Es256),
        _ => None,
    })
}

/// The content of the first element, which must have this tag, and the rest.
pub(crate) fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, rest) = bytes.split_first()?;
    let (length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(*length), rest),
        0x81 => rest.split_first().map(|(length, rest)| (usize::from(*length), rest))?,
        0x82 => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        // Longer than any key.
        _ => return None,
    };
    if *found == tag { rest.split_at_checked(length) } else { None }
}

pub(crate) const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OBJECT_IDENTIFIER: u8 = 0x06;
pub(crate) const SEQUENCE: u8 = 0x30;

const RSA_ENCRYPTION: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const PRIME256V1: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
