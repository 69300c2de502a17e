//! Keys derived from the server's secret, one for each use.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

/// Without a secret the key is random, and ends with the server.
pub(crate) fn key(secret_key_base: Option<&str>, purpose: &[u8]) -> io::Result<hmac::Key> {
    let mut own = [0; 32];
    fill(&SystemRandom::new(), &mut own)?;
    let secret = secret_key_base.map_or(&own[..], str::as_bytes);
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &derived(secret, purpose)))
}

/// A secret that nobody has set.
pub(crate) fn random() -> io::Result<Box<str>> {
    let mut bytes = [0; 32];
    fill(&SystemRandom::new(), &mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes).into())
}

/// A secret for one use.
pub(crate) fn derived(secret: &[u8], purpose: &[u8]) -> [u8; 32] {
    let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), purpose);
    derived.as_ref().try_into().unwrap_or_default()
}

/// The same for the same text on every node; does not reveal a text that cannot be guessed.
pub(crate) fn hash(text: &str) -> u64 {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let first = digest.as_ref().first_chunk().copied().unwrap_or_default();
    u64::from_be_bytes(first)
}

pub(crate) fn fill(random: &SystemRandom, bytes: &mut [u8]) -> io::Result<()> {
    random.fill(bytes).map_err(|_| io::Error::other("the system provides no random bytes"))
}
