//! Tests of the server as a library, over real sockets and over the driver.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "these sockets never meet a shard's table")]

#[cfg(feature = "token")]
mod api_access;
#[cfg(feature = "token")]
mod api_lists;
#[cfg(feature = "token")]
mod api_orders;
mod api_tokens;
mod async_handles;
mod async_secrets;
mod asynchronous;
mod bad_resumes;
mod bounds;
mod driver;
mod entrances;
mod fairness;
#[cfg(feature = "hooks")]
mod grants;
mod hibernation;
mod history_api;
mod history_cluster;
mod history_waiting;
mod http_drain;
mod http_files;
mod http_half_close;
mod http_hosts;
mod http_limits;
mod http_places;
mod http_smuggling;
mod library;
mod long_payloads;
mod longpoll;
mod metrics;
#[cfg(all(feature = "hooks", feature = "schema"))]
mod monitoring;
mod observer;
mod observer_cluster;
mod off_shard;
#[cfg(feature = "hooks")]
mod openapi;
#[cfg(feature = "hooks")]
mod openapi_webhooks;
mod presence;
mod pubsub;
mod regressions;
mod resuming;
#[cfg(feature = "token")]
mod sightings;
mod state_dir;
mod supabase;
#[cfg(feature = "token")]
mod supabase_tokens;
mod support;
#[cfg(target_os = "linux")]
mod takeover;
mod tls;
mod tls_settings;
#[cfg(feature = "token")]
mod tokens;
mod unix;
