//! Keys of NATS users: seeds in base 32, and signatures.
//!
//! A seed is 58 characters of base 32 (RFC 4648 §6, no padding): two bytes for its type, 32 of an
//! Ed25519 seed, and a CRC-16 (XMODEM, little endian) of both.
//! <https://docs.nats.io/running-a-nats-service/configuration/securing_nats/auth_intro/nkey_auth>

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use data_encoding::BASE32_NOPAD;
use ring::signature::{Ed25519KeyPair, KeyPair};

const SEED: u8 = 18 << 3;
const USER: u8 = 20 << 3;

pub(crate) struct Nkey(Ed25519KeyPair);

/// Why credentials are refused; shows no part of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadCredentials {
    /// Not 58 characters of base 32, or its sum is wrong.
    #[error("the nkey's seed is invalid: it must have 58 characters and begin with SU")]
    Seed,
    /// A seed of another type than a user's.
    #[error("the nkey's seed is not a user's: it must begin with SU")]
    NotUser,
    #[error("the credentials are not a .creds file with a user's token and seed")]
    Creds,
}

impl Nkey {
    /// The key of a user's seed, `SU…`.
    ///
    /// # Errors
    /// It is not a user's seed.
    pub(crate) fn of_seed(seed: &str) -> Result<Self, BadCredentials> {
        let bytes = BASE32_NOPAD.decode(seed.trim().as_bytes()).ok();
        let bytes: [u8; 36] =
            bytes.and_then(|it| it.try_into().ok()).ok_or(BadCredentials::Seed)?;
        let (&[first, second, ref seed @ ..], sum) = (&bytes[..34], &bytes[34..]) else {
            return Err(BadCredentials::Seed);
        };
        if first & 0xf8 != SEED || sum != crc16(&bytes[..34]).to_le_bytes() {
            return Err(BadCredentials::Seed);
        }
        if (first & 7) << 5 | second >> 3 != USER {
            return Err(BadCredentials::NotUser);
        }
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| BadCredentials::Seed)?;
        Ok(Self(pair))
    }

    /// `U…`, as in the server's configuration.
    pub(crate) fn public(&self) -> String {
        let mut bytes = vec![USER];
        bytes.extend_from_slice(self.0.public_key().as_ref());
        let sum = crc16(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        BASE32_NOPAD.encode(&bytes)
    }

    /// The signature of the server's challenge for CONNECT.
    pub(crate) fn sign(&self, nonce: &str) -> String {
        URL_SAFE_NO_PAD.encode(self.0.sign(nonce.as_bytes()))
    }
}

/// The user's token and the seed in the text of a `.creds` file.
///
/// # Errors
/// One of them is missing.
pub(crate) fn parts_of_creds(text: &str) -> Result<(&str, &str), BadCredentials> {
    let block = |begin: &str, end: &str| {
        let (_, rest) = text.split_once(begin)?;
        let (_, rest) = rest.split_once('\n')?;
        let (inner, _) = rest.split_once(end)?;
        let inner = inner.trim_matches(|it: char| it.is_whitespace() || it == '-');
        (!inner.is_empty() && !inner.contains(char::is_whitespace)).then_some(inner)
    };
    let token = block("BEGIN NATS USER JWT", "END NATS USER JWT");
    let seed = block("BEGIN USER NKEY SEED", "END USER NKEY SEED");
    token.zip(seed).ok_or(BadCredentials::Creds)
}

/// XMODEM's: polynomial 0x1021, from 0.
fn crc16(bytes: &[u8]) -> u16 {
    let mut sum = 0_u16;
    for byte in bytes {
        sum ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            sum = if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x1021 };
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the documentation of NATS: public and worthless.
    const SEED_TEXT: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
    const PUBLIC: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";

    #[test]
    fn documented_seed_has_its_documented_key() {
        assert_eq!(Nkey::of_seed(SEED_TEXT).map(|it| it.public()).unwrap(), PUBLIC);
        assert_eq!(Nkey::of_seed(&format!(" {SEED_TEXT}\n")).unwrap().public(), PUBLIC);
    }

    #[test]
    fn changed_seed_is_invalid() {
        for place in 0..SEED_TEXT.len() {
            let mut changed = SEED_TEXT.to_owned().into_bytes();
            changed[place] = if changed[place] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(Nkey::of_seed(&changed).is_err(), "{changed}");
        }
        assert_eq!(Nkey::of_seed(PUBLIC).err(), Some(BadCredentials::Seed));
        assert_eq!(Nkey::of_seed("").err(), Some(BadCredentials::Seed));
    }

    #[test]
    fn account_seed_is_not_a_user_seed() {
        let mut bytes = BASE32_NOPAD.decode(SEED_TEXT.as_bytes()).unwrap();
        bytes[0] = SEED;
        bytes[1] = 0;
        let sum = crc16(&bytes[..34]);
        bytes[34..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(
            Nkey::of_seed(&BASE32_NOPAD.encode(&bytes)).err(),
            Some(BadCredentials::NotUser)
        );
    }

    #[test]
    fn creds_file_has_two_parts() {
        let text = "-----BEGIN NATS USER JWT-----\neyJ0.eyJq.a-_b\n\
            ------END NATS USER JWT------\n\n***** IMPORTANT *****\n\
            NKEY Seed printed below can be used to sign.\n\n\
            -----BEGIN USER NKEY SEED-----\r\nSUAB\r\n------END USER NKEY SEED------\n\n*****\n";
        assert_eq!(parts_of_creds(text), Ok(("eyJ0.eyJq.a-_b", "SUAB")));
        assert_eq!(parts_of_creds(&text[..100]), Err(BadCredentials::Creds));
        assert_eq!(parts_of_creds(""), Err(BadCredentials::Creds));
    }
}
