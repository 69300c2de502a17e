//! The contents of a token, decoded without a key.

use std::time::Duration;

use serde_json::json;
use simurgh_token::jwt::SigningKey;
use simurgh_token::phoenix::Key;
use simurgh_token::{Format, Signer, TokenError, inspect};

const NOW: Duration = Duration::from_secs(1_700_000_000);

#[test]
fn jwt_is_described() {
    let key = SigningKey::from_secret(&[7; 32]).unwrap().with_id("k1");
    let data = json!({"sub": "alice", "nbf": 1_700_000_060});
    let token = Signer::Jwt(key).mint(&data, NOW, Some(Duration::from_secs(5400))).unwrap();
    let inspection = inspect(&token).unwrap();
    assert_eq!((inspection.format, inspection.subject.as_deref()), (Format::Jwt, Some("alice")));
    let expected = r#"format     JWT
algorithm  HS256, by a shared secret
key        "k1"
subject    "alice"
signed     2023-11-14T22:13:20Z, 1m 30s ago
not before 2023-11-14T22:14:20Z, 30s ago
expires    2023-11-14T23:43:20Z, in 1h 28m
signature  32 bytes
header     {"alg":"HS256","kid":"k1","typ":"JWT"}
claims     {
  "exp": 1700005400,
  "iat": 1700000000,
  "nbf": 1700000060,
  "sub": "alice"
}
"#;
    assert_eq!(inspection.text(NOW + Duration::from_secs(90)), expected);
    assert_eq!(inspection.json()["expires_at"], json!(1_700_005_400.0));
}

#[test]
fn phoenix_token_is_described() {
    let signer = Signer::Phoenix(Key::derive(&"s".repeat(64), "user socket").unwrap());
    let minted = |lifetime| signer.mint(&json!(42), NOW, lifetime).unwrap();
    let text = inspect(&minted(Some(Duration::from_secs(60)))).unwrap().text(NOW * 2);
    let expected = r#"format     Phoenix.Token
algorithm  HS256, by secret_key_base and a salt
subject    "42"
signed     2023-11-14T22:13:20Z, 53years 10months ago
expires    2023-11-14T22:14:20Z, 53years 10months ago
signature  32 bytes
claims     42
"#;
    assert_eq!(text, expected);
    assert!(inspect(&minted(None)).unwrap().text(NOW).contains("expires    never\n"));
}

#[test]
fn unsigned_token_is_shown_as_unsigned() {
    // RFC 7515, A.5
    let token = include_str!("../vectors/jwt/rfc7515-a5.jwt");
    let text = inspect(token).unwrap().text(NOW);
    assert!(text.contains("algorithm  none: it is not signed"), "{text}");
    assert_eq!(inspect("XCP.a.b"), Err(TokenError::Encrypted));
    assert!(inspect("").unwrap_err().is_missing());
    assert!(inspect("hello").unwrap_err().is_malformed());
}
