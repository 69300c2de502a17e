//! Tokens of plug_crypto (made by `vectors/phoenix.exs`), verified, and signed again.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use simurgh_token::phoenix::{Digest, Key, KeyOptions, MaxAge};
use simurgh_token::{PhoenixSettings, Settings, TokenError, Verifier};

const SECRET: &str = "jzC8A6PhPYq2PrSqDGjbUqmPoA0hV8Vb1c0nF9f3kM0QbZf1Zc0T1u6vN8tq2XyR";
const SALT: &str = "user socket";
const SIGNED_AT: Duration = Duration::from_secs(1_700_000_000);

struct Vector {
    name: &'static str,
    /// None: it must be refused.
    data: Option<Value>,
    /// Whether signing it here must give the same token.
    same: bool,
    max_age: MaxAge,
    token: &'static str,
}

fn vectors() -> Vec<Vector> {
    let lines = include_str!("../vectors/phoenix.tsv").lines();
    let vectors: Vec<_> = lines
        .map(|line| {
            let [name, data, same, at, age, token] =
                line.split('\t').collect::<Vec<_>>().try_into().unwrap();
            assert_eq!(Duration::from_secs(at.parse().unwrap()), SIGNED_AT);
            let max_age = match age {
                "infinity" => MaxAge::Infinity,
                age => MaxAge::Within(Duration::from_secs_f64(age.parse().unwrap())),
            };
            let data = (data != "refused").then(|| serde_json::from_str(data).unwrap());
            Vector { name, data, same: same == "same", max_age, token }
        })
        .collect();
    assert!(vectors.len() > 50);
    vectors
}

fn vector(name: &str) -> Vector {
    vectors().into_iter().find(|vector| vector.name == name).unwrap()
}

fn key() -> Key {
    Key::derive(SECRET, SALT).unwrap()
}

fn other_key() -> Key {
    let key_iterations = 1.try_into().unwrap();
    let options = KeyOptions { key_iterations, key_length: 64, key_digest: Digest::Sha512 };
    Key::derive_with(SECRET, SALT, &options).unwrap()
}

fn verify(key: &Key, token: &str, seconds_later: u64) -> Result<Value, TokenError> {
    let now = SIGNED_AT + Duration::from_secs(seconds_later);
    key.verify(token, None, Duration::ZERO, now).map(|signed| signed.data)
}

#[test]
fn tokens_of_plug_crypto_are_read() {
    for vector in vectors() {
        let key = if vector.name == "options" { other_key() } else { key() };
        let read = key.verify(vector.token, None, Duration::ZERO, SIGNED_AT);
        match (vector.data, read) {
            (Some(data), Ok(signed)) => {
                assert_eq!(signed.data, data, "{}", vector.name);
                assert_eq!(signed.max_age, vector.max_age, "{}", vector.name);
                assert_eq!(signed.signed_at_ms, 1_700_000_000_000, "{}", vector.name);
            }
            (None, Err(error)) => {
                assert!(error.is_malformed(), "{}: {error}", vector.name);
                println!("{}: {error}", vector.name);
            }
            (expected, read) => panic!("{}: {read:?}, and not {expected:?}", vector.name),
        }
    }
}

#[test]
fn signed_tokens_equal_those_of_plug_crypto() {
    let mut compared = 0;
    for vector in vectors().into_iter().filter(|vector| vector.same) {
        let data = vector.data.unwrap();
        let token = key().sign(&data, SIGNED_AT, vector.max_age).unwrap();
        assert_eq!(token, vector.token, "{}", vector.name);
        compared += 1;
    }
    assert!(compared > 20, "{compared}");
}

#[test]
fn refusals_name_their_reason() {
    let why = |name| key().verify(vector(name).token, None, Duration::ZERO, SIGNED_AT).unwrap_err();
    assert_eq!(why("encrypted"), TokenError::Encrypted);
    for (name, words) in [
        ("compressed", "byte 1: compressed terms are not supported"),
        ("more than 64 bits", "the integer has more than 64 bits"),
        ("bytes", "a binary is not UTF-8"),
        ("process", "a process identifier has no form in JSON"),
        ("function", "a function has no form in JSON"),
        ("improper", "the list is improper"),
        ("same key twice", "two keys of a map have the same name"),
        ("deep", "nested more than 32"),
        ("list in place of tuple", "not by Phoenix.Token"),
    ] {
        let why = why(name).to_string();
        assert!(why.contains(words), "{name}: {why}");
    }
}

#[test]
fn age_is_checked_as_in_phoenix() {
    let (key, token) = (key(), vector("an hour").token);
    assert_eq!(verify(&key, token, 3600), Ok(json!(42)));
    let now = SIGNED_AT + Duration::from_millis(3_600_001);
    let judge = |max_age, leeway, now| key.verify(token, max_age, leeway, now).map(|it| it.data);
    let expired = judge(None, Duration::ZERO, now).unwrap_err();
    assert_eq!(expired, TokenError::Expired { ago: Duration::from_millis(1) });
    assert_eq!(expired.reason(), "expired");
    // A requested age overrides that of the token, longer or shorter.
    let within = |seconds| Some(MaxAge::Within(Duration::from_secs(seconds)));
    assert_eq!(judge(within(7200), Duration::ZERO, now), Ok(json!(42)));
    assert_eq!(judge(Some(MaxAge::Infinity), Duration::ZERO, now), Ok(json!(42)));
    let later = SIGNED_AT + Duration::from_secs(11);
    assert!(judge(within(10), Duration::ZERO, later).unwrap_err().is_expired());
    assert_eq!(judge(within(10), Duration::from_secs(1), later), Ok(json!(42)));
    // A token of age zero expires when it is signed.
    assert!(judge(within(0), Duration::from_secs(9), SIGNED_AT).unwrap_err().is_expired());
    let before = SIGNED_AT - Duration::from_millis(1500);
    let early = judge(None, Duration::ZERO, before).unwrap_err();
    assert_eq!(early.reason(), "not_yet_valid");
    assert!(early.to_string().contains("valid in 1s (signed)"), "{early}");
    assert_eq!(judge(None, Duration::from_secs(2), before), Ok(json!(42)));
    let for_ever = vector("for ever").token;
    assert_eq!(verify(&key, for_ever, 10_000_000_000), Ok(json!(42)));
}

#[test]
fn token_with_any_changed_or_missing_byte_is_refused() {
    let (key, token) = (key(), vector("map").token);
    assert!(verify(&key, token, 0).is_ok());
    for at in 0..token.len() {
        assert!(verify(&key, &token[..at], 0).is_err(), "{at} bytes");
        for other in ["A", "B", "_", ".", "=", "\n", "é"] {
            if !token[at..].starts_with(other) {
                let changed = format!("{}{other}{}", &token[..at], &token[at + 1..]);
                assert!(verify(&key, &changed, 0).is_err(), "{changed}");
            }
        }
    }
    assert!(verify(&key, &format!("{token}A"), 0).is_err());
}

#[test]
fn another_secret_or_salt_is_another_key() {
    let token = vector("text").token;
    for (secret, salt) in [(SECRET, "user socket "), (SECRET, ""), (&SECRET[1..], SALT)] {
        let refused = verify(&Key::derive(secret, salt).unwrap(), token, 0).unwrap_err();
        assert_eq!(refused, TokenError::Signature);
        assert!(!refused.to_string().contains(secret));
    }
    let weak = Key::derive("nineteen characters", SALT).unwrap_err().to_string();
    assert!(weak.contains("19 bytes") && !weak.contains("nineteen"), "{weak}");
    assert!(!format!("{:?}", key()).contains("jzC8"));
    assert_eq!(verify(&key(), "", 0).unwrap_err().reason(), "missing");
    let jwt = verify(&key(), "eyJhbGciOiJub25lIn0.e30.", 0).unwrap_err().to_string();
    assert!(jwt.contains("this is a JWT"), "{jwt}");
}

#[test]
fn a_verifier_returns_subject_and_expiry() {
    let verifier = |settings| Verifier::new(Settings::Phoenix(settings)).unwrap();
    let usual = verifier(PhoenixSettings::new(SECRET, SALT));
    let map = usual.verify(vector("map").token, SIGNED_AT).unwrap();
    assert_eq!((map.subject(), map.get("role")), (Some("42"), Some(&json!("admin"))));
    assert_eq!(map.issued_at(), Some(1_700_000_000));
    assert_eq!(map.expires_at(), Some(1_700_086_400));
    let text = usual.verify(vector("text").token, SIGNED_AT).unwrap();
    assert_eq!((text.subject(), text.get("data")), (Some("user:1"), Some(&json!("user:1"))));
    let list = usual.verify(vector("empty list").token, SIGNED_AT).unwrap();
    assert_eq!((list.subject(), list.get("data")), (None, Some(&json!([]))));
    let settings =
        PhoenixSettings { max_age: Some(MaxAge::Infinity), ..PhoenixSettings::new(SECRET, SALT) };
    assert!(!format!("{settings:?}").contains(SECRET));
    let claims = verifier(settings).verify(vector("map").token, SIGNED_AT * 2).unwrap();
    assert_eq!(claims.expires_at(), None);
}

/// JSON that a term can hold: the tuple around it takes one level of the depth.
fn json_values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0..300_u16).prop_map(Value::from),
        any::<f64>().prop_filter("JSON has no others", |it| it.is_finite()).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..8)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn signed_phoenix_token_verifies(
        data in json_values(),
        ms in 0..1_u64 << 50,
        age in 1..1_u64 << 40,
    ) {
        let (signed_at, max_age) = (Duration::from_millis(ms), Duration::from_millis(age));
        let token = key().sign(&data, signed_at, MaxAge::Within(max_age)).unwrap();
        let signed = key().verify(&token, None, Duration::ZERO, signed_at).unwrap();
        prop_assert_eq!(&signed.data, &data);
        let late = signed_at + max_age + Duration::from_millis(2);
        prop_assert!(key().verify(&token, None, Duration::ZERO, late).unwrap_err().is_expired());
    }

    #[test]
    fn changed_phoenix_token_is_refused(
        data in json_values(),
        at in any::<prop::sample::Index>(),
        to in 0..128_u8,
    ) {
        let token = key().sign(&data, SIGNED_AT, MaxAge::DAY).unwrap();
        let mut bytes = token.clone().into_bytes();
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != to);
        bytes[at] = to;
        let changed = String::from_utf8(bytes).unwrap();
        let refused = key().verify(&changed, None, Duration::ZERO, SIGNED_AT).unwrap_err();
        prop_assert_eq!(refused.reason(), "invalid");
    }
}
