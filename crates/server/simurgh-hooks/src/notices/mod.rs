//! Notices: what has happened is reported to applications, once by id, also if a node is killed.
//!
//! ```text
//! shards ── sightings ─┐                        ┌─► Outside::report ─► coordinators on other nodes
//! other nodes ─ reports┼─► Driver ─► Notices ───┼─► Log: memory, files, Outside::log ─► broker
//! log, peers ──────────┘      ▲                 └─► Hook::notify ─► HTTP ─► application
//!                             └────────────────────── outcome ◄────────────┘
//! ```
//! The decisions are those of [`simurgh_notices`]; here are its clock, its logs and its requests.

mod body;
mod driver;
mod figures;
mod files;
mod query;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use simurgh_cluster::{LogCommand, LogEvent};
use simurgh_notices::{HookRule, Settings, Sighting, Verdict};
use simurgh_proto::topic::Pattern;
use tokio::sync::{mpsc, oneshot};

pub(crate) use self::body::to_data;
pub(crate) use self::driver::{Driver, FindHook};
pub use self::figures::{NOTICE_TYPES, NoticeFigures, NoticesFigures};
pub use self::query::NoticesQuery;
use crate::shared::lock;

/// The notices that a hook wants.
#[derive(Clone, Debug, PartialEq)]
pub struct NoticeConfig {
    /// Their types, as a sum of [`HookRule::bit`]s.
    pub types: u8,
    /// The topics of notices about members and topics; empty: all.
    pub topics: Vec<Pattern>,
    /// The most notices of a request. Default: 100.
    pub batch: usize,
    /// How long the first notice of a request waits for others. Default: 200 ms.
    pub batch_time: Duration,
    /// A notice that is not accepted within this time is a dead letter. Default: 24 h.
    pub retry_for: Duration,
    /// Time from the last membership to the end of a stay. The longest of all hooks counts.
    /// Default: 5 s.
    pub leave_grace: Duration,
}

impl NoticeConfig {
    /// With the defaults.
    pub fn new(types: u8) -> Self {
        Self {
            types,
            topics: Vec::new(),
            batch: 100,
            batch_time: Duration::from_millis(200),
            retry_for: Duration::from_secs(24 * 3600),
            leave_grace: Duration::from_secs(5),
        }
    }

    /// The names of all types.
    pub fn types() -> [&'static str; 6] {
        let [types @ .., _] = NOTICE_TYPES;
        types
    }

    /// The bit of a type.
    pub fn type_of(name: &str) -> Option<u8> {
        Self::types().iter().position(|known| *known == name).map(|at| 1 << at)
    }

    /// The settings of all hooks that want notices, with their names; `None`: no hook.
    pub fn settings<'a>(
        all: impl IntoIterator<Item = (&'a str, &'a Self), IntoIter: Clone>,
    ) -> Option<Settings> {
        let all = all.into_iter();
        let grace = all.clone().map(|(_, config)| config.leave_grace).max()?;
        let hooks = all.map(|(name, config)| config.rule(name)).collect();
        Some(Settings { hooks, grace_ns: ns(grace), ..Settings::default() })
    }

    fn rule(&self, name: &str) -> HookRule {
        HookRule {
            topics: self.topics.clone(),
            batch: self.batch,
            batch_ns: ns(self.batch_time),
            retry_for_ms: ns(self.retry_for) / 1_000_000,
            ..HookRule::new(name, self.types)
        }
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Where the log of notices is.
pub enum LogPlace {
    /// Lost when the process ends.
    Memory,
    /// In this directory.
    Files(PathBuf),
    /// At the other nodes' broker, or wherever [`Outside::log`] keeps it.
    Outside,
}

/// The other nodes, and their broker.
pub trait Outside: Send {
    /// Sends a report to a node. Its verdict, if there is one in time, goes to
    /// [`NoticesInbox::answered`] with these numbers.
    fn report(&self, node: u64, partition: u8, call: u64, report: Vec<u8>);
    /// A command for the log; [`NoticesInbox::log`] gets its events.
    fn log(&self, command: LogCommand);
}

/// How notices start.
pub struct NoticesStart {
    /// The node's id and name.
    pub node: (u64, String),
    /// The log.
    pub log: LogPlace,
    /// The other nodes; `None`: the server is alone.
    pub outside: Option<Box<dyn Outside>>,
    /// After a restart, stays end only after this time.
    pub restart_grace: Duration,
}

enum Input {
    Sightings(Vec<Sighting>),
    Report(u64, Vec<u8>, oneshot::Sender<Verdict>),
    Answered(u8, u64, Option<Verdict>),
    Log(LogEvent),
    Finished(driver::Finished),
    Query(NoticesQuery, oneshot::Sender<serde_json::Value>),
    Stop,
}

/// Sends to the notices of a server. Never blocks.
#[derive(Clone)]
pub struct NoticesInbox {
    inputs: mpsc::UnboundedSender<Input>,
    figures: Arc<Mutex<NoticesFigures>>,
}

impl NoticesInbox {
    /// Memberships of this node began or ended.
    pub fn sightings(&self, sightings: Vec<Sighting>) {
        self.send(Input::Sightings(sightings));
    }

    /// Another node reports; `None`: there is no verdict.
    pub async fn report(&self, from: u64, report: Vec<u8>) -> Option<Verdict> {
        let (answer, verdict) = oneshot::channel();
        self.send(Input::Report(from, report, answer));
        verdict.await.ok()
    }

    /// The verdict about a report of this node; `None`: there is none.
    pub fn answered(&self, partition: u8, call: u64, verdict: Option<Verdict>) {
        self.send(Input::Answered(partition, call, verdict));
    }

    /// An event of the log, or of the other nodes.
    pub fn log(&self, event: LogEvent) {
        self.send(Input::Log(event));
    }

    /// Asks about the partitions that this node coordinates, or orders something there; `None`: the
    /// server ends.
    pub async fn ask(&self, query: NoticesQuery) -> Option<serde_json::Value> {
        let (answer, answered) = oneshot::channel();
        self.send(Input::Query(query, answer));
        answered.await.ok()
    }

    /// Decides nothing from now on, and closes the log in files.
    pub fn stop(&self) {
        self.send(Input::Stop);
    }

    /// Counts and gauges.
    pub fn figures(&self) -> NoticesFigures {
        lock(&self.figures).clone()
    }

    fn send(&self, input: Input) {
        // After the end nothing is decided any more.
        let _ = self.inputs.send(input);
    }
}
