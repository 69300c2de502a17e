//! A [`Handle`] reaches a running server from any thread.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use simurgh_core::metrics::ShardMetrics;
use simurgh_reactor as reactor;
use simurgh_shard::certificates::CertificateProblems;
use simurgh_shard::cluster_inbox;
use simurgh_shard::mail::Mail;
use simurgh_shard::server::{Reloaded, Server};

use crate::history::HistoryQuery;
use crate::presence::Presence;
use crate::pubsub::PubSub;

/// Reaches a running server from any thread.
#[derive(Clone, Debug)]
pub struct Handle(pub(crate) Arc<Server>);

impl Handle {
    /// As [`Endpoint::pubsub`](crate::Endpoint::pubsub).
    pub fn pubsub(&self) -> PubSub {
        PubSub::new(Arc::clone(&self.0))
    }

    /// As [`Endpoint::presence`](crate::Endpoint::presence).
    pub fn presence(&self) -> Presence {
        Presence::new(Arc::clone(&self.0))
    }

    /// As [`PubSub::history`].
    pub fn history(&self, topic: impl Into<Box<str>>) -> HistoryQuery {
        self.pubsub().history(topic)
    }

    /// The counters of each shard, which can be read at any time.
    pub fn metrics(&self) -> &[Arc<ShardMetrics>] {
        &self.0.metrics
    }

    /// Requests a sign of life from every shard; [`silent_shard`](Self::silent_shard) reports later
    /// which one has not answered. For watchdogs: a shard that a callback blocks does not answer.
    pub fn ask_pulse(&self) -> Pulse {
        self.all(|| Mail::Pulse);
        Pulse(self.activity().posted)
    }

    /// A shard that has taken no mail since the request, if there is one; shards that ended in a
    /// drain are not counted.
    pub fn silent_shard(&self, asked: &Pulse) -> Option<usize> {
        let stats = self.0.stats.get()?;
        let answers = stats.iter().zip(&*self.0.ended).zip(&asked.0);
        answers.enumerate().find_map(|(shard, ((stats, ended), posted))| {
            let is_silent = stats.read().mails < *posted && !ended.load(Relaxed);
            is_silent.then_some(shard)
        })
    }

    /// As [`Endpoint::reload_certificates`](crate::Endpoint::reload_certificates).
    pub fn reload_certificates(&self) -> Result<(), CertificateProblems> {
        match &self.0.certificates {
            Some(certificates) => certificates.reload(),
            None => {
                tracing::info!("there are no certificates to reload: the server has no TLS");
                Ok(())
            }
        }
    }

    /// Reloads as SIGHUP does: all settings, if the program has said how
    /// ([`on_reload`](Self::on_reload)), else only the certificates. Blocks.
    ///
    /// # Errors
    /// Why nothing has changed.
    #[doc(hidden)]
    pub fn reload(&self) -> Result<Reloaded, String> {
        let Some(reload) = self.0.reloads.get() else {
            let reloaded = self.reload_certificates();
            self.0.reloads.count(reloaded.is_ok());
            return reloaded.map(|()| Reloaded::default()).map_err(|it| it.to_string());
        };
        let reloaded = reload();
        self.0.reloads.count(reloaded.is_ok());
        if let Err(why) = &reloaded {
            if let Some(certificates) = &self.0.certificates {
                certificates.failed_reloads.fetch_add(1, Relaxed);
            }
            tracing::error!("not reloaded, nothing has changed: {why}");
        }
        reloaded
    }

    /// Sets how to reload.
    #[doc(hidden)]
    pub fn on_reload(&self, reload: impl Fn() -> Result<Reloaded, String> + Send + Sync + 'static) {
        self.0.reloads.set(Arc::new(reload));
    }

    /// The longest time from the beginning of a drain to the end of the last socket.
    #[doc(hidden)]
    pub fn drained_within(&self) -> Duration {
        let config = &self.0.now().config;
        config.drain_time + config.close_timeout
    }

    /// Begins a drain and returns; [`Endpoint::wait`](crate::Endpoint::wait) waits for its end.
    pub fn drain(&self) {
        self.0.drain_began.get_or_init(Instant::now);
        if let Some(listening) = self.0.takeover.stop_accepting() {
            self.0.spawn(async move { drop(listening) });
        }
        self.0.http_connections.drain();
        self.0.admin_connections.drain();
        #[cfg(feature = "hooks")]
        crate::notices::drain(&self.0);
        if let Some(cluster) = &self.0.cluster {
            cluster.post(cluster_inbox::Mail::Drain);
        }
        let over = self.0.now().config.drain_time;
        self.all(|| Mail::Core(simurgh_core::Mail::Drain(over)));
    }

    /// Ends the server at once.
    pub fn stop(&self) {
        self.0.http_connections.end();
        self.0.admin_connections.end();
        self.all(|| Mail::Stop);
    }

    /// The running work, and how many could start more; read in the order of these fields.
    #[doc(hidden)]
    pub fn activity(&self) -> Activity {
        let server = &self.0;
        Activity {
            is_draining: server.drain_began.get().is_some(),
            queued_bytes: server.mailboxes.iter().map(reactor::Mailbox::bytes).sum(),
            tasks: server.runtime.get().map_or(0, |it| it.metrics().num_alive_tasks()),
            holders: Arc::strong_count(server),
            posted: server.mailboxes.iter().map(reactor::Mailbox::posted).collect(),
        }
    }

    fn all(&self, mail: impl Fn() -> Mail) {
        for shard in 0..self.0.mailboxes.len() {
            self.0.post_to(shard as u16, mail());
        }
    }
}

/// The activity of a server, for tests that wait until it is idle.
#[doc(hidden)]
pub struct Activity {
    pub is_draining: bool,
    /// Bytes in mailboxes.
    pub queued_bytes: usize,
    /// Running tasks on tokio.
    pub tasks: usize,
    /// References to the server.
    pub holders: usize,
    /// How much mail each shard has received.
    pub posted: Vec<u64>,
}

/// A request of [`Handle::ask_pulse`].
#[derive(Debug)]
pub struct Pulse(Vec<u64>);
