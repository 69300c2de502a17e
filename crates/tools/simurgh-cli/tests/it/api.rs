//! The commands that use the server API: publish, push, kick, disconnect, block,
//! unblock, revoke, topics and online.

use serde_json::{Value, json};

use crate::support::{Ran, Server, directory, run, run_with_env, simurgh};

const TOKEN: (&str, &str) = ("SIMURGH_API_TOKEN", "s3cret");
const SETTINGS: &str = "listen = [\"127.0.0.1:0\"]\n[token]\nkind = \"jwt\"\nkey_file = \"key\"\n\
    algorithms = [\"HS256\"]\nconnect = \"optional\"\n\
    [[channel]]\ntopic = \"rooms:*\"\n[[channel]]\ntopic = \"kept:*\"\nhistory = true\n";
const KEY: &str = "a secret of thirty-two bytes or more";

fn server() -> Server {
    let dir = directory(&[("simurgh.toml", SETTINGS), ("key", KEY)]);
    Server::start_with_env(&simurgh(), dir, &[], 1, &[TOKEN])
}

/// Runs a command against a server, and returns what it printed.
#[track_caller]
fn answer(server: &Server, words: &[&str]) -> String {
    let ran = ask(server, words);
    assert!(ran.status.success(), "{words:?}: {}", ran.stderr);
    ran.stdout
}

fn ask(server: &Server, words: &[&str]) -> Ran {
    let words = [words, &["--url", &server.addresses[0]]].concat();
    run_with_env(directory(&[]).path(), &words, TOKEN)
}

fn token(user: &str) -> String {
    let dir = directory(&[("key", KEY)]);
    let words = ["token", "sign", "--secret", "--key-file", "key", "--sub", user];
    let ran = run(dir.path(), &words);
    assert!(ran.status.success(), "{}", ran.stderr);
    ran.stdout.trim().to_owned()
}

#[test]
fn commands_of_the_api_show_what_the_server_answers() {
    let server = server();
    let path = format!("/socket/websocket?vsn=2.0.0&token={}", token("ann"));
    let mut ann = server.try_client(&path).unwrap();
    ann.join("rooms:a", json!({}));

    assert_eq!(answer(&server, &["publish", "rooms:a", "news", r#"{"n":1}"#]), "published\n");
    ann.expect("rooms:a", "news", json!({"n": 1}));
    let kept = ["publish", "kept:a", "news", "--id", "x"];
    assert!(answer(&server, &kept).starts_with("published at "));
    assert!(answer(&server, &kept).starts_with("was published before, at "));

    let push = ["push", "--user", "ann", "rooms:a", "note", r#"{"n":2}"#];
    assert_eq!(answer(&server, &push), "delivered to channels: 1\n");
    ann.expect("rooms:a", "note", json!({"n": 2}));

    assert_eq!(answer(&server, &["topics", "--prefix", "rooms:"]), "        1  rooms:a\n");
    let online = answer(&server, &["online", "ann", "bob"]);
    assert!(online.starts_with("ann: 1 connections, since 20"), "{online}");
    assert!(online.ends_with("bob: offline\n"), "{online}");
    let online = answer(&server, &["online", "ann", "--json"]);
    let online: Value = serde_json::from_str(&online).unwrap();
    assert_eq!(online["ann"]["connections"], 1);

    assert_eq!(answer(&server, &["revoke", "--jti", "none"]), "closed sockets: 0\n");
    assert_eq!(answer(&server, &["block", "bob", "--for", "1h"]), "closed sockets: 0\n");
    assert_eq!(answer(&server, &["unblock", "bob"]), "unblocked\n");
    let kick = ["kick", "--id", "user_socket:ann", "rooms:a"];
    assert_eq!(answer(&server, &kick), "closed channels: 1\n");
    assert_eq!(answer(&server, &["disconnect", "--user", "ann"]), "closed sockets: 1\n");
    assert_eq!(ann.close_code(), 1001);
    let mut ann = server.try_client(&path).unwrap();
    ann.join("rooms:a", json!({}));
    assert_eq!(answer(&server, &["block", "ann", "--topic", "rooms:*"]), "closed sockets: 1\n");
    assert_eq!(ann.close_code(), 1001);
    assert_eq!(answer(&server, &["revoke", "--user", "ann"]), "closed sockets: 0\n");
}

#[test]
fn commands_of_the_api_explain_errors() {
    let server = server();
    let unserved = ask(&server, &["publish", "nobody", "e"]);
    assert_eq!(unserved.status.code(), Some(1));
    assert!(unserved.stderr.contains("no channel has \"nobody\""), "{}", unserved.stderr);
    assert_eq!(answer(&server, &["publish", "nobody", "e", "--allow-unserved"]), "published\n");

    let dir = directory(&[("token", "s3cret\n"), ("wrong", "other")]);
    let url = &*server.addresses[0];
    let with = |more: &[&str]| run(dir.path(), &[&["topics", "--url", url], more].concat());
    assert!(with(&["--token-file", "token"]).status.success());
    for (more, status, says) in [
        (&["--token-file", "wrong"][..], 1, "the API token is missing or wrong"),
        (&["--token-file", "none"], 1, "cannot read none"),
        (&[], 1, "set SIMURGH_API_TOKEN"),
        (&["--limit", "0"], 2, "0 is not in 1..=1000"),
    ] {
        let ran = with(more);
        assert_eq!(ran.status.code(), Some(status), "{more:?}");
        assert!(ran.stderr.contains(says), "{more:?}: {}", ran.stderr);
    }
    for words in [&["kick", "rooms:a"][..], &["push", "--user", "a", "--id", "b", "t", "e"]] {
        assert_eq!(ask(&server, words).status.code(), Some(2), "{words:?}");
    }
    assert_eq!(ask(&server, &["publish", "rooms:a", "e", "{"]).status.code(), Some(2));
}
