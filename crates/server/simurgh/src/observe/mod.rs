//! The observer: what is inside a running server, for a page, a terminal and scripts.
//!
//! ```text
//! counters of shards --once a second--> figures --> Overview, and a history of 5 minutes
//! records of shards  --asked by mail, walked over in slices--> lists (only for viewers)
//! other nodes, if there are any --asked over the broker--> nodes (only for viewers)
//! access (who may look) --> api (JSON), feed (live), page
//! ```
//!
//! Updates are paced: the walks for lists take less than a hundredth of a core, for any number of
//! connections (`lists`).

mod access;
mod api;
mod feed;
mod figures;
mod front;
mod lists;
mod nodes;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::{Semaphore, watch};

pub(crate) use api::router;
pub(crate) use figures::run;
pub(crate) use front::router as front;
pub(crate) use nodes::serve;
#[doc(inline)]
pub use simurgh_shard::view;

use figures::History;
use lists::Lists;
use simurgh_shard::server::Server;
use view::Overview;

/// Live feeds at a time.
const FEEDS_MAX: usize = 32;

pub(crate) struct Observer {
    server: Arc<Server>,
    latest: watch::Sender<Arc<Overview>>,
    history: std::sync::Mutex<History>,
    lists: tokio::sync::Mutex<Lists>,
    cluster: tokio::sync::Mutex<nodes::Latest>,
    served: nodes::Served,
    feeds: Arc<Semaphore>,
}

impl Observer {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self {
            server,
            latest: watch::Sender::new(Arc::default()),
            history: std::sync::Mutex::default(),
            lists: tokio::sync::Mutex::default(),
            cluster: tokio::sync::Mutex::default(),
            served: nodes::Served::default(),
            feeds: Arc::new(Semaphore::new(FEEDS_MAX)),
        }
    }
}

/// Seconds since 1970.
fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
