//! The tests of the load generator, from outside. Only a test that needs a process of its own is
//! another program beside this one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "these sockets never meet a shard's table")]

#[path = "../outside/mod.rs"]
mod outside;
#[path = "../support/mod.rs"]
mod support;

mod answering_rules;
mod answers_made_to_take_long;
mod arriving_users;
mod bad_servers;
mod captures;
mod cut_connections;
mod fleet;
mod fuzz_corpus;
mod http_answers;
mod http_benchmark;
mod http_response;
mod long_polling;
mod lost_connections;
mod record;
mod report;
mod scenarios;
mod secure_connections;
mod several_servers;
mod stalled_server;
mod tls;
mod tsung_files;
mod tsung_run;
mod tsung_steps;
mod tsung_xml;
mod user_messages;
mod without_sockets;
