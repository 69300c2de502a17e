//! The commands of `simurgh`, each as a process of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "these sockets never meet a shard's table")]

mod api;
mod cluster;
mod cluster_faults;
mod cluster_history;
mod cluster_load;
mod config;
mod descriptors;
mod documents;
mod drive;
mod history_api;
mod load;
mod load_http;
mod observe;
mod own;
mod presence;
mod reload;
mod road;
mod schemas;
mod service;
mod serving;
mod support;
mod tls;
mod token;
mod tokens;
mod trace;
mod tune;
mod version;
