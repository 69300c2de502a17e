//! The server under attack: everything is switched on, with small budgets.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;

use super::Attack;

/// A P-256 point (the generator): a valid public key whose private key signs nothing here.
const KEY: &str = r#"{"kty":"EC","crv":"P-256","alg":"ES256",
"x":"axfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpY",
"y":"T-NC4v4af5uO5-tKfA-eFivOM1drMV7Oy7ZAaDe_UfU""#;
const SECRET: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY";

/// Budgets of a shard in MiB: `inbound_budget`, `outbound_budget`, `mailbox_bytes_max`.
const BUDGETS_MIB: u32 = 64 + 64 + 16;
/// `inbound_budget` and `outbound_budget` again, for all HTTP connections together.
const HTTP_MIB: u32 = 64 + 64;
const HISTORY_MIB: u32 = 64;

/// The limit of memory beyond that of the idle server, MB: all budgets × 1.1. Histories may take
/// twice their budget, because their topics take memory, too.
pub(super) fn memory_limit_mb(attack: &Attack) -> f64 {
    let histories = if attack.fills { 2 * HISTORY_MIB } else { 0 };
    f64::from(attack.shards * BUDGETS_MIB + HTTP_MIB + histories) * 1.048_576 * 1.1
}

/// A token in the form of ES256 with a signature of no key.
pub(super) fn bad_token() -> String {
    let head = BASE64.encode(r#"{"alg":"ES256","typ":"JWT"}"#);
    let claims = BASE64.encode(r#"{"sub":"mallory","exp":4000000000}"#);
    format!("{head}.{claims}.{}", BASE64.encode([0x5a_u8; 64]))
}

/// Writes the keys, 64 of them without `kid`; returns the settings.
pub(super) fn settings(scratch: &Path) -> Result<String> {
    let keys = scratch.join("keys.json");
    let mut all = vec![format!(r#"{{"kty":"oct","alg":"HS256","kid":"own","k":"{SECRET}"}}"#)];
    all.extend((0..64).map(|_| format!("{KEY}}}")));
    fs::write(&keys, format!(r#"{{"keys":[{}]}}"#, all.join(",")))?;
    let keys = keys.display();
    Ok(format!(
        r#"inbound_budget = "64MiB"
outbound_budget = "64MiB"
history_bytes_max = "{HISTORY_MIB}MiB"
http_connections_max = 400
max_channels = 1000
longpoll = "10s"
drain_time = "1s"

[token]
kind = "jwt"
connect = "optional"
key_file = "{keys}"
on_expiry = "renew"

[[channel]]
kind = "supabase"

[[channel]]
topic = "rooms:*"
announce_join = "user:entered"
message_bytes_max = "64KiB"
presence = {{ key = "$presence", meta = {{}} }}
history = true
[[channel.event]]
name = "new:msg"
broadcast = "all"
reply = {{}}

[[channel]]
topic = "plain:*"
presence = {{ key = "$presence", meta = {{ pad = "$pad" }} }}
[[channel.event]]
name = "say"
broadcast = "all"

[[channel]]
topic = "large:*"
message_bytes_max = "10MB"
history = true

[[channel]]
topic = "ticket:*"
message_bytes_max = "10MB"
join = "ticket:joins"
join_token = "token"
"#
    ))
}

/// A good token of the only secret, made by the server's own program.
pub(super) fn token(program: &Path, scratch: &Path) -> Result<String> {
    let key = scratch.join("secret.json");
    fs::write(&key, format!(r#"{{"kty":"oct","alg":"HS256","kid":"own","k":"{SECRET}"}}"#))?;
    let output = Command::new(program)
        .args(["token", "sign", "--sub", "mallory", "--expires-in", "10h", "--key-file"])
        .arg(&key)
        .output()
        .context("token sign")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "token sign: {error}");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
