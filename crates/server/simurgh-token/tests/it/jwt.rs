//! JSON Web Tokens: the examples of the RFCs, tokens of PyJWT 2 with the same keys (`vectors/jwt`),
//! and refused tokens.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use simurgh_token::jwt::{Algorithm, Checks, Keys, SigningKey};
use simurgh_token::{JwtSettings, KeySource, Settings, Signer, TokenError, Verifier};

/// RFC 7515, A.1.
const A1_KEY: &str = include_str!("../vectors/jwt/rfc7515-a1.jwk");
const A1_CLAIMS: &[u8] =
    b"{\"iss\":\"joe\",\r\n \"exp\":1300819380,\r\n \"http://example.com/is_root\":true}";
const A1: &str = include_str!("../vectors/jwt/rfc7515-a1.jwt");
/// A second before it expires.
const A1_TIME: Duration = Duration::from_secs(1_300_819_379);

/// RFC 7515, A.2, with the claims of A.1.
const A2: &str = include_str!("../vectors/jwt/rfc7515-a2.jwt");
const A2_KEY: &str = include_str!("../vectors/jwt/rfc7515-a2.jwk");

/// RFC 7515, A.3.
const A3: &str = include_str!("../vectors/jwt/rfc7515-a3.jwt");
const A3_KEY: &str = include_str!("../vectors/jwt/rfc7515-a3.jwk");

/// RFC 7515, A.4: ES512, which is not supported.
const A4_KEY: &str = include_str!("../vectors/jwt/rfc7515-a4.jwk");
const A4: &str = include_str!("../vectors/jwt/rfc7515-a4.jws");

/// RFC 8037, A.1 and A.4.
const ED25519_KEY: &str = include_str!("../vectors/jwt/rfc8037-a1.jwk");
const ED25519: &str = include_str!("../vectors/jwt/rfc8037-a4.jws");

/// RFC 7517, A.1.
const JWKS: &str = include_str!("../vectors/jwt/rfc7517-a1.jwks");

const SECRET: &[u8] = b"a secret of thirty-two bytes or more";
const NOW: Duration = Duration::from_secs(1_700_000_000);

fn signing(jwk: &str) -> SigningKey {
    SigningKey::from_jwk(jwk).unwrap()
}

/// Of a private JWK the public half: only signing takes the whole.
fn keys(jwks: &str) -> Keys {
    Keys::from_jwks(&public(jwks)).unwrap()
}

fn public(jwk: &str) -> String {
    let mut key: Value = serde_json::from_str(jwk).unwrap();
    key.as_object_mut().unwrap().remove("d");
    key.to_string()
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap()
}

/// Signed with [`SECRET`].
fn token(claims: Value) -> String {
    SigningKey::from_secret(SECRET).unwrap().sign(&object(claims)).unwrap()
}

/// Valid for a minute from [`NOW`].
fn good() -> Value {
    json!({"sub": "alice", "exp": 1_700_000_060})
}

fn check(token: &str, checks: &Checks, now: Duration) -> Result<(), TokenError> {
    Keys::from_secret(SECRET).unwrap().verify(token, checks, now).map(|_| ())
}

/// Signed with [`SECRET`].
fn with_header(header: &str, claims: &str) -> String {
    SigningKey::from_secret(SECRET).unwrap().sign_jws(header, claims.as_bytes()).unwrap()
}

#[test]
fn rfc_7515_a_1_hs256_is_signed_and_verified() {
    let header = "{\"typ\":\"JWT\",\r\n \"alg\":\"HS256\"}";
    assert_eq!(signing(A1_KEY).sign_jws(header, A1_CLAIMS).unwrap(), A1);
    let claims = keys(A1_KEY).verify(A1, &Checks::default(), A1_TIME).unwrap();
    assert_eq!(claims.get("http://example.com/is_root"), Some(&json!(true)));
    assert_eq!(claims.expires_at(), Some(1_300_819_380));
}

#[test]
fn rfc_7515_a_2_rs256_is_signed_and_verified() {
    assert_eq!(signing(A2_KEY).sign_jws(r#"{"alg":"RS256"}"#, A1_CLAIMS).unwrap(), A2);
    assert_eq!(keys(A2_KEY).verify_jws(A2).unwrap().payload, A1_CLAIMS);
}

#[test]
fn rfc_7515_a_3_es256_is_signed_and_verified() {
    assert_eq!(keys(A3_KEY).verify_jws(A3).unwrap().payload, A1_CLAIMS);
    // Signatures of ES256 are random.
    let again = signing(A3_KEY).sign_jws(r#"{"alg":"ES256"}"#, A1_CLAIMS).unwrap();
    assert_ne!(again, A3);
    assert_eq!(keys(A3_KEY).verify_jws(&again).unwrap().payload, A1_CLAIMS);
}

#[test]
fn rfc_7515_a_4_es512_is_not_supported() {
    let why = Keys::from_jwks(A4_KEY).unwrap_err().to_string();
    assert!(why.contains("its crv is \"P-521\"; the server supports P-256 and Ed25519"), "{why}");
    let refused = keys(A3_KEY).verify_jws(A4).unwrap_err();
    let allowed = vec![Algorithm::Es256];
    assert_eq!(refused, TokenError::Algorithm { found: "ES512".to_owned(), allowed });
}

#[test]
fn rfc_7515_a_5_unsigned_is_refused_with_any_key() {
    for none in ["none", "None", "nOnE"] {
        let token = with_header(&format!(r#"{{"alg":"{none}"}}"#), &good().to_string());
        for token in [token.clone(), format!("{}.", token.rsplit_once('.').unwrap().0)] {
            assert_eq!(check(&token, &Checks::default(), NOW), Err(TokenError::Unsigned));
            assert_eq!(keys(A2_KEY).verify_jws(&token), Err(TokenError::Unsigned));
        }
    }
}

#[test]
fn rfc_8037_a_4_and_5_ed25519_is_signed_and_verified() {
    let key = signing(ED25519_KEY);
    let payload = b"Example of Ed25519 signing";
    assert_eq!(key.sign_jws(r#"{"alg":"EdDSA"}"#, payload).unwrap(), ED25519);
    assert_eq!(keys(ED25519_KEY).verify_jws(ED25519).unwrap().payload, payload);
    // The name of RFC 9864.
    let named = key.sign_jws(r#"{"alg":"Ed25519"}"#, payload).unwrap();
    assert!(keys(ED25519_KEY).verify_jws(&named).is_ok());
}

#[test]
fn rfc_7517_a_1_key_set_is_read() {
    let keys = keys(JWKS);
    let held: Vec<_> = keys.keys().iter().map(|key| (key.id(), key.algorithm())).collect();
    assert_eq!(held, [(Some("2011-04-29"), Algorithm::Rs256)]);
    let skipped: Vec<_> = keys.skipped().iter().map(ToString::to_string).collect();
    assert_eq!(skipped, ["key 0 (\"1\"): its use is \"enc\", not \"sig\""]);
    // Signed by another key of the same kind.
    assert_eq!(keys.verify_jws(A2), Err(TokenError::Signature));
}

/// Private and public keys in OpenSSL's form, tokens signed by PyJWT.
#[test]
fn tokens_and_keys_of_other_libraries_are_accepted() {
    let pem = |name| match name {
        "RS256" => include_str!("../vectors/jwt/rsa.pub.pem"),
        "ES256" => include_str!("../vectors/jwt/p256.pub.pem"),
        _ => include_str!("../vectors/jwt/ed25519.pub.pem"),
    };
    let mut seen = 0;
    for line in include_str!("../vectors/jwt/pyjwt.tsv").lines() {
        let (name, token) = line.split_once('\t').unwrap();
        let Some(algorithm) = Algorithm::named(name) else {
            let refused = Keys::from_pem(pem("RS256")).unwrap().verify_jws(token).unwrap_err();
            assert!(
                refused
                    .to_string()
                    .contains("alg is \"RS512\", but the configured keys are for RS256")
            );
            continue;
        };
        let keys = match algorithm {
            Algorithm::Hs256 => Keys::from_secret(SECRET),
            _ => Keys::from_pem(pem(name)),
        };
        let keys = keys.unwrap();
        assert_eq!(keys.keys()[0].algorithm(), algorithm);
        let checks = Checks {
            issuers: vec!["https://issuer.example".to_owned()],
            audiences: vec!["mail".to_owned()],
            ..Checks::default()
        };
        let claims = keys.verify(token, &checks, NOW).unwrap();
        assert_eq!((claims.subject(), claims.issued_at()), (Some("alice"), Some(1_700_000_000)));
        seen += 1;
    }
    assert_eq!(seen, 4);
}

#[test]
fn private_pem_keys_sign_for_their_public_keys() {
    let pairs = [
        (include_str!("../vectors/jwt/rsa.pem"), include_str!("../vectors/jwt/rsa.pub.pem")),
        (include_str!("../vectors/jwt/rsa.pkcs1.pem"), include_str!("../vectors/jwt/rsa.pub.pem")),
        (include_str!("../vectors/jwt/p256.pem"), include_str!("../vectors/jwt/p256.pub.pem")),
        (
            include_str!("../vectors/jwt/ed25519.pem"),
            include_str!("../vectors/jwt/ed25519.pub.pem"),
        ),
    ];
    for (private, public) in pairs {
        let key = SigningKey::from_pem(private).unwrap().with_id("mine");
        let token = key.sign(&object(good())).unwrap();
        let keys = Keys::from_pem(public).unwrap();
        let claims = keys.verify(&token, &Checks::default(), NOW).unwrap();
        assert_eq!(claims.subject(), Some("alice"));
        let derived = key.verifying_key();
        assert_eq!((derived.id(), derived.algorithm()), (Some("mine"), key.algorithm()));
        assert!(Keys::from(derived).verify(&token, &Checks::default(), NOW).is_ok());
        let why = Keys::from_pem(private).unwrap_err().to_string();
        assert!(why.contains("it is a private key"), "{why}");
        assert!(SigningKey::from_pem(public).is_err());
    }
    let why = SigningKey::from_pem(include_str!("../vectors/jwt/p256.sec1.pem")).unwrap_err();
    assert!(why.to_string().contains("openssl pkcs8 -topk8"), "{why}");
    // One number belongs to another key; each is valid by itself.
    let mut mixed: Value = serde_json::from_str(A2_KEY).unwrap();
    mixed["dp"] = mixed["dq"].clone();
    let why = SigningKey::from_jwk(&mixed.to_string()).unwrap_err().to_string();
    assert_eq!(why, "the private key is invalid: its numbers do not belong together");
    let both = [pairs[0].1, pairs[3].1].concat();
    assert_eq!(Keys::from_pem(&both).unwrap().keys().len(), 2);
}

#[test]
fn damaged_pem_is_refused() {
    let (public, private) =
        (include_str!("../vectors/jwt/rsa.pub.pem"), include_str!("../vectors/jwt/p256.pem"));
    for at in 0..public.len() - "-----END PUBLIC KEY-----\n".len() {
        assert!(Keys::from_pem(&public[..at]).is_err(), "{at} bytes");
    }
    for at in 0..private.len() - "-----END PRIVATE KEY-----\n".len() {
        assert!(SigningKey::from_pem(&private[..at]).is_err(), "{at} bytes");
    }
    let certificate = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    let why = Keys::from_pem(certificate).unwrap_err().to_string();
    assert!(why.contains("openssl x509"), "{why}");
    let p384 =
        "-----BEGIN PUBLIC KEY-----\nMBAwBwYHKoZIzj0CAQMFAAQAAAA=\n-----END PUBLIC KEY-----\n";
    let why = Keys::from_pem(p384).unwrap_err().to_string();
    assert!(why.contains("invalid") || why.contains("neither RSA"), "{why}");
}

/// The parser's own errors list lines of the text as bytes.
#[test]
fn no_error_about_a_pem_contains_the_key() {
    let sources = [include_str!("../vectors/jwt/rsa.pem"), include_str!("../vectors/jwt/p256.pem")];
    for pem in sources {
        let body: String = pem.lines().filter(|line| !line.starts_with("--")).collect();
        let (begin, end) = ("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----");
        for damaged in [
            pem.replace('\n', ""),
            pem.replace('\n', "\\n"),
            pem.replace("-----END", "----END"),
            pem.replace("KEY-----\n", "KEY----\n"),
            format!("{begin}\n{body}*\n{end}\n"),
            format!("{begin}\n{}\n{end}\n", &body[..21]),
            pem.replace("PRIVATE", "PUBLIC").replace('\n', ""),
        ] {
            let errors = [Keys::from_pem(&damaged).err(), SigningKey::from_pem(&damaged).err()];
            for error in errors.map(|error| error.unwrap().to_string()) {
                let bytes = body.as_bytes().windows(3).map(|part| format!("{part:?}"));
                let mut shown = bytes.map(|list| list.trim_matches(['[', ']']).to_owned());
                assert!(!shown.any(|part| error.contains(&part)), "{error}");
                assert!(!error.contains(&body[..8]), "{error}");
            }
        }
    }
    let one_line = sources[0].replace('\n', "");
    let why = SigningKey::from_pem(&one_line).unwrap_err().to_string();
    assert!(why.contains("Restore its line breaks"), "{why}");
}

#[test]
fn pem_of_another_form_is_reported_with_a_conversion_command() {
    let pem = |label| format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n");
    for (label, public, private) in [
        ("OPENSSH PRIVATE KEY", "ssh-keygen -e -m PKCS8", "ssh-keygen -p -m PKCS8"),
        ("ENCRYPTED PRIVATE KEY", "openssl pkey -in FILE -pubout", "openssl pkey -in FILE -out"),
        ("RSA PUBLIC KEY", "openssl rsa -RSAPublicKey_in", "signing needs the private one"),
        ("CERTIFICATE", "openssl x509 -in FILE", "signing needs its private key"),
        ("PGP MESSAGE", "BEGIN PUBLIC KEY-----", "BEGIN PRIVATE KEY-----"),
    ] {
        let why = Keys::from_pem(&pem(label)).unwrap_err().to_string();
        assert!(why.contains(public), "{label}: {why}");
        let why = SigningKey::from_pem(&pem(label)).unwrap_err().to_string();
        assert!(why.contains(private), "{label}: {why}");
    }
}

/// CVE-2015-9235: a public key must not be used as a secret.
#[test]
fn public_key_is_not_a_secret() {
    let pem = include_str!("../vectors/jwt/rsa.pub.pem");
    assert!(Keys::from_secret(pem.as_bytes()).unwrap_err().to_string().contains("PEM"));
    assert!(SigningKey::from_secret(pem.as_bytes()).is_err());
    // An attacker signs with an oct key of the same bytes.
    for bytes in [pem.as_bytes(), &pem.as_bytes()[1..]] {
        let mac = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, bytes);
        let message = format!("eyJhbGciOiJIUzI1NiJ9.{}", base64url(A1_CLAIMS));
        let tag = ring::hmac::sign(&mac, message.as_bytes());
        let forged = format!("{message}.{}", base64url(tag.as_ref()));
        for keys in [Keys::from_pem(pem).unwrap(), keys(A2_KEY), keys(JWKS)] {
            let refused = keys.verify_jws(&forged).unwrap_err();
            assert!(matches!(refused, TokenError::Algorithm { .. }), "{refused}");
            assert!(refused.is_forged());
        }
    }
}

fn base64url(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

#[test]
fn token_with_any_changed_or_missing_byte_is_refused() {
    let cases = [(A1_KEY, A1), (A2_KEY, A2), (A3_KEY, A3), (ED25519_KEY, ED25519)];
    for (key, token) in cases {
        let keys = keys(key);
        assert!(keys.verify_jws(token).is_ok());
        for at in 0..token.len() {
            assert!(keys.verify_jws(&token[..at]).is_err(), "{at} bytes");
            for other in ["A", "Q", "-", ".", "=", " "] {
                if !token[at..].starts_with(other) {
                    let changed = format!("{}{other}{}", &token[..at], &token[at + 1..]);
                    assert!(keys.verify_jws(&changed).is_err(), "{changed}");
                }
            }
        }
        for more in ["A", "AA", ".", "="] {
            assert!(keys.verify_jws(&format!("{token}{more}")).is_err());
        }
    }
}

#[test]
fn keys_are_selected_by_kid() {
    let key = |k: u8, kid: Option<&str>| {
        let mut key = json!({"kty": "oct", "k": base64url(&[k; 32])});
        if let Some(kid) = kid {
            key["kid"] = kid.into();
        }
        key
    };
    let set = |keys: Vec<Value>| Keys::from_jwks(&json!({ "keys": keys }).to_string()).unwrap();
    let sign = |k: u8, kid: Option<&str>| {
        let key = signing(&key(k, None).to_string());
        let key = match kid {
            Some(kid) => key.with_id(kid),
            None => key,
        };
        key.sign(&object(good())).unwrap()
    };
    let two = set(vec![key(1, Some("a")), key(2, Some("b"))]);
    assert!(two.verify_jws(&sign(1, Some("a"))).is_ok());
    assert!(two.verify_jws(&sign(2, Some("b"))).is_ok());
    // The key exists, under another name.
    assert_eq!(two.verify_jws(&sign(2, Some("a"))), Err(TokenError::Signature));
    let unknown = two.verify_jws(&sign(1, Some("c"))).unwrap_err();
    assert_eq!((unknown.reason(), unknown.is_unknown_key()), ("unknown_key", true));
    assert!(unknown.to_string().contains("kid is \"c\""), "{unknown}");
    assert!(two.verify_jws(&sign(2, None)).is_ok());
    assert_eq!(two.verify_jws(&sign(3, None)), Err(TokenError::Signature));
    // A key without a name may verify any `kid`.
    let mixed = set(vec![key(1, Some("a")), key(2, None)]);
    assert!(mixed.verify_jws(&sign(2, Some("z"))).is_ok());
    assert_eq!(mixed.verify_jws(&sign(3, Some("z"))), Err(TokenError::Signature));
}

#[test]
fn private_jwk_is_not_used_to_verify() {
    for key in [A2_KEY, A3_KEY, ED25519_KEY] {
        for text in [key.to_owned(), format!(r#"{{"keys":[{key}]}}"#)] {
            let why = Keys::from_jwks(&text).unwrap_err().to_string();
            assert!(why.contains("it is a private key, which is only for signing"), "{why}");
        }
    }
    let set = format!(r#"{{"keys":[{A3_KEY},{}]}}"#, public(ED25519_KEY));
    assert_eq!((keys(&set).keys().len(), keys(&set).skipped().len()), (1, 1));
    let why = SigningKey::from_jwk(&set).unwrap_err().to_string();
    assert!(why.contains("it is a set of keys (JWKS)"), "{why}");
}

#[test]
fn keys_that_cannot_be_used_are_skipped_with_a_reason() {
    let mut weak: Value = serde_json::from_str(&public(A2_KEY)).unwrap();
    weak["n"] = base64url(&[255; 128]).into();
    let mut other: Value = serde_json::from_str(&public(A2_KEY)).unwrap();
    other["alg"] = "PS256".into();
    let set = json!({"keys": [
        {"kty": "oct", "k": "c2hvcnQ", "kid": "short"},
        {"kty": "LMS"}, {"kty": "OKP", "crv": "X25519", "x": "AA"}, {"k": "AA"}, 7,
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}, {"kty": "RSA", "e": "AQAB"},
        {"kty": "oct", "k": "=", "key_ops": ["verify"]}, {"kty": "oct", "key_ops": ["encrypt"]},
        weak, other, serde_json::from_str::<Value>(&public(ED25519_KEY)).unwrap(),
    ]});
    let keys = keys(&set.to_string());
    assert_eq!(keys.keys().len(), 1);
    let skipped: Vec<_> = keys.skipped().iter().map(ToString::to_string).collect();
    assert_eq!(
        skipped,
        [
            "key 0 (\"short\"): the secret has 5 bytes; HS256 needs at least 32",
            "key 1: its kty is \"LMS\"; the server supports EC, OKP, oct and RSA",
            "key 2: its crv is \"X25519\"; the server supports P-256 and Ed25519",
            "key 3: it has no kty",
            "key 4: it is not a JSON object",
            "key 5: its x has 1 bytes instead of 32",
            "key 6: it has no n",
            "key 7: its k is not base64url",
            "key 8: its key_ops do not contain \"verify\"",
            "key 9: its modulus has 1024 bits; RS256 needs 2048 to 8192",
            "key 10: its alg is \"PS256\", but only RS256 is possible",
        ]
    );
    for (text, why) in [
        ("{", "the JWKS is not JSON at line 1, column 1"),
        ("[]", "it is not a JWKS: it has no keys"),
        (r#"{"keys": 1}"#, "its keys are not an array"),
        (r#"{"keys": []}"#, "the JWKS has no keys"),
        (r#"{"keys": [{"kty": "LMS"}]}"#, "none of the keys can be used: key 0: its kty is"),
    ] {
        let error = Keys::from_jwks(text).unwrap_err().to_string();
        assert!(error.starts_with(why), "{error}");
    }
    let many: Vec<_> = (0..100).map(|_| serde_json::from_str::<Value>(A1_KEY).unwrap()).collect();
    let many = Keys::from_jwks(&json!({ "keys": many }).to_string()).unwrap();
    assert_eq!((many.keys().len(), many.skipped().len()), (64, 36));
}

#[test]
fn times_have_a_leeway() {
    let strict = Checks { leeway: Duration::ZERO, ..Checks::default() };
    let at = |ms: i64| Duration::from_millis((1_700_000_000_000 + ms) as u64);
    let exp = token(json!({"exp": 1_700_000_000}));
    assert_eq!(check(&exp, &strict, at(-1)), Ok(()));
    // RFC 7519 §4.1.4: "on or after".
    assert!(check(&exp, &strict, at(0)).unwrap_err().is_expired());
    assert_eq!(check(&exp, &Checks::default(), at(4_999)), Ok(()));
    let late = check(&exp, &Checks::default(), at(65_000)).unwrap_err();
    assert_eq!(late.reason(), "expired");
    assert!(late.to_string().contains("expired 1m 5s ago"), "{late}");
    for claim in ["nbf", "iat"] {
        let early = token(json!({"exp": 1_800_000_000, claim: 1_700_000_000}));
        assert_eq!(check(&early, &strict, at(0)), Ok(()));
        let refused = check(&early, &strict, at(-1)).unwrap_err();
        assert!(
            refused.reason() == "not_yet_valid" && refused.to_string().contains(claim),
            "{refused}"
        );
        assert_eq!(check(&early, &Checks::default(), at(-4_999)), Ok(()));
        assert!(check(&early, &Checks::default(), at(-5_001)).is_err());
    }
    let fraction = token(json!({"exp": 1_700_000_000.5}));
    assert_eq!(check(&fraction, &strict, at(499)), Ok(()));
    assert!(check(&fraction, &strict, at(500)).is_err());
    for wrong in [json!("1700000060"), json!(null), json!([1])] {
        let refused = check(&token(json!({ "exp": wrong })), &strict, NOW).unwrap_err();
        assert!(refused.to_string().contains("exp is not a number of seconds"), "{refused}");
    }
    for (huge, good) in [(json!(1e300), true), (json!(-1e300), false), (json!(i64::MIN), false)] {
        assert_eq!(check(&token(json!({ "exp": huge })), &strict, NOW).is_ok(), good);
    }
    let never = token(json!({"sub": "alice"}));
    let refused = check(&never, &strict, NOW).unwrap_err();
    assert_eq!(refused, TokenError::MissingClaim { claim: "exp" });
    let lenient = Checks { expiry_required: false, ..strict };
    assert_eq!(check(&never, &lenient, NOW), Ok(()));
}

#[test]
fn issuer_and_audience_are_checked_if_configured() {
    let with = |more: Value| {
        let mut claims = object(good());
        claims.extend(object(more));
        token(Value::Object(claims))
    };
    let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
    let checks = Checks { issuers: texts(&["a", "b"]), ..Checks::default() };
    assert_eq!(check(&with(json!({"iss": "b"})), &checks, NOW), Ok(()));
    for wrong in [json!({}), json!({"iss": "c"}), json!({"iss": ["a"]}), json!({"iss": null})] {
        assert_eq!(check(&with(wrong), &checks, NOW).unwrap_err().reason(), "wrong_issuer");
    }
    let checks = Checks { audiences: texts(&["chat"]), ..Checks::default() };
    assert_eq!(check(&with(json!({"aud": "chat"})), &checks, NOW), Ok(()));
    assert_eq!(check(&with(json!({"aud": ["mail", "chat"]})), &checks, NOW), Ok(()));
    for wrong in [json!({}), json!({"aud": "mail"}), json!({"aud": []}), json!({"aud": 1})] {
        assert_eq!(check(&with(wrong), &checks, NOW), Err(TokenError::Audience));
    }
    let anything = with(json!({"iss": "x", "aud": "y"}));
    assert_eq!(check(&anything, &Checks::default(), NOW), Ok(()));
}

#[test]
fn invalid_headers_and_claims_are_refused() {
    let claims = good().to_string();
    for (token, words) in [
        (with_header(r#"{"alg":"HS256","crit":["exp"]}"#, &claims), "requires extensions (crit)"),
        (with_header(r#"{"alg":7}"#, &claims), "its alg is missing or not a string"),
        (with_header(r#"{"typ":"JWT"}"#, &claims), "its alg is missing or not a string"),
        (with_header(r#"{"alg":"HS256","kid":7}"#, &claims), "its kid is not a string"),
        (with_header(r#"{"alg":"HS256""#, &claims), "its header: it is not JSON at line 1"),
        (with_header("[]", &claims), "its header: it is JSON, but not an object"),
        (with_header(r#"{"alg":"HS256"}"#, "[1]"), "its payload: it is JSON, but not an object"),
        (with_header(r#"{"alg":"HS256"}"#, "secret!"), "its payload: it is not JSON at line 1"),
        (with_header(r#"{"alg":"hs256"}"#, &claims), "alg is \"hs256\", but the configured keys"),
        ("a.b".to_owned(), "it does not have three parts"),
        ("SFMyNTY.g2Eq.AAAA".to_owned(), "this is a Phoenix.Token"),
        ("a.b.c.d.e".to_owned(), "the token is encrypted"),
        ("x".repeat(20_000), "the token has 20000 bytes"),
    ] {
        let refused = check(&token, &Checks::default(), NOW).unwrap_err();
        assert!(refused.to_string().contains(words), "{refused}");
        assert_eq!(refused.reason(), "invalid");
        assert!(!refused.to_string().contains("secret!"));
    }
    assert!(check("", &Checks::default(), NOW).unwrap_err().is_missing());
    // An array nested as deep as the length allows is refused as JSON.
    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    assert!(check(&with_header(r#"{"alg":"HS256"}"#, &deep), &Checks::default(), NOW).is_err());
}

#[test]
fn verifier_accepts_only_configured_algorithms() {
    let both = format!(r#"{{"keys":[{},{A1_KEY}]}}"#, public(ED25519_KEY));
    let settings = |algorithms: &[Algorithm]| JwtSettings {
        algorithms: algorithms.to_vec(),
        ..JwtSettings::new(KeySource::Jwks(both.clone()))
    };
    let verifier = |algorithms: &[Algorithm]| Verifier::new(Settings::Jwt(settings(algorithms)));
    let token = signing(ED25519_KEY).sign(&object(good())).unwrap();
    assert_eq!(verifier(&[]).unwrap().verify(&token, NOW).unwrap().subject(), Some("alice"));
    assert!(verifier(&[Algorithm::EdDsa]).unwrap().verify(&token, NOW).is_ok());
    let hs256 = verifier(&[Algorithm::Hs256]).unwrap();
    assert!(matches!(hs256.verify(&token, NOW), Err(TokenError::Algorithm { .. })));
    assert_eq!(hs256.skipped_keys()[0].why, "it is for EdDSA, which is not in algorithms");
    assert!(verifier(&[Algorithm::Rs256]).unwrap_err().to_string().contains("none of the keys"));
    let text = format!("{:?} {hs256:?} {:?}", settings(&[]), signing(A1_KEY));
    assert!(!text.contains("AyM1") && !text.contains("nWGx"), "{text}");
}

#[test]
fn minted_token_verifies() {
    let signer = Signer::Jwt(SigningKey::from_secret(SECRET).unwrap());
    let keys = KeySource::Secret(SECRET.to_vec());
    let verifier = Verifier::new(Settings::Jwt(JwtSettings::new(keys))).unwrap();
    let hour = Some(Duration::from_secs(3600));
    let token = signer.mint(&json!({"user_id": 7}), NOW, hour).unwrap();
    let claims = verifier.verify(&token, NOW).unwrap();
    assert_eq!(claims.subject(), Some("7"));
    assert_eq!(claims.issued_at(), Some(1_700_000_000));
    assert_eq!(claims.expires_at(), Some(1_700_003_600));
    assert!(verifier.verify(&token, NOW + Duration::from_secs(3606)).unwrap_err().is_expired());
    let own = signer.mint(&json!({"exp": 1_700_000_001, "iat": 5}), NOW, hour).unwrap();
    assert_eq!(verifier.verify(&own, NOW).unwrap().expires_at(), Some(1_700_000_001));
    assert!(signer.mint(&json!(7), NOW, hour).is_err());
    assert!(verifier.verify(&signer.mint(&json!({}), NOW, None).unwrap(), NOW).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn signed_token_verifies_and_a_changed_one_does_not(
        names in prop::collection::btree_map("[a-z]{4,8}", any::<String>(), 0..6),
        at in any::<prop::sample::Index>(),
        to in 0..128_u8,
    ) {
        let mut claims: Map<String, Value> =
            names.into_iter().map(|(name, value)| (name, value.into())).collect();
        claims.insert("exp".to_owned(), 1_700_000_060.into());
        for key in [A1_KEY, A3_KEY, ED25519_KEY] {
            let (signing, keys) = (signing(key), keys(key));
            let token = signing.sign(&claims).unwrap();
            let read = keys.verify(&token, &Checks::default(), NOW).unwrap();
            prop_assert_eq!(read.claims(), &claims);
            let mut bytes = token.into_bytes();
            let at = at.index(bytes.len());
            if bytes[at] != to {
                bytes[at] = to;
                let changed = String::from_utf8(bytes).unwrap();
                prop_assert!(keys.verify(&changed, &Checks::default(), NOW).is_err());
            }
        }
    }
}

#[test]
fn no_token_is_verified_before_the_keys_are_read() {
    let refused = Keys::none().verify(&token(good()), &Checks::default(), NOW).unwrap_err();
    assert_eq!(refused.reason(), "unavailable");
    assert!(refused.is_unavailable() && refused.is_unknown_key() && !refused.is_forged());
    let unsigned = with_header(r#"{"alg":"none"}"#, "{}");
    let refused = Keys::none().verify(&unsigned, &Checks::default(), NOW).unwrap_err();
    assert_eq!(refused, TokenError::Unsigned);
}
