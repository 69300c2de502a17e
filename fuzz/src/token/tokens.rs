//! Any text as a token, a set of keys, and a PEM file.
use std::sync::LazyLock;
use std::time::Duration;

use simurgh_token::jwt::{Checks, Keys, SigningKey};
use simurgh_token::phoenix::Key;
use simurgh_token::{Format, inspect};

const NOW: Duration = Duration::from_secs(1_700_000_000);
const SECRET: &str = "nobody who writes a corpus knows this secret";

static PHOENIX: LazyLock<Key> = LazyLock::new(|| Key::derive(SECRET, "salt").expect("a key"));
static JWT: LazyLock<Keys> = LazyLock::new(|| Keys::from_secret(SECRET.as_bytes()).expect("a key"));

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let by_phoenix = PHOENIX.verify(&text, None, Duration::ZERO, NOW);
    let by_jwt = JWT.verify(&text, &Checks::default(), NOW);
    for refused in [by_phoenix.err(), by_jwt.err()] {
        let refused = refused.expect("signed by nobody");
        assert!(!refused.to_string().contains(SECRET) && !refused.reason().is_empty());
    }
    if let Ok(inspection) = inspect(&text) {
        assert!(inspection.text(NOW).starts_with("format     "));
        let expected = if text.starts_with("SFM") { Format::Phoenix } else { Format::Jwt };
        assert_eq!(inspection.format, expected);
        assert_eq!(inspection.json()["claims"], inspection.claims);
    }
    for keys in [Keys::from_jwks(&text), Keys::from_pem(&text)].into_iter().flatten() {
        assert!(!keys.keys().is_empty() && keys.keys().len() <= 64);
        assert!(keys.keys().iter().all(|key| !key.verifies(b"message", &[1; 64])));
    }
    for key in [SigningKey::from_jwk(&text), SigningKey::from_pem(&text)].into_iter().flatten() {
        let token = key.sign_jws(&format!(r#"{{"alg":"{}"}}"#, key.algorithm()), b"{}");
        let verifying = Keys::from(key.verifying_key());
        let token = token.expect("it is signed");
        assert_eq!(verifying.verify_jws(&token).map(|jws| jws.payload).as_deref(), Ok(&b"{}"[..]));
    }
}
