//! Questions to an application over HTTP: may this client connect, join, publish?
//!
//! ```text
//!   shards ── Hook::ask ─► cache ─► Now(Verdict)
//!                            │ miss
//!                            ▼
//!                    queue ─ limit ─ breaker ─► thread `simurgh-hooks` ─► HTTP ─► application
//!                                                       │
//!   Later(Verdict) ◄── status and answer ◄──────────────┘
//! ```
//! - [`Secret`]: signatures by Standard Webhooks 1.0.
//! - [`Answer`]: the grants of an application.
//! - [`Hook`]: one application; [`Hooks`]: all of them, and the thread that asks.
//!
//! This crate knows neither shards nor client sockets. Limit, breaker, queue, cache and the reading
//! of answers are pure: time is an argument.
//!
//! The feature `fuzz`, which is off by default, opens the reader of answers to this project's fuzz
//! targets.

#![forbid(unsafe_code)]

mod answer;
mod breaker;
mod cache;
mod client;
mod config;
mod document;
mod figures;
mod hook;
mod hooks;
mod limiter;
mod news;
mod notice_config;
mod notice_json;
mod notices;
mod question;
mod queue;
mod request;
mod secret;
mod shared;
mod verdict;

#[cfg(feature = "fuzz")]
pub use answer::fuzz::run as fuzz_answer;
pub use answer::{Answer, ConnectAnswer, Extra, IdOf, JoinAnswer, MessageAnswer, Publish};
pub use breaker::BreakerState;
pub use config::{HookConfig, OnFailure, TlsConfig};
pub use document::Document;
pub use figures::{BUCKETS_US, HookFigures, QuestionFigures};
pub use hook::{Asked, Hook, Place, Unanswered};
pub use hooks::{Cluster, Hooks, StartError};
pub use notice_config::{NOTICE_TYPES, NoticeConfig};
pub use notices::{
    LogPlace, NoticeFigures, NoticesFigures, NoticesInbox, NoticesQuery, NoticesStart, Outside,
};
pub use question::{CacheInputs, Kind, Question};
pub use secret::{Secret, SecretError};
pub use shared::Shared;
pub use verdict::{Failure, FailureKind, Refusal, Verdict};
