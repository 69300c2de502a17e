//! All tests of the server binaries: PROTOCOL §14 row by row, and what lies around it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "these sockets never meet a shard's table")]

mod bad_input;
mod binary;
mod broadcasting;
mod chat;
mod closing;
mod compression;
mod connecting;
mod joining;
mod leaving;
mod limits;
mod load_cli;
mod load_cli_dashboard;
mod load_cli_end;
mod load_exact;
mod load_longpoll;
mod load_phoenix;
mod load_presence;
mod longpoll;
mod overload;
mod plain_chat;
mod presence;
mod pushing;
#[path = "../../../../crates/load/simurgh-load/tests/outside/ran.rs"]
mod ran;
mod serve;
mod supabase;
mod support;
mod suspended;
mod tokens;
