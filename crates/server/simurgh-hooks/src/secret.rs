//! Signatures of requests: Standard Webhooks 1.0, symmetric.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};

const PREFIX: &str = "whsec_";
const BYTES_MIN: usize = 24;
const BYTES_MAX: usize = 64;

/// A secret that server and application share. `Debug` does not show it.
#[derive(Clone)]
pub struct Secret {
    key: hmac::Key,
}

/// Why a text is no secret, or none could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// It has another prefix.
    #[error("a secret begins with whsec_")]
    Prefix,
    /// The rest is not base64.
    #[error("after whsec_ a secret is base64 with padding")]
    Base64,
    /// It is too short or too long.
    #[error("a secret has 24 to 64 bytes (got {0})")]
    Length(usize),
    /// The system has no random numbers.
    #[error("the system gives no random numbers")]
    Random,
}

impl Secret {
    /// Reads `whsec_` and base64 of 24 to 64 bytes.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let coded = text.trim().strip_prefix(PREFIX).ok_or(SecretError::Prefix)?;
        let bytes = STANDARD.decode(coded).map_err(|_| SecretError::Base64)?;
        if !(BYTES_MIN..=BYTES_MAX).contains(&bytes.len()) {
            return Err(SecretError::Length(bytes.len()));
        }
        Ok(Self { key: hmac::Key::new(hmac::HMAC_SHA256, &bytes) })
    }

    /// A new secret of 32 random bytes.
    pub fn generate() -> Result<String, SecretError> {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes).map_err(|_| SecretError::Random)?;
        Ok(format!("{PREFIX}{}", STANDARD.encode(bytes)))
    }

    /// The signature `v1,…` of a request with this id, sent at this Unix time in seconds.
    pub fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let mut signed = hmac::Context::with_key(&self.key);
        signed.update(format!("{id}.{timestamp}.").as_bytes());
        signed.update(body);
        format!("v1,{}", STANDARD.encode(signed.sign()))
    }

    /// The key of what this server derives from the secret for itself.
    pub(crate) fn key(&self) -> &hmac::Key {
        &self.key
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.sign("", 0, b"") == other.sign("", 0, b"")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const NEW: &str = "whsec_c2ltdXJnaC1uZXctc2VjcmV0LTMyLWJ5dGVzLWxvbmc=";
    const LEFT: &str = concat!(
        r#"{"type":"member.left","timestamp":"2026-11-27T10:00:00.123Z","#,
        r#""data":{"topic":"rooms:7","user":"42"}}"#
    );

    fn signature(secret: &str, id: &str, timestamp: u64, body: &str) -> String {
        Secret::parse(secret).unwrap().sign(id, timestamp, body.as_bytes())
    }

    #[test]
    fn signatures_equal_the_published_vectors() {
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let first = signature(OLD, id, 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(first, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let left = signature(OLD, "b-k7ku80-3-1234-2", 1_795_773_600, LEFT);
        assert_eq!(left, "v1,scSQxD6qLAxjzKJ9T0VBZSPNrvYC7BJbfm2xmaSaD0E=");
        let new = signature(NEW, "b-k7ku80-3-1234-2", 1_795_773_600, LEFT);
        assert_eq!(new, "v1,u7FuyHUC9Vn9z7JMeLaYj0XqBLO58UxXUcVERTA8vDU=");
    }

    #[test]
    fn wrong_secrets_are_refused_with_their_reason() {
        let error = |text: &str| Secret::parse(text).unwrap_err();
        assert_eq!(error("whpk_AAAA"), SecretError::Prefix);
        assert_eq!(error("whsec_!"), SecretError::Base64);
        assert_eq!(error("whsec_AAAA"), SecretError::Length(3));
        assert_eq!(error(&format!("whsec_{}", STANDARD.encode([0; 65]))), SecretError::Length(65));
    }

    #[test]
    fn generated_secret_is_read_back_and_never_shown() {
        let text = Secret::generate().unwrap();
        assert_ne!(text, Secret::generate().unwrap());
        assert_eq!(format!("{:?}", Secret::parse(&text).unwrap()), "Secret");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(whsec_)?[A-Za-z0-9+/=]{0,100}") {
            let _ = Secret::parse(&text);
        }
    }
}
