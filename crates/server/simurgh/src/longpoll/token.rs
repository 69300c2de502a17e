//! The signed token of a long-poll session, which clients cannot forge.
//!
//! It has the form of Phoenix' tokens, which clients treat as opaque: `SFMyNTY.`, the claim, a dot,
//! the signature (HMAC-SHA256), in base64 for URLs without padding.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::SystemRandom;
use simurgh_core::Wire;
use simurgh_reactor::Key;
use simurgh_shard::mail::poll::Nonce;

use crate::secret::{self, fill};

/// `HS256`, as Phoenix writes it.
const HEADER: &str = "SFMyNTY";
/// Separates the keys of this use from others of the same secret.
const PURPOSE: &[u8] = b"simurgh long-poll session v1";
/// How long a token is valid: two weeks, as in Phoenix.
const AGE_MAX_S: u64 = 14 * 24 * 60 * 60;
/// The accepted difference between the clocks of two nodes.
const SKEW_MAX_S: u64 = 60;
const CLAIM_BYTES: usize = 48;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The run of the server that holds the session.
    pub(crate) node: u64,
    pub(crate) shard: u16,
    pub(crate) user_socket: u8,
    /// The serializer, so that messages can be decoded before they reach the shard.
    pub(crate) wire: Wire,
    pub(crate) key: Key,
    pub(crate) nonce: Nonce,
    /// Seconds since 1970.
    pub(crate) issued_s: u64,
    /// The number of the answer that it came with, if answers are counted; else 0.
    pub(crate) heard: u32,
}

pub(crate) struct Signer {
    key: hmac::Key,
    random: SystemRandom,
    pub(crate) node: u64,
}

impl Signer {
    /// With a key from this secret, or else a random one that ends with the server. Fails if the
    /// system has no random bytes.
    pub(crate) fn new(secret_key_base: Option<&str>) -> io::Result<Self> {
        let random = SystemRandom::new();
        let mut node = [0; 8];
        fill(&random, &mut node)?;
        let key = secret::key(secret_key_base, PURPOSE)?;
        Ok(Self { key, random, node: u64::from_be_bytes(node) })
    }

    /// Random bytes for a new session.
    pub(crate) fn nonce(&self) -> io::Result<Nonce> {
        let mut nonce = Nonce::default();
        fill(&self.random, &mut nonce).map(|()| nonce)
    }

    pub(crate) fn sign(&self, claim: &Claim) -> String {
        let mut token = format!("{HEADER}.");
        URL_SAFE_NO_PAD.encode_string(claim.bytes(), &mut token);
        let signature = hmac::sign(&self.key, token.as_bytes());
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature.as_ref(), &mut token);
        token
    }

    /// The claim of a token, if this key has signed it and it is not too old. Takes constant time.
    pub(crate) fn verify(&self, token: &str) -> Option<Claim> {
        self.verify_at(token, now_s())
    }

    fn verify_at(&self, token: &str, now_s: u64) -> Option<Claim> {
        let (signed, signature) = token.rsplit_once('.')?;
        let claim = signed.strip_prefix(HEADER)?.strip_prefix('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        hmac::verify(&self.key, signed.as_bytes(), &signature).ok()?;
        let claim = Claim::read(&URL_SAFE_NO_PAD.decode(claim).ok()?)?;
        let is_from_now_on = claim.issued_s > now_s + SKEW_MAX_S;
        (!is_from_now_on && claim.issued_s + AGE_MAX_S >= now_s).then_some(claim)
    }
}

impl Claim {
    fn bytes(&self) -> [u8; CLAIM_BYTES] {
        let Self { node, shard, user_socket, wire, key, nonce, issued_s, heard } = self;
        let mut bytes = [0; CLAIM_BYTES];
        let parts: [&[u8]; 9] = [
            &node.to_be_bytes(),
            &issued_s.to_be_bytes(),
            &shard.to_be_bytes(),
            &[*user_socket],
            &[*wire as u8],
            &key.slot.to_be_bytes(),
            &key.generation.to_be_bytes(),
            nonce,
            &heard.to_be_bytes(),
        ];
        for (to, from) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let claim = Self {
            node: u64::from_be_bytes(take(&mut rest)?),
            issued_s: u64::from_be_bytes(take(&mut rest)?),
            shard: u16::from_be_bytes(take(&mut rest)?),
            user_socket: u8::from_be_bytes(take(&mut rest)?),
            wire: wire(u8::from_be_bytes(take(&mut rest)?))?,
            key: Key {
                slot: u32::from_be_bytes(take(&mut rest)?),
                generation: u32::from_be_bytes(take(&mut rest)?),
            },
            nonce: take(&mut rest)?,
            heard: u32::from_be_bytes(take(&mut rest)?),
        };
        rest.is_empty().then_some(claim)
    }
}

/// Seconds since 1970.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*first)
}

/// Only the wires of Channels are allowed for polls.
fn wire(number: u8) -> Option<Wire> {
    [Wire::V1, Wire::V2].into_iter().find(|wire| *wire as u8 == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(signer: &Signer) -> Claim {
        Claim {
            node: signer.node,
            shard: 513,
            user_socket: 7,
            wire: Wire::V2,
            key: Key { slot: 70_000, generation: 80_000 },
            nonce: signer.nonce().unwrap(),
            issued_s: 1_000_000_000,
            heard: 90_000,
        }
    }

    #[test]
    fn poll_token_is_valid_for_two_weeks() {
        let signer = Signer::new(None).unwrap();
        let claim = claim(&signer);
        let token = signer.sign(&claim);
        assert!(token.starts_with("SFMyNTY.") && token.len() < 128, "{token}");
        let at = |now_s| signer.verify_at(&token, now_s);
        assert_eq!(at(claim.issued_s), Some(claim));
        assert_eq!(at(claim.issued_s - SKEW_MAX_S), Some(claim), "another node's clock");
        assert_eq!(at(claim.issued_s - SKEW_MAX_S - 1), None);
        assert_eq!(at(claim.issued_s + AGE_MAX_S), Some(claim));
        assert_eq!(at(claim.issued_s + AGE_MAX_S + 1), None);
        assert_eq!(signer.verify(&token), None, "long ago");
    }

    #[test]
    fn other_poll_tokens_are_refused() {
        let signer = Signer::new(None).unwrap();
        let claim = claim(&signer);
        let token = signer.sign(&claim);
        let is_taken = |token: &str| signer.verify_at(token, claim.issued_s).is_some();
        assert!(is_taken(&token));
        for at in 0..token.len() {
            for other in ["A", "B", ".", "é"] {
                let forged = format!("{}{other}{}", &token[..at], &token[at + 1..]);
                // The last character of base64 has unused bits, which must be 0.
                assert!(forged == token || !is_taken(&forged), "{forged}");
            }
            assert!(!is_taken(&token[..at]), "{at}");
        }
        let (signed, _) = token.rsplit_once('.').unwrap();
        let long = format!("{token}A");
        for forged in ["", ".", "..", "SFMyNTY..", signed, &format!("{signed}."), &long] {
            assert!(!is_taken(forged), "{forged}");
        }
        let other = Signer::new(None).unwrap();
        assert!(other.verify_at(&token, claim.issued_s).is_none(), "each server has its own key");
    }

    #[test]
    fn node_with_the_same_secret_reads_the_token() {
        let secret = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let (one, two) = (Signer::new(Some(secret)).unwrap(), Signer::new(Some(secret)).unwrap());
        let claim = claim(&one);
        assert_eq!(two.verify_at(&one.sign(&claim), claim.issued_s), Some(claim));
        assert_ne!(one.node, two.node, "and knows that the session is another's");
    }
}
