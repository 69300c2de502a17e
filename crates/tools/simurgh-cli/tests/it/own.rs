//! Your own application, here the example `own`, has the same commands.

use crate::support::{Server, directory, own, run_own};
use serde_json::{Value, json};

#[test]
fn application_channels_are_served_with_flags_and_file() {
    let dir = directory(&[("simurgh.toml", "listen = [\"127.0.0.1:0\"]\nlog_format = \"json\"\n")]);
    let server =
        Server::start_program(&own(), dir, &["--drain-time", "0s", "--close-timeout", "200ms"], 1);
    assert_eq!((server.get("/"), server.get("/healthz")), (404, 200), "no page but its own");
    let (mut client, mut other) = (server.client(), server.client());
    for client in [&mut client, &mut other] {
        client.join("echo:a", json!({}));
        client.ask("echo:a", "echo", json!([1.0]), "ok", json!([1.0]));
    }
    client.ask("echo:a", "divide", json!([6, 3]), "ok", json!({"quotient": 2}));
    client.send("echo:a", "divide", json!([6, 0]));
    assert_eq!(client.receive().2, "phx_error");
    other.ask("echo:a", "echo", json!(1), "ok", json!(1));
    server.signal("TERM");
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0));
    // If the shard had written the panic, it would not be JSON.
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let panics = lines.iter().filter(|line| {
        let text = |name: &str| line["fields"][name].as_str().unwrap_or_default().to_owned();
        text("message") == "panic: attempt to divide by zero"
            && text("thread").starts_with("shard-")
            && text("place").contains("own.rs")
    });
    assert_eq!(panics.count(), 1, "{log}");
}

#[test]
fn application_refuses_flags_and_keys_for_declared_channels() {
    let dir = directory(&[("simurgh.toml", "max_channels = 5\n[[channel]]\ntopic = \"a\"\n")]);
    let ran = run_own(dir.path(), &["serve", "--listen", "127.0.0.1:0", "--auth-token"]);
    assert_eq!(ran.status.code(), Some(2));
    for line in [
        "--auth-token: not available: this application declares its channels in Rust",
        "simurgh.toml:1: max_channels: not available: this application declares",
        "simurgh.toml:2: [[channel]]: not available: this application declares",
    ] {
        assert!(ran.stderr.contains(line), "{line:?} is not in\n{}", ran.stderr);
    }
    let help = run_own(dir.path(), &["serve", "--help"]).stdout;
    assert!(help.contains("--idle-timeout") && !help.contains("--max-channels"), "{help}");
    assert!(help.contains("Usage: own serve"), "{help}");
    let config = run_own(dir.path(), &["config"]).stdout;
    assert!(config.contains("idle_timeout") && !config.contains("[[channel]]"), "{config}");
}
