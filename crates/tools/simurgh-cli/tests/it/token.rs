//! `simurgh token` as a binary: how it reads keys, its output, and its exit statuses.
//! `simurgh-token` tests the tokens themselves.

use std::path::Path;

use crate::support::{Ran, directory, run, run_with_env};
use serde_json::{Value, json};

/// 64 characters, like those of `mix phx.gen.secret`.
const SECRET: &str = "jzC8A6PhPYq2PrSqDGjbUqmPoA0hV8Vb1c0nF9f3kM0QbZf1Zc0T1u6vN8tq2XyR";

/// Ed25519: the key in RFC 8037.
const PRIVATE: &str =
    include_str!("../../../../server/simurgh-token/tests/vectors/jwt/ed25519.pem");
const PUBLIC: &str =
    include_str!("../../../../server/simurgh-token/tests/vectors/jwt/ed25519.pub.pem");

const PRIVATE_JWK: &str =
    include_str!("../../../../server/simurgh-token/tests/vectors/jwt/rfc8037-a1.jwk");

/// Made by plug_crypto, and expired.
fn token_of_phoenix() -> &'static str {
    let vectors = include_str!("../../../../server/simurgh-token/tests/vectors/phoenix.tsv");
    let line = vectors.lines().find(|line| line.starts_with("map\t")).unwrap();
    line.rsplit('\t').next().unwrap()
}

#[track_caller]
fn printed(ran: &Ran) -> &str {
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    ran.stdout.trim_end()
}

/// Expects status 2, these words, and never the secret.
#[track_caller]
fn wrong(ran: &Ran, words: &str) {
    assert_eq!((ran.status.code(), ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
    assert!(ran.stderr.contains(words), "{words:?} is not in\n{}", ran.stderr);
    assert!(!ran.stderr.contains(SECRET), "{}", ran.stderr);
}

/// The JSON output, with the exit status.
#[track_caller]
fn inspected(dir: &Path, args: &[&str]) -> (i32, Value) {
    let ran = run(dir, &[&["token", "inspect", "--json"], args].concat());
    (ran.status.code().unwrap(), serde_json::from_str(&ran.stdout).expect(&ran.stderr))
}

#[test]
fn jwt_is_signed_with_a_secret_from_the_environment() {
    let dir = directory(&[("secret", &format!("{SECRET}\n")), ("other", &"x".repeat(40))]);
    let key = ("SIMURGH_TOKEN_KEY", SECRET);
    let flags = ["token", "sign", "--secret", "--sub", "alice", "--claims", r#"{"role":"admin"}"#];
    let ran = run_with_env(dir.path(), &flags, key);
    let token = printed(&ran);
    // The same key from a file with a final newline.
    let (status, said) = inspected(dir.path(), &[token, "--secret", "--key-file", "secret"]);
    assert_eq!((status, &said["verified"]), (0, &json!(true)));
    assert_eq!((&said["subject"], &said["algorithm"]), (&json!("alice"), &json!("HS256")));
    assert_eq!(said["claims"]["role"], "admin");
    let lifetime = said["expires_at"].as_f64().unwrap() - said["issued_at"].as_f64().unwrap();
    assert_eq!(lifetime, 3600.0);
    let (status, said) = inspected(dir.path(), &[token, "--secret", "--key-file", "other"]);
    assert_eq!((status, &said["verified"], &said["reason"]), (1, &json!(false), &json!("invalid")));
    let (status, said) = inspected(dir.path(), &[token]);
    assert_eq!((status, &said["verified"]), (0, &Value::Null));
    let audience = [token, "--secret", "--key-file", "secret", "--audience", "chat"];
    assert_eq!(inspected(dir.path(), &audience).1["reason"], "wrong_audience");
}

#[test]
fn inspect_prints_readable_lines() {
    let dir = directory(&[("secret", SECRET)]);
    let ran = run(dir.path(), &["token", "inspect", token_of_phoenix()]);
    let text = printed(&ran);
    for line in [
        "format     Phoenix.Token",
        "algorithm  HS256, by secret_key_base and a salt",
        "subject    \"42\"",
        "signed     2023-11-14T22:13:20Z, ",
        "  \"role\": \"admin\",",
        "verdict    not verified, because no key was given",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    let flags = ["--key-file", "secret", "--phoenix-salt", "user socket"];
    let old = run(dir.path(), &[&["token", "inspect", token_of_phoenix()], &flags[..]].concat());
    assert_eq!(old.status.code(), Some(1));
    assert!(old.stdout.contains("verdict    expired: the token expired "), "{}", old.stdout);
    // Escape sequences in a token do not reach the terminal.
    let claims = "{\"sub\":\"a\u{9b}31m\u{202e}\"}";
    let ran = run_with_env(
        dir.path(),
        &["token", "sign", "--secret", "--claims", claims],
        ("SIMURGH_TOKEN_KEY", SECRET),
    );
    let ran = run(dir.path(), &["token", "inspect", printed(&ran)]);
    assert!(printed(&ran).contains("\\u{9b}") && !ran.stdout.contains('\u{9b}'), "{}", ran.stdout);
    let broken = run(dir.path(), &["token", "inspect", "hello"]);
    assert_eq!(broken.status.code(), Some(1));
    assert!(broken.stdout.starts_with("invalid    the token is malformed"), "{broken:?}");
}

#[test]
fn phoenix_token_is_signed_and_verified() {
    let dir = directory(&[("secret", SECRET)]);
    let salt = ["--key-file", "secret", "--phoenix-salt", "user socket"];
    let sign = |more: &[&str]| run(dir.path(), &[&["token", "sign"], &salt[..], more].concat());
    for (flags, claims, subject) in [
        (&["--claims", "42"][..], json!(42), json!("42")),
        (&["--sub", "alice", "--expires-in", "never"], json!("alice"), json!("alice")),
        (&["--claims", r#"{"user_id":7}"#], json!({"user_id": 7}), json!("7")),
    ] {
        let ran = sign(flags);
        let token = printed(&ran);
        assert!(token.starts_with("SFMyNTY."), "{token}");
        let (status, said) = inspected(dir.path(), &[&[token], &salt[..]].concat());
        assert_eq!((status, &said["verified"]), (0, &json!(true)));
        assert_eq!((&said["claims"], &said["subject"]), (&claims, &subject));
        assert_eq!(said["expires_at"].is_null(), flags.contains(&"never"));
    }
    let ran = sign(&["--claims", "42"]);
    let other = [printed(&ran), "--key-file", "secret", "--phoenix-salt", "other"];
    assert_eq!(inspected(dir.path(), &other).1["reason"], "invalid");
    let saltless = ["token", "inspect", printed(&ran), "--key-file", "secret"];
    wrong(&run(dir.path(), &saltless), "add --phoenix-salt");
    let keyless = ["token", "inspect", printed(&ran), "--phoenix-salt", "user socket"];
    wrong(&run(dir.path(), &keyless), "no key given");
}

#[test]
fn private_keys_sign_and_public_ones_verify() {
    let one_line = PRIVATE.replace('\n', "");
    let files = [
        ("private.pem", PRIVATE),
        ("public.pem", PUBLIC),
        ("private.jwk", PRIVATE_JWK),
        ("set.jwks", &format!(r#"{{"keys":[{PRIVATE_JWK}]}}"#)),
        ("one_line.pem", &one_line),
    ];
    let dir = directory(&files);
    let sign = ["token", "sign", "--key-file", "private.pem", "--kid", "k1", "--sub", "bob"];
    let ran = run(dir.path(), &sign);
    for key in ["public.pem", "private.pem", "private.jwk"] {
        let (status, said) = inspected(dir.path(), &[printed(&ran), "--key-file", key]);
        assert_eq!((status, &said["algorithm"]), (0, &json!("EdDSA")), "{said}");
        assert_eq!(said["header"]["kid"], "k1");
    }
    let sign = ["token", "sign", "--key-file", "public.pem", "--sub", "bob"];
    wrong(&run(dir.path(), &sign), "it is a public key; signing needs the private one");
    let sign = |key| run(dir.path(), &["token", "sign", "--key-file", key, "--sub", "bob"]);
    wrong(&sign("set.jwks"), "it is a set of keys (JWKS): use");
    wrong(&sign("one_line.pem"), "Restore its line breaks");
    let sign = ["token", "sign", "--key-env", "ONE", "--sub", "bob"];
    let ran = run_with_env(dir.path(), &sign, ("ONE", &PRIVATE.replace('\n', "\\n")));
    wrong(&ran, "Restore its line breaks");
    assert!(!ran.stderr.contains("77, "), "{}", ran.stderr);
}

#[test]
fn invalid_arguments_are_reported_before_signing() {
    let dir = directory(&[("secret", SECRET), ("short", "hunter2"), ("empty", "\n")]);
    let sign = |flags: &[&str]| run(dir.path(), &[&["token", "sign", "--secret"], flags].concat());
    wrong(&sign(&["--sub", "a"]), "set the environment variable SIMURGH_TOKEN_KEY");
    wrong(&sign(&["--sub", "a", "--key-env", "NOT_SET"]), "set the environment variable NOT_SET");
    wrong(&sign(&["--sub", "a", "--key-file", "none"]), "cannot read the key none: ");
    wrong(&sign(&["--sub", "a", "--key-file", "empty"]), "the key is empty");
    let short = sign(&["--sub", "a", "--key-file", "short"]);
    wrong(&short, "the secret has 7 bytes; HS256 needs at least 32");
    assert!(!short.stderr.contains("hunter2"));
    let unsaid = run(dir.path(), &["token", "sign", "--sub", "a", "--key-file", "secret"]);
    wrong(&unsaid, "--secret on the command line");
    wrong(&sign(&["--key-file", "secret"]), "give --claims or --sub");
    wrong(&sign(&["--key-file", "secret", "--claims", "7"]), "must be a JSON object");
    wrong(&sign(&["--key-file", "secret", "--claims", "{"]), "is not JSON");
    wrong(&sign(&["--key-file", "secret", "--sub", "a", "--expires-in", "5"]), "time unit needed");
    let both = ["--key-file", "secret", "--key-env", "NOT_SET", "--sub", "a"];
    wrong(&sign(&both), "cannot be used with");
    let inspect = run(dir.path(), &["token", "inspect", "-", "--key-file", "-"]);
    wrong(&inspect, "standard input cannot be both key and token");
}
