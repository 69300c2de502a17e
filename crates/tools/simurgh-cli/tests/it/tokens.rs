//! The table `[token]`: who may connect, join and publish, and mistakes in settings.

use crate::support::{Server, directory, run, simurgh};
use serde_json::json;

const SECRET: &str = "a secret of thirty-two bytes or more";
/// A secret whose form says so.
const JWK: &str =
    r#"{"kty":"oct","alg":"HS256","k":"YSBzZWNyZXQgb2YgdGhpcnR5LXR3byBieXRlcyBvciBtb3Jl"}"#;

const ANYWHERE: [&str; 2] = ["--listen", "127.0.0.1:0"];

fn sign(claims: &str) -> String {
    let dir = directory(&[("secret", SECRET)]);
    let words = [
        "token",
        "sign",
        "--secret",
        "--key-file",
        "secret",
        "--expires-in",
        "1m",
        "--claims",
        claims,
    ];
    let ran = run(dir.path(), &words);
    assert!(ran.status.success(), "{}", ran.stderr);
    ran.stdout.trim_end().to_owned()
}

#[test]
fn phoenix_key_is_read_from_the_environment() {
    let toml = "[token]\nkind = \"phoenix\"\nkey_env = \"KEY\"\nsalt = \"user socket\"\n\
                max_age = \"infinity\"\n[[channel]]\ntopic = \"own:*\"\njoin = \"own:{sub}\"\n";
    let dir = directory(&[("simurgh.toml", toml), ("key", SECRET)]);
    let words =
        ["token", "sign", "--key-file", "key", "--phoenix-salt", "user socket", "--claims", "42"];
    let ran = run(dir.path(), &words);
    assert!(ran.status.success(), "{}", ran.stderr);
    let server = Server::start_with_env(&simurgh(), dir, &ANYWHERE, 1, &[("KEY", SECRET)]);
    let path = format!("/socket/websocket?vsn=2.0.0&token={}", ran.stdout.trim_end());
    server.try_client(&path).unwrap().join("own:42", json!({}));
}

#[test]
fn join_token_grants_its_topic_only() {
    let toml = r#"
        [token]
        kind = "jwt"
        connect = "optional"
        key_file = "secret"

        [[channel]]
        topic = "room:*"
        join = "room:{claims.room}"
        publish = "claims.speaks"
        join_token = "ticket"
        announce_join = "entered"
        announce_payload = { name = "$name" }

        [[channel.event]]
        name = "say"
        broadcast = "all"
        reply = {}
    "#;
    let dir = directory(&[("simurgh.toml", toml), ("secret", JWK)]);
    let server = Server::start_in(dir, &ANYWHERE, 1);
    let path = "/socket/websocket?vsn=2.0.0";
    assert_eq!(server.try_client(&format!("{path}&token=x")).unwrap_err(), "invalid\n");
    let ticket = |claims: &str| json!({"name": "ann", "ticket": sign(claims)});
    let refused = |reason: &str| json!({ "reason": reason });
    let mut ann = server.try_client(path).unwrap();
    ann.ask("room:a", "phx_join", json!({}), "error", refused("unauthorized"));
    let null = json!({"ticket": null});
    ann.ask("room:a", "phx_join", null, "error", refused("unauthorized"));
    for payload in [json!({"ticket": "x"}), json!({"ticket": 5}), json!({"ticket": {}})] {
        ann.ask("room:a", "phx_join", payload, "error", refused("invalid"));
    }
    let other = ticket(r#"{"room": "b"}"#);
    ann.ask("room:a", "phx_join", other, "error", refused("unauthorized"));
    ann.join("room:a", ticket(r#"{"room": "a"}"#));
    ann.expect("room:a", "entered", json!({"name": "ann"}));
    ann.ask("room:a", "say", json!({}), "error", refused("unauthorized"));
    // The token of the join overrides that of the socket.
    let socket = sign(r#"{"room": "a"}"#);
    let mut bob = server.try_client(&format!("{path}&token={socket}")).unwrap();
    bob.join("room:b", ticket(r#"{"room": "b", "speaks": true}"#));
    bob.expect("room:b", "entered", json!({"name": "ann"}));
    let msg_ref = bob.send("room:b", "say", json!({"n": 1}));
    bob.expect("room:b", "say", json!({"n": 1}));
    bob.expect_reply(msg_ref, "room:b", "ok", json!({}));
    bob.join("room:a", json!({}));
    bob.expect("room:a", "entered", json!({"name": null}));
    bob.ask("room:a", "say", json!({}), "error", refused("unauthorized"));
    assert_eq!(server.metric("simurgh_errors_unauthorized_total"), 8);
}

/// The output of `config --check` for a file.
#[track_caller]
fn complaints(toml: &str, files: &[(&str, &str)]) -> String {
    let dir = directory(&[&[("f.toml", toml)], files].concat());
    let ran = run(dir.path(), &["config", "--check", "f.toml"]);
    assert_eq!(ran.status.code(), Some(2), "{}{}", ran.stdout, ran.stderr);
    assert!(!ran.stderr.contains(SECRET), "{}", ran.stderr);
    ran.stderr
}

/// Settings, and the error about them.
const WRONG: &[(&str, &str)] = &[
    ("[token]\n", "f.toml:1: [token] kind: is missing: \"jwt\""),
    ("[token]\nkind = \"saml\"\n", "f.toml:2: [token] kind: unknown variant `saml`"),
    ("[token]\nkind = \"jwt\"\n", "f.toml:1: [token] key_file: is missing"),
    ("[token]\nkind = \"jwt\"\nkey = \"x\"\n", "f.toml:3: [token] key: no such key;"),
    ("[token]\nkind = \"jwt\"\nkey_file = \"none\"\n", "f.toml:3: [token] key_file: cannot read"),
    ("[token]\nkind = \"jwt\"\nkey_env = \"NO_KEY\"\n", "f.toml:3: [token] key_env: the envi"),
    (
        "[token]\nkind = \"jwt\"\nkey_file = \"secret\"\nkey_env = \"A\"\n",
        "f.toml:4: [token] key_env: key_file is set, too",
    ),
    (
        "[token]\nkind = \"jwt\"\nkey_file = \"secret\"\njwks_url = \"https://id.example/k\"\n",
        "f.toml:4: [token] jwks_url: key_file or key_env is set, too",
    ),
    (
        "[token]\nkind = \"jwt\"\njwks_url = \"http://id.example/k\"\n",
        "f.toml:3: [token] jwks_url: would read keys over the network without TLS",
    ),
    (
        "[token]\nkind = \"jwt\"\njwks_url = \"file:///k\"\n",
        "f.toml:3: [token] jwks_url: \"file:///k\" must begin with http:// or https://",
    ),
    (
        "[token]\nkind = \"phoenix\"\njwks_url = \"https://id.example/k\"\n",
        "f.toml:3: [token] jwks_url: applies only to kind = \"jwt\"",
    ),
    (
        "[token]\nkind = \"jwt\"\njwks_url = \"https://id.example/k\"\ntls_ca = \"none\"\n",
        "f.toml:4: [token] tls_ca: cannot read none",
    ),
    ("[token]\nkind = \"jwt\"\nkey_file = \"short\"\n", "f.toml:3: [token] key_file: "),
    ("[token]\nkind = \"jwt\"\nkey_file = \"broken\"\n", "key_file: its keys are not an array"),
    (
        "[token]\nkind = \"jwt\"\nkey_file = \"secret\"\nalgorithms = [\"none\"]\n",
        "f.toml:4: [token] algorithms: \"none\" is unknown: use ES256, EdDSA, HS256, RS256",
    ),
    (
        "[token]\nkind = \"jwt\"\nkey_file = \"secret\"\nalgorithms = [\"RS256\"]\n",
        "f.toml:3: [token] key_file: ",
    ),
    (
        "[token]\nkind = \"jwt\"\nkey_file = \"secret\"\nsalt = \"x\"\n",
        "f.toml:4: [token] salt: applies only to kind = \"phoenix\"",
    ),
    ("[token]\nkind = \"phoenix\"\nkey_file = \"secret\"\n", "f.toml:1: [token] salt: is missing"),
    (
        "[token]\nkind = \"phoenix\"\nkey_file = \"secret\"\nsalt = \"s\"\nmax_age = \"0s\"\n",
        "f.toml:5: [token] max_age: must be longer than 0",
    ),
    (
        "[token]\nkind = \"jwt\"\nkey_file = \"secret\"\nleeway = \"soon\"\n",
        "f.toml:4: [token] leeway: \"soon\"",
    ),
    (
        "[token]\nkind = \"jwt\"\nkey_file = \"secret\"\nsocket_id = \"u:{\"\n",
        "f.toml:4: [token] socket_id: \"u:{\": a { has no }",
    ),
    (
        "[token]\nkind = \"jwt\"\nkey_file = \"secret\"\non_expiry = \"stay\"\n",
        "f.toml:4: [token] on_expiry: unknown variant `stay`",
    ),
    (
        "[[channel]]\ntopic = \"a:*\"\njoin = \"a:{sub}\"\n",
        "f.toml:3: [[channel]] join: needs tokens, but the server has no [token]",
    ),
    (
        "[token]\nkind = \"jwt\"\nconnect = \"never\"\nkey_file = \"secret\"\n",
        "f.toml:3: [token] connect: unknown variant `never`",
    ),
    (
        "[[channel]]\ntopic = \"a:*\"\njoin_token = \"t\"\n",
        "f.toml:3: [[channel]] join_token: needs tokens",
    ),
    (
        "[token]\nkind = \"jwt\"\nkey_file = \"secret\"\n[[channel]]\ntopic = \"a:*\"\n\
         join_token = \"t\"\n",
        "f.toml:6: [[channel]] join_token: has no effect without rules",
    ),
    (
        "[token]\nkind = \"jwt\"\nkey_file = \"secret\"\n[[channel]]\ntopic = \"a:*\"\n\
         join = \"a:{sub}\"\njoin_token = \"t\"\nannounce_join = \"in\"\n",
        "[[channel]] announce_payload: would send the token",
    ),
    (
        "[token]\nkind = \"jwt\"\nkey_file = \"secret\"\n[[channel]]\ntopic = \"a:*\"\n\
         join = \"a:{sub}\"\njoin_token = \"t\"\npresence = { meta = { x = \"$t\" } }\n",
        "[[channel]] presence: would send the token",
    ),
    (
        "[token]\nkind = \"jwt\"\nkey_file = \"secret\"\n[[channel]]\ntopic = \"a:*\"\n\
         join = \"b:{sub}\"\npublish = \"a:{\"\n",
        "f.toml:6: [[channel]] join: \"b:{sub}\" matches no topic of \"a:*\"",
    ),
    ("[token]\naudience = \"a\"\n", "f.toml:2: [token] audience: no such key; did you mean aud?"),
    ("[token]\nkind = \"jwt\"\nkey_file = \"one_line\"\n", "key_file: it is a private key"),
    ("[token]\nkind = \"jwt\"\nkey_file = \"damaged\"\n", "Restore its line breaks"),
    (
        "[token]\nkind = \"jwt\"\nkey_file = \"secret\"\n[[channel]]\ntopic = \"a:*\"\n\
         join = \"a:{claim.team}\"\n",
        "f.toml:6: [[channel]] join: \"a:{claim.team}\": {claim.team} is not a claim",
    ),
];

/// The lists of what is allowed: an empty one would allow everybody.
#[test]
fn empty_allow_list_is_refused() {
    for key in ["iss", "aud", "algorithms"] {
        let toml = format!("[token]\nkind = \"jwt\"\nkey_file = \"secret\"\n{key} = []\n");
        let found = complaints(&toml, &[("secret", JWK)]);
        let expected = format!("f.toml:4: [token] {key}: the list is empty");
        assert!(found.contains(&expected), "{found}");
    }
    for key in ["join", "publish"] {
        let toml = format!("[[channel]]\ntopic = \"a:*\"\n{key} = []\n");
        let found = complaints(&toml, &[]);
        let expected = format!("f.toml:3: [[channel]] {key}: the list is empty");
        assert!(found.contains(&expected), "{found}");
    }
}

#[test]
fn invalid_token_settings_are_refused_with_their_lines() {
    let secret = [("secret", JWK), ("short", "too short"), ("broken", "{\"keys\": 5}")];
    let one_line = "-----BEGIN PRIVATE KEY-----\\nMIIEvQ\\n-----END PRIVATE KEY-----";
    let damaged = one_line.replace("PRIVATE", "PUBLIC");
    let secret = [&secret[..], &[("one_line", one_line), ("damaged", &damaged)]].concat();
    for (toml, expected) in WRONG {
        let found = complaints(toml, &secret);
        assert!(found.contains(expected), "{expected:?} is not in\n{found}");
        assert!(!found.contains("77, 73, 73"), "the key as a list of bytes:\n{found}");
    }
}

/// The lines of `simurgh config` with a key of the table.
fn printed_settings() -> Vec<String> {
    let printed = run(directory(&[]).path(), &["config"]).stdout;
    let setting = |line: &str| {
        let line = line.strip_prefix("#   ")?;
        let is_key = line.split_once(" = ")?.0.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        is_key.then(|| line.split("  ").next().unwrap_or(line).trim_end().to_owned())
    };
    let lines = printed.split("Keys of the table:").nth(1).unwrap();
    let lines: Vec<_> = lines.split("# Several nodes").next().unwrap().lines().collect();
    lines.into_iter().filter_map(setting).collect()
}

/// The examples in docs/TOKENS.md are accepted, and it names every key of the table.
#[test]
fn token_page_names_every_key_and_its_examples_are_valid() {
    let page = include_str!("../../../../../docs/TOKENS.md");
    let dir = directory(&[("secret_key_base", SECRET), ("secret", SECRET)]);
    let blocks: Vec<_> = page.split("```toml\n").skip(1).collect();
    assert!(blocks.len() > 2, "{}", blocks.len());
    for block in blocks {
        let block = block.split("```").next().unwrap();
        let toml = match block.contains("[token]") {
            true => block.to_owned(),
            false => format!(
                "[token]\nkind = \"jwt\"\nkey_file = \"secret\"\n\
                              algorithms = \"HS256\"\n{block}"
            ),
        };
        std::fs::write(dir.path().join("f.toml"), &toml).unwrap();
        let ran = run(dir.path(), &["config", "--check", "f.toml"]);
        assert!(ran.status.success(), "{toml}\n{}", ran.stderr);
    }
    let table = page.split("| key | for | default | |").nth(1).unwrap();
    let table = table.split("\n\n").next().unwrap();
    let settings = printed_settings();
    let keys: Vec<_> = settings.iter().map(|line| line.split(" = ").next().unwrap()).collect();
    assert!(keys.contains(&"kind") && keys.contains(&"on_expiry"), "{keys:?}");
    for key in keys {
        assert!(table.contains(&format!("`{key}`")), "{key} is not in the table of the page");
    }
}

/// Its lines are comments, so that names of other users' files need not be deleted.
#[test]
fn printed_token_table_can_be_used_unchanged() {
    let dir = directory(&[("secret_key_base", SECRET), ("secret", SECRET)]);
    let settings = printed_settings();
    assert_eq!(settings.len(), 13, "{settings:#?}");
    let of = |kind: &str, others: &[&str]| {
        let is_other = |line: &str| others.iter().any(|key| line.starts_with(key));
        let own = settings.iter().filter(|line| !line.starts_with("kind") && !is_other(line));
        let own: Vec<_> = own.map(|line| line.split(" \"phoenix\"").next().unwrap()).collect();
        format!("[token]\nkind = \"{kind}\"\n{}\n", own.join("\n"))
    };
    for toml in [
        of("phoenix", &["key_env", "jwks_url", "algorithms", "iss", "aud"]),
        of("jwt", &["key_env", "jwks_url", "salt", "max_age"]).replace("ES256", "HS256"),
        of("jwt", &["key_env", "key_file", "salt", "max_age"]),
    ] {
        std::fs::write(dir.path().join("f.toml"), &toml).unwrap();
        let ran = run(dir.path(), &["config", "--check", "f.toml"]);
        assert!(ran.status.success(), "{toml}\n{}", ran.stderr);
    }
}

/// With verified names a client cannot speak as somebody else, whatever it sends.
#[test]
fn templates_use_verified_identity_and_check_warns_of_client_fields() {
    let dir = directory(&[("secret", JWK)]);
    let check = |event: &str| {
        let toml = format!(
            "[token]\nkind = \"jwt\"\nkey_file = \"secret\"\n[[channel]]\ntopic = \"a:*\"\n\
             [[channel.event]]\nname = \"say\"\nbroadcast = \"all\"\npayload = {event}\n"
        );
        std::fs::write(dir.path().join("f.toml"), toml).unwrap();
        run(dir.path(), &["config", "--check", "f.toml"])
    };
    let trap = check("{ user = \"$user\", body = \"$body\" }");
    assert!(trap.status.success(), "{}", trap.stderr);
    assert!(trap.stderr.contains("f.toml:5: [[channel]]: \"$user\" is chosen by the client"));
    assert!(trap.stderr.contains("$token.claims.user"), "{}", trap.stderr);
    let good = check("{ user = \"$token.sub\", body = \"$body\" }");
    assert!(good.status.success() && good.stderr.is_empty(), "{}", good.stderr);
    let claims = check("{ user = \"$claims.sub\" }");
    assert!(!claims.status.success() && claims.stderr.contains("$token.sub"), "{}", claims.stderr);
    for trap in ["$nickname", "$owner_id", "$displayName", "$login"] {
        let checked = check(&format!("{{ x = \"{trap}\" }}"));
        assert!(checked.stderr.contains(&format!("\"{trap}\" is chosen by the client")), "{trap}");
    }
    let renamed = check("{ author = \"$x\", body = \"$body\" }");
    assert!(renamed.stderr.contains("\"$x\" is chosen by the client"), "{}", renamed.stderr);
    assert!(!renamed.stderr.contains("$body"), "{}", renamed.stderr);
    for (wrong, told) in [("\"$token\"", "is not a form"), ("\"hi $token.sub\"", "the whole text")]
    {
        let checked = check(&format!("{{ user = {wrong} }}"));
        assert!(!checked.status.success() && checked.stderr.contains(told), "{}", checked.stderr);
    }
    let of_channel = |keys: &str| {
        let toml = format!(
            "[token]\nkind = \"jwt\"\nkey_file = \"secret\"\n[[channel]]\ntopic = \"a:*\"\n{keys}\n"
        );
        std::fs::write(dir.path().join("f.toml"), toml).unwrap();
        run(dir.path(), &["config", "--check", "f.toml"])
    };
    let announced = of_channel("announce_join = \"entered\"");
    assert!(announced.stderr.contains("\"$payload\" is chosen"), "{}", announced.stderr);
    for event in ["", "payload = \"$payload\""] {
        let keys = format!("[[channel.event]]\nname = \"*\"\nbroadcast = \"others\"\n{event}");
        let passed = of_channel(&keys);
        assert!(passed.stderr.contains("\"$payload\" is chosen by the client"), "{keys}");
        let quiet = of_channel(&keys.replace("others", "none").replace(event, ""));
        assert!(quiet.status.success() && quiet.stderr.is_empty(), "{}", quiet.stderr);
    }
    let present = of_channel("presence = { key = \"$x\" }");
    assert!(present.stderr.contains("\"$x\" is chosen"), "{}", present.stderr);
    let toml = "[[channel]]\ntopic = \"a:*\"\njoin_reply = { me = \"$token.sub\" }\n";
    std::fs::write(dir.path().join("f.toml"), toml).unwrap();
    let without = run(dir.path(), &["config", "--check", "f.toml"]);
    assert!(without.stderr.contains("add that table"), "{}", without.stderr);
}

#[test]
fn check_warns_of_an_event_named_like_the_join_announcement() {
    let toml =
        "[[channel]]\ntopic = \"a:*\"\nannounce_join = \"in\"\n[[channel.event]]\nname = \"in\"\n";
    let dir = directory(&[("f.toml", toml)]);
    let checked = run(dir.path(), &["config", "--check", "f.toml"]);
    let expected = "f.toml:3: [[channel]]: \"in\" announces joins";
    assert!(checked.status.success() && checked.stderr.contains(expected), "{}", checked.stderr);
}

#[test]
fn example_of_a_public_server_is_accepted_without_a_warning() {
    let page = include_str!("../../../../../docs/SECURITY.md");
    let example = page.split("## A server that is open to the world").nth(1).unwrap();
    let toml = example.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let pem = include_str!("../../../../server/simurgh-token/tests/vectors/jwt/ed25519.pub.pem");
    let dir = directory(&[("f.toml", toml), ("public.pem", pem)]);
    let checked = run(dir.path(), &["config", "--check", "f.toml"]);
    assert!(checked.status.success() && checked.stderr.is_empty(), "{}", checked.stderr);
}
