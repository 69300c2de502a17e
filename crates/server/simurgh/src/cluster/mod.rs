//! Several nodes as one server.
//!
//! The thread `simurgh-cluster` runs the node's part in the cluster ([`simurgh_cluster::Cluster`])
//! and the adapter to the broker. Shards and applications send to it through its `ClusterInbox`,
//! which never blocks; it sends to shards through their mailboxes.

mod blocks;
mod local;
mod run;
mod served;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use simurgh_cluster::{Adapter, ClusterConfig, Prefix, PrefixError};
use simurgh_cluster::{LinkState, NAME_BYTES_MAX, NOTICES, SETTINGS_MAX};
use simurgh_shard::cluster_inbox::ClusterInbox;
use simurgh_shard::config::Config;
use simurgh_shard::server::Server;
use simurgh_socket::{InterestFn, UserSocket};
use tokio::runtime::{Builder, Handle, Runtime};

pub(crate) use self::blocks::await_others;
pub(crate) use self::run::Started;
pub(crate) use self::served::Serve;
use crate::error::Error;
pub use crate::pubsub::{DISCONNECT_TIMEOUT, DisconnectError};
use crate::secret;
pub use simurgh_shard::cluster_inbox::{Disconnected, NodeName};

/// Worker threads of the cluster's runtime. One: the adapter does its I/O when it is polled for
/// events, and memory of a single thread is reused. With two a publish took three times the CPU.
const WORKERS: usize = 1;
/// How often a required link is checked during the start.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

const SECRET: &str = "secret_key_base";

type MakeAdapter = Box<dyn FnOnce(&AdapterSetup<'_>) -> Box<dyn Adapter> + Send>;

/// The arguments for creating an adapter.
#[derive(Debug)]
#[non_exhaustive]
pub struct AdapterSetup<'a> {
    /// The runtime for its tasks.
    pub runtime: &'a Handle,
    /// The history that the broker must store for each topic; `None` if no channel declares a
    /// history.
    pub history: Option<HistoryNeeds>,
    /// Whether the broker must store the log of notices.
    pub has_log: bool,
}

/// The history that the broker must store for each topic: the maximum that any channel declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryNeeds {
    /// Number of broadcasts.
    pub count: u32,
    /// Age of broadcasts.
    pub age: Duration,
}

impl HistoryNeeds {
    fn of(user_sockets: &[UserSocket]) -> Option<Self> {
        let rules = user_sockets.iter().flat_map(|it| it.parts().channels.histories());
        let needs = rules.map(|(_, rule)| Self {
            count: rule.count.try_into().unwrap_or(u32::MAX),
            age: rule.age,
        });
        needs.reduce(|one, other| Self {
            count: one.count.max(other.count),
            age: one.age.max(other.age),
        })
    }
}

/// Makes a server one of several nodes, with a broker
/// ([`Builder::cluster`](crate::Builder::cluster)).
pub struct Cluster {
    config: ClusterConfig,
    make_adapter: MakeAdapter,
    required: Option<Duration>,
    is_local_when_away: bool,
    has_notices_in_memory: bool,
}

impl Cluster {
    /// A node of a cluster; its adapter is created when the server starts.
    pub fn new<A: Adapter + 'static>(
        config: ClusterConfig,
        adapter: impl FnOnce(&AdapterSetup<'_>) -> A + Send + 'static,
    ) -> Self {
        let make_adapter = Box::new(move |setup: &AdapterSetup<'_>| -> Box<dyn Adapter> {
            Box::new(adapter(setup))
        });
        Self {
            config,
            make_adapter,
            required: None,
            is_local_when_away: false,
            has_notices_in_memory: false,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    /// The server listens only once there is a link to the broker, and fails to start if there is
    /// none after this time. By default it listens at once, and works alone while it has no link.
    pub fn required(mut self, within: Duration) -> Self {
        self.required = Some(within);
        self
    }

    /// While the link to the broker is known to be down, a broadcast in a topic with a history
    /// reaches only the members on this node, at once. It is not stored and has no position. By
    /// default it waits, and is refused after 8.5 s without a link, so that all members receive it
    /// or none.
    pub fn local_when_away(mut self) -> Self {
        self.is_local_when_away = true;
        self
    }
}

impl Cluster {
    /// Keeps the log of notices in the memory of nodes. Notices that a killed node has not
    /// delivered are lost, and hooks get `log.reset`. By default the broker stores the log.
    pub fn notices_in_memory(mut self) -> Self {
        self.has_notices_in_memory = true;
        self
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("config", &self.config).finish_non_exhaustive()
    }
}

/// A cluster's runtime, created before the descriptor tables split: its wakers are then in all of
/// them.
pub(crate) struct Prepared {
    cluster: Cluster,
    history: Option<HistoryNeeds>,
    runtime: Runtime,
}

/// Other nodes receive the settings that all must share: those of channels, and a hash of the
/// secret, which does not reveal it. Fails if the system has no threads left.
pub(crate) fn prepare(
    mut cluster: Cluster,
    user_sockets: &[UserSocket],
    config: &Config,
) -> Result<Prepared, Error> {
    let history = HistoryNeeds::of(user_sockets);
    if history.is_some() {
        cluster.config.history.get_or_insert_default();
    }
    cluster.config.has_log = config.sighting_sink.is_some();
    cluster.config.peers.settings = shared_settings(user_sockets, config);
    let runtime = Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_name("simurgh-cluster")
        .enable_all()
        .build()
        .map_err(Error::Prepare)?;
    Ok(Prepared { cluster, history, runtime })
}

/// Waits until this node is subscribed to a topic.
pub(crate) fn interest(inbox: Arc<ClusterInbox>) -> InterestFn {
    Arc::new(move |topic| {
        let (inbox, topic) = (Arc::clone(&inbox), topic.into());
        Box::pin(async move { inbox.await_topic(topic).await })
    })
}

/// Hashes of the settings that all nodes must share, by their names.
pub(crate) fn shared_settings(
    user_sockets: &[UserSocket],
    config: &Config,
) -> Vec<(Box<str>, u64)> {
    let settings = user_sockets.iter().flat_map(UserSocket::settings);
    let settings = settings.map(|(pattern, text)| (pattern, secret::hash(&text)));
    let secret = config.secret_key_base.as_deref().map_or(0, secret::hash);
    let secret = (Box::from(SECRET), secret);
    let rules = config.sighting_sink.as_ref().map(|sink| format!("{:?}", sink.settings.hooks));
    let notices = rules.map(|rules| (Box::from(NOTICES), secret::hash(&rules)));
    let fits = |it: &(Box<str>, u64)| it.0.len() <= NAME_BYTES_MAX;
    [secret].into_iter().chain(notices).chain(settings).filter(fits).take(SETTINGS_MAX).collect()
}

impl Prepared {
    /// Whether the broker has the log of notices.
    #[cfg(feature = "hooks")]
    pub(crate) fn stores_notices(&self) -> bool {
        self.cluster.config.has_log && !self.cluster.has_notices_in_memory
    }

    /// Connects the node, and accepts mail of its shards. Waits for the link if it is required, and
    /// fails if there is none in time.
    pub(crate) fn start(self, server: &Arc<Server>, serve: Serve) -> Result<Started, Error> {
        let required = self.cluster.required;
        let started = run::start(self, server, serve);
        let (Some(within), Some(inbox)) = (required, &server.cluster) else { return Ok(started) };
        let began = Instant::now();
        while inbox.view().state == LinkState::Away {
            if began.elapsed() >= within {
                return Err(Error::NoEngine(within, inbox.view().why.clone()));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(started)
    }
}

#[cfg(test)]
mod tests {
    use simurgh_core::Join;
    use simurgh_socket::ChannelRoute;

    use super::*;
    use crate::history::History as HistoryRule;

    fn route() -> ChannelRoute {
        ChannelRoute::on_shard("room:*", |_, _| Join::error(crate::Payload::NULL))
    }

    fn user_socket(route: ChannelRoute) -> UserSocket {
        UserSocket::new("/socket").channel(route)
    }

    #[test]
    fn broker_retains_the_maximum_that_any_channel_declares() {
        assert_eq!(HistoryNeeds::of(&[user_socket(route())]), None);
        let rule = |count, secs| HistoryRule {
            count,
            age: Duration::from_secs(secs),
            ..HistoryRule::default()
        };
        let user_sockets = [
            user_socket(route().history(rule(7, 900))),
            user_socket(route()),
            user_socket(route().history(rule(9, 60))),
        ];
        let needs = HistoryNeeds { count: 9, age: Duration::from_secs(900) };
        assert_eq!(HistoryNeeds::of(&user_sockets), Some(needs));
    }
}
