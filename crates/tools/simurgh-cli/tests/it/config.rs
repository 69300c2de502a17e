//! Every error of the configuration, as the binary reports it: file, line, key, and the allowed
//! values; no server is started.

use std::path::Path;

use crate::support::{Ran, Server, directory, run, run_with_env};

/// Flags that keep a server that starts by mistake from doing harm.
const SAFE: [&str; 3] = ["serve", "--listen", "127.0.0.1:0"];

/// `serve` and `config --check` both refuse this file, with exactly these lines in this order.
#[track_caller]
fn refused(toml: &str, lines: &[&str]) {
    let dir = directory(&[("simurgh.toml", toml)]);
    let served = run(dir.path(), &SAFE);
    let checked = run(dir.path(), &["config", "--check", "simurgh.toml"]);
    for ran in [served, checked] {
        assert_eq!(ran.status.code(), Some(2), "{ran:?}");
        assert_eq!(ran.stdout, "");
        let got: Vec<_> = ran.stderr.lines().collect();
        let (summary, got) = got.split_last().expect("a summary");
        assert!(summary.contains(&format!("{} mistake", lines.len())), "{summary}");
        assert_eq!(got.len(), lines.len(), "{got:#?}");
        for (got, expected) in got.iter().zip(lines) {
            let got = got.strip_prefix("simurgh.toml:").expect(got);
            assert!(got.starts_with(expected), "{got:?} does not begin with {expected:?}");
        }
    }
}

#[track_caller]
fn flags_refused(dir: &Path, flags: &[&str], words: &[&str]) -> Ran {
    let ran = run(dir, &[&SAFE, flags].concat());
    assert_eq!(ran.status.code(), Some(2), "{flags:?}: {ran:?}");
    for word in words {
        assert!(ran.stderr.contains(word), "{word:?} is not in\n{}", ran.stderr);
    }
    ran
}

/// The examples in docs/CONFIGURATION.md are accepted.
#[test]
fn examples_in_the_configuration_page_are_accepted() {
    let page = include_str!("../../../../../docs/CONFIGURATION.md");
    let dir = directory(&[("secret", "a secret of thirty-two bytes or more")]);
    let blocks: Vec<_> = page.split("```toml\n").skip(1).collect();
    assert_eq!(blocks.len(), 3);
    for block in blocks {
        let toml = block.split("```").next().unwrap();
        std::fs::write(dir.path().join("f.toml"), toml).unwrap();
        let ran = run(dir.path(), &["config", "--check", "f.toml"]);
        assert!(ran.status.success(), "{toml}\n{}", ran.stderr);
    }
}

#[test]
fn every_key_refuses_invalid_values() {
    refused(
        r#"
listen = ["127.0.0.1", "localhost:4000", "127.0.0.1:4000"]
admin_listen = "4001"
shards = 0
pin_shards = "yes"
idle_timeout = 60
handshake_timeout = "0s"
close_timeout = "5 fortnights"
drain_time = true
frame_bytes_max = 1
message_bytes_max = "10 potatoes"
inbound_budget = -1
outbound_bytes_max = 0
mailbox_bytes_max = 1.5
check_origin = ["example.com", "conn"]
trusted_proxies = ["10.0.0.0/33", "proxy"]
proxy_protocol = 1
api_token = "with spaces"
callback_warning = "x"
log = "loud"
log_format = "xml"
max_channels = 65536
auth_token = "on"
announce_joins_up_to = -5
"#,
        &[
            "2: listen: \"127.0.0.1\" is not an address with a port; it takes a list of addresses",
            "2: listen: \"localhost:4000\" is not an address",
            "3: admin_listen: \"4001\" is not an address with a port; it takes an address with",
            "4: shards: \"0\" is not a whole number from 1 to 4096; it takes",
            "5: pin_shards: is of the wrong type (string); it takes true or false",
            "6: idle_timeout: \"60\": time unit needed",
            "7: handshake_timeout: must be longer than 0; it takes a time such as",
            "8: close_timeout: \"5 fortnights\": unknown time unit",
            "9: drain_time: is of the wrong type (boolean)",
            "10: frame_bytes_max: \"1\" is less than 125 bytes; it takes a size such as",
            "11: message_bytes_max: \"10 potatoes\" has no known unit of size",
            "12: inbound_budget: \"-1\"",
            "13: outbound_bytes_max: must be at least 1 byte",
            "14: mailbox_bytes_max: is of the wrong type (float)",
            "15: check_origin: \"example.com\": write an origin as https://h.com",
            "15: check_origin: \"conn\" cannot be part of a list",
            "16: trusted_proxies: \"10.0.0.0/33\" is not a network; it takes a list of networks",
            "16: trusted_proxies: \"proxy\" is not a network",
            "17: proxy_protocol: is of the wrong type (integer)",
            "18: api_token: must not contain spaces",
            "19: callback_warning: \"x\"",
            "20: log: \"loud\" is not a level; it takes \"off\", \"error\"",
            "21: log_format: \"xml\" is not a format; it takes \"text\" or \"json\"",
            "22: max_channels: \"65536\" is not a whole number from 1 to 65535",
            "23: auth_token: is of the wrong type (string)",
            "24: announce_joins_up_to: \"-5\" is not a whole number",
        ],
    );
}

#[test]
fn every_presence_key_refuses_invalid_values() {
    refused(
        r#"presence_interval = "0s"
presence_list_max = -1
presence_summary_interval = 5
presence_sample = "few"
presence_key_bytes_max = 0
presence_meta_bytes_max = "4 potatoes"
presence_channel_entries_max = 0
"#,
        &[
            "1: presence_interval: must be longer than 0; it takes a time such as",
            "2: presence_list_max: \"-1\" is not a whole number from 0",
            "3: presence_summary_interval: \"5\": time unit needed",
            "4: presence_sample: \"few\" is not a whole number from 0",
            "5: presence_key_bytes_max: \"0\" is less than 32 bytes; it takes a size such as",
            "6: presence_meta_bytes_max: \"4 potatoes\" has no known unit of size",
            "7: presence_channel_entries_max: \"0\" is not a whole number from 1 to 65535",
        ],
    );
}

#[test]
fn every_mistake_of_an_api_token_is_named() {
    let hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let api = format!(
        r#"
[[api]]
name = "Orders"
token_sha256 = "{hash}"
scopes = ["publish", "publsh"]
[[api]]
name = "api_token"
token_sha256 = "9f86"
topics = ["a*b"]
[[api]]
name = "a"
token_env = "SIMURGH_TEST_UNSET"
scopes = ["read"]
[[api]]
name = "b"
token_sha256 = "{hash}"
scopes = "read"
colour = "red"
[[api]]
name = "c"
scopes = ["read"]
"#
    );
    refused(
        &api,
        &[
            "3: [[api]] name: must have 1 to 32 of a-z, 0-9 and _ (got \"Orders\")",
            "5: [[api]] scopes: \"publsh\" is unknown: use publish, control",
            "6: [[api]] scopes: is missing: some of publish, control",
            "7: [[api]] name: \"api_token\" is taken",
            "8: [[api]] token_sha256: must be 64 hexadecimal digits",
            "9: [[api]] topics: \"a*b\": a topic pattern may contain `*` only at its end",
            "12: [[api]] token_env: the environment variable SIMURGH_TEST_UNSET is not set",
            "17: [[api]] scopes: invalid type: string",
            "18: [[api]] colour: no such key",
            "19: [[api]] token_sha256: is missing",
        ],
    );
    let twice = format!(
        "[[api]]\nname = \"a\"\ntoken_sha256 = \"{hash}\"\nscopes = [\"read\"]\n\
         [[api]]\nname = \"a\"\ntoken_sha256 = \"{hash}\"\nscopes = [\"read\"]\n"
    );
    let of_the_first =
        ["6: [[api]] name: \"a\" is taken", "7: [[api]] token_sha256: is the token of \"a\", too"];
    refused(&twice, &of_the_first);
}

#[test]
fn unknown_keys_get_a_suggestion() {
    refused(
        "idle-timeout = \"1s\"\nlisten_on = []\nworkers = 4\n[server]\nport = 4000\n",
        &[
            "1: idle-timeout: no such key; did you mean idle_timeout?",
            "2: listen_on: no such key; did you mean listen?",
            "3: workers: no such key; `simurgh config` prints every key",
            "4: server: no such key",
        ],
    );
    refused(
        "[[channel]]\ntopic = \"a\"\nshards = 2\nmembers = 5\n[[channel.event]]\nname = \"b\"\n\
         broadcasts = \"all\"\n",
        &[
            "3: [[channel]] shards: no such key; move it above the first [[channel]]",
            "4: [[channel]] members: no such key",
            "7: [[channel.event]] broadcasts: no such key; did you mean broadcast?",
        ],
    );
}

#[test]
fn channels_are_checked_together_with_other_settings() {
    refused(
        r#"shards = 0

[[channel]]
topic = "rooms*:"
join_reply = { user = "$user", at = "$now.utc" }

[[channel]]
topic = "rooms:*"
payload_bytes_max = "big"

[[channel]]
topic = "rooms:*"

[[channel.event]]
name = "a"
reply = ["$"]

[[channel.event]]
name = "a"

[[channel]]
topic = "b"
announce_joins_up_to = 5
"#,
        &[
            "1: shards:",
            "4: [[channel]] topic: \"rooms*:\": a topic pattern may contain `*` only at its end",
            "5: [[channel]] join_reply: \"$now.utc\" is not a form. Forms are $name",
            "9: [[channel]] payload_bytes_max: invalid value: string \"big\", expected a size such",
            "12: [[channel]] topic: \"rooms:*\" is declared twice",
            "16: [[channel.event]] reply: \"$\" is not a form",
            "19: [[channel.event]] name: \"a\" is declared twice",
            "23: [[channel]] announce_joins_up_to: has no effect without announce_join",
        ],
    );
    refused(
        "[[channel]]\ntopic = \"a\"\npresence = \"yes\"\n\n[[channel]]\ntopic = \"b\"\n\
         presence = { key = \"$a.b\", meta = 5, name = \"x\" }\n\n\
         [[channel.event]]\nname = \"presence_diff\"\n\n[[channel]]\ntopic = \"c\"\n\
         presence = true\n[[channel.event]]\nname = \"presence_diff\"\n",
        &[
            "3: [[channel]] presence: must be true, false, or a table such as { key = \"$user\"",
            "7: [[channel]] presence: name: no such key; the keys are key and meta",
            "7: [[channel]] presence.key: \"$a.b\" is not a form. Forms",
            "7: [[channel]] presence.meta: must be a table, such as { name = \"$user\" }",
            "16: [[channel.event]] name: \"presence_diff\" is sent by presence",
        ],
    );
    refused("channel = 5\n", &["1: channel: write each channel as its own table, [[channel]]"]);
    refused("channel = [5]\n", &["1: [[channel]] must be a table, not integer"]);
    refused("[[channel]]\ndeny = []\n", &["1: [[channel]] topic: is missing"]);
    refused(
        "[[channel]]\ntopic = \"a\"\nevent = 5\n",
        &["3: event: write each event as its own table, [[channel.event]]"],
    );
    refused(
        "[[channel]]\ntopic = \"a\"\njoin_reply = { at = 2026-01-01 }\n",
        &["3: [[channel]] join_reply: \"$__toml_private_datetime\" cannot be the name"],
    );
}

#[test]
fn invalid_limits_are_named_with_their_lines() {
    refused(
        "max_connections_per_address = 0\nmax_connections_per_user = -1\n[limits]\njoins = 0\n\
         messages = \"often\"\nbytes = { rate = \"1MB/s\", policy = \"ban\" }\npayload_bytes = 5\n\
         shards = 1\n[[channel]]\ntopic = \"a\"\nlimits = { messages = -5 }\n",
        &[
            "1: max_connections_per_address: ",
            "2: max_connections_per_user: ",
            "4: [limits] joins: 0: a rate and its burst must be from 1 to 1099511627776",
            "5: [limits] messages: \"often\" is not a rate: use a number per second",
            "6: [limits] bytes: policy: \"ban\" is unknown: use \"reply\", \"drop\" or",
            "7: [limits] payload_bytes: no such key",
            "8: [limits] shards: no such key; move it above the first [limits]",
            "11: [[channel]] limits: messages: -5 is not a rate",
        ],
    );
}

#[test]
fn invalid_toml_is_refused_with_its_lines() {
    refused("shards = 1\nlisten = [\n", &["2: not TOML: unclosed array"]);
    refused("shards = 1\nshards = 2\n", &["2: not TOML: duplicate key"]);
    refused("shards: 1\n", &["1: not TOML: "]);
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    refused(
        "listen = [\"127.0.0.1:4001\", \"127.0.0.1:4002\"]\nproxy_protocol = true\n",
        &["2: proxy_protocol: needs trusted_proxies: list the proxies that send the header"],
    );
    let dir = directory(&[("simurgh.toml", "proxy_protocol = true\n")]);
    let proxies = ["--trusted-proxies", "10.0.0.1", "--config", "no.toml"];
    flags_refused(dir.path(), &proxies, &["cannot read no.toml"]);
    flags_refused(
        dir.path(),
        &["--listen", "127.0.0.1:9", "--listen", "127.0.0.1:9"],
        &[
            "--listen: 127.0.0.1:9 is listed twice",
            "simurgh.toml:1: proxy_protocol",
            "2 mistakes; nothing was started",
        ],
    );
}

#[test]
fn unreadable_files_are_named() {
    let dir = directory(&[]);
    for args in [&["serve", "--config", "none.toml"][..], &["config", "--check", "none.toml"]] {
        let ran = run(dir.path(), args);
        assert_eq!(ran.status.code(), Some(2));
        assert!(ran.stderr.starts_with("cannot read none.toml: No such file"), "{}", ran.stderr);
    }
    std::fs::write(dir.path().join("simurgh.toml"), b"log = \"\xff\"").unwrap();
    let ran = run(dir.path(), &SAFE);
    assert!(ran.stderr.starts_with("cannot read simurgh.toml: "), "{}", ran.stderr);
    std::fs::remove_file(dir.path().join("simurgh.toml")).unwrap();
    std::fs::create_dir(dir.path().join("simurgh.toml")).unwrap();
    let ran = run(dir.path(), &SAFE);
    assert_eq!(ran.status.code(), Some(2), "a directory is no absence: {}", ran.stderr);
}

#[test]
fn invalid_flags_are_named_with_the_allowed_values() {
    let dir = directory(&[]);
    for (flag, value, why) in [
        ("--listen", "4000", "is not an address with a port"),
        ("--shards", "0", "is not a whole number from 1 to 4096"),
        ("--idle-timeout", "60", "time unit needed"),
        ("--drain-time", "soon", "drain-time"),
        ("--inbound-budget", "lots", "has no known unit of size"),
        ("--message-bytes-max", "1B", "is less than 125 bytes"),
        ("--max-channels", "0", "is not a whole number from 1 to 65535"),
        ("--check-origin", "example.com", "write an origin as https://h.com"),
        ("--trusted-proxies", "10.0.0.0/8,x", "\"x\" is not a network"),
        ("--log", "verbose", "is not a level"),
        ("--log-format", "yaml", "is not a format"),
        ("--api-token", "two words", "must not contain spaces"),
    ] {
        let ran = flags_refused(dir.path(), &[flag, value], &[flag, why]);
        assert_eq!(ran.stdout, "");
    }
    flags_refused(dir.path(), &["--idle-timout", "1s"], &["--idle-timeout"]);
}

/// A refused secret is not logged.
#[test]
fn api_token_from_the_environment_is_checked_and_never_shown() {
    let dir = directory(&[]);
    let ran = run_with_env(dir.path(), &SAFE, ("SIMURGH_API_TOKEN", "hush hush"));
    assert_eq!(ran.status.code(), Some(2));
    assert!(ran.stderr.contains("SIMURGH_API_TOKEN") && !ran.stderr.contains("hush"), "{ran:?}");
    let ran = run_with_env(dir.path(), &["serve", "--help"], ("SIMURGH_API_TOKEN", "hush"));
    assert!(ran.stdout.contains("SIMURGH_API_TOKEN") && !ran.stdout.contains("hush"), "{ran:?}");
}

#[test]
fn printed_file_starts_a_server_unchanged() {
    let dir = directory(&[]);
    let printed = run(dir.path(), &["config"]);
    assert_eq!((printed.status.code(), &*printed.stderr), (Some(0), ""));
    std::fs::write(dir.path().join("simurgh.toml"), &printed.stdout).unwrap();
    let checked = run(dir.path(), &["config", "--check", "simurgh.toml"]);
    assert_eq!((checked.status.code(), &*checked.stdout), (Some(0), "simurgh.toml: ok\n"));
    // A test has to change only the address; the flag overrides the file.
    let server = Server::start_in(dir, &["--listen", "127.0.0.1:0"], 1);
    assert!(!server.addresses[0].ends_with(":4000"));
    assert_eq!(server.get("/"), 200);
    server.client().join("rooms:lobby", serde_json::json!({"user": "ann"}));
}

#[test]
fn help_names_every_flag_with_its_default() {
    let dir = directory(&[]);
    let short = run(dir.path(), &["serve", "-h"]).stdout;
    let long = run(dir.path(), &["serve", "--help"]).stdout;
    let config = run(dir.path(), &["config"]).stdout;
    let keys = config.lines().take_while(|line| *line != "[[channel]]");
    let keys = keys.filter_map(|line| line.trim_start_matches('#').split_once(" = "));
    let keys: Vec<_> = keys.filter(|(key, _)| !key.contains(' ')).collect();
    // Otherwise this test no longer matches the file.
    assert!(keys.len() > 20, "{keys:?}");
    for (key, _) in keys {
        let flag = format!("--{}", key.replace('_', "-"));
        for help in [&short, &long] {
            assert!(help.contains(&format!("{flag} <")) || help.contains(&format!("{flag}[=<")));
        }
    }
    for text in ["[default: 127.0.0.1:4000]", "[default: 60s]", "Exit status: 0 after a drain"] {
        assert!(short.contains(text), "{text:?} is not in\n{short}");
    }
    assert!(long.contains("Cost: nothing per client; with \"off\""), "{long}");
    for help in [&short, &long] {
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }
    let all = run(dir.path(), &[]);
    assert_eq!(all.status.code(), Some(2), "no command is a mistake");
    assert!(all.stderr.contains("serve") && all.stderr.contains("config"), "{all:?}");
}
