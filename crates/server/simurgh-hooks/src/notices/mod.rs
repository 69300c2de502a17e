//! Notices: what has happened is reported to applications, once by id, also if a node is killed.
//!
//! ```text
//! shards ── sightings ─┐                        ┌─► Outside::report ─► coordinators on other nodes
//! other nodes ─ reports┼─► Driver ─► Notices ───┼─► Log: memory, files, Outside::log ─► broker
//! log, peers ──────────┘      ▲                 └─► Hook::notify ─► HTTP ─► application
//!                             └────────────────────── outcome ◄────────────┘
//! ```
//! The decisions are those of [`simurgh_notices`]; here are its clock, its logs and its requests.

mod driver;
mod figures;
mod files;
mod query;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use simurgh_cluster::{LogCommand, LogEvent};
use simurgh_notices::{Sighting, Verdict};
use tokio::sync::{mpsc, oneshot};

pub(crate) use self::driver::{Driver, FindHook};
pub use self::figures::{NoticeFigures, NoticesFigures};
pub use self::query::NoticesQuery;
use crate::shared::lock;

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
