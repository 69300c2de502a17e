//! Other settings and declared channels for a running server, all at once or not at all.
//!
//! A whole new [`Server`] is made beside the old one, with the same connections, mailboxes and
//! counters. The steps that can fail come first. Then it is published, and each shard takes it at
//! its next turn: nothing on the way of a message asks which settings are the newest.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use simurgh_shard::cluster_inbox;
use simurgh_shard::config::Config;
use simurgh_shard::mail::Mail;
use simurgh_shard::member_counts::MemberCounts;
use simurgh_shard::server::Server;
use simurgh_shard::shard::USER_SOCKETS_MAX;
use simurgh_socket::UserSocket;

use crate::cluster;
use crate::error::Error;
use crate::http::Site;
use crate::longpoll::LongPolls;
use crate::observe::Observer;

/// A callback of an application may block a shard for this long.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Replaces settings and declared channels of a running server.
#[doc(hidden)]
pub struct Reloader {
    polls: Arc<LongPolls>,
    observer: Arc<Observer>,
    site: Arc<Site>,
    /// Held by the reload that runs.
    turn: Mutex<()>,
}

/// Settings that a reload has not changed, although the file has.
#[doc(hidden)]
#[derive(Debug)]
pub struct Applied {
    /// The settings that the server has now: those that need a restart are the old ones.
    pub config: Config,
    /// Channels of a cluster have other histories, which need a restart.
    pub keeps_histories: bool,
}

impl Reloader {
    pub(crate) fn new(polls: Arc<LongPolls>, observer: Arc<Observer>, site: Arc<Site>) -> Self {
        Self { polls, observer, site, turn: Mutex::default() }
    }

    /// The settings that the server has now.
    pub fn config(&self) -> Config {
        self.polls.server.now().config.clone()
    }

    /// Continues with other settings, user sockets and pages. Members stay in their
    /// channels. Blocks until all shards have taken them.
    ///
    /// # Errors
    /// As for a start. Nothing has changed then.
    pub(crate) fn reload(
        &self,
        mut config: Config,
        mut user_sockets: Vec<UserSocket>,
        router: Router,
        front: Option<&str>,
    ) -> Result<Applied, Error> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.polls.server.now();
        keep_what_needs_a_restart(&mut config, &before);
        let interest = before.cluster.clone().map(cluster::interest);
        user_sockets.iter_mut().for_each(|user_socket| user_socket.serve(interest.as_ref()));
        let mut user_sockets = arranged(user_sockets, &before.user_sockets)?;
        let keeps_histories =
            before.cluster.is_some() && keep_histories(&mut user_sockets, &before.user_sockets);
        let certificates = match (&before.certificates, &config.tls) {
            (Some(own), Some(tls)) => {
                let read = own.read_again(&tls.certificates).map_err(Error::Certificates)?;
                Some((own, tls.certificates.clone(), read))
            }
            _ => None,
        };
        let new = Arc::new(followed_by(&before, config, user_sockets));
        #[cfg(feature = "hooks")]
        let hooks = crate::hooked::prepare(&new)?;
        let polls = self.polls.with(Arc::clone(&new));
        let site = Site::new(&polls, &self.observer, router, front);

        // From here on nothing fails.
        if let Some((own, files, read)) = certificates {
            own.publish(files, read);
        }
        #[cfg(feature = "hooks")]
        {
            hooks.into_iter().for_each(|(set, hooks)| set.publish(hooks));
            crate::hooked::go_on(&new);
        }
        new.peer_limits.reload(&new.config);
        new.reloads.publish(Arc::clone(&new));
        self.site.replace(site);
        if let Some(inbox) = &new.cluster {
            let settings = cluster::shared_settings(&new.user_sockets, &new.config);
            inbox.post(cluster_inbox::Mail::Settings(settings));
        }
        await_shards(&new);
        // The last reference to the old channels is not a shard's.
        drop(before);
        Ok(Applied { config: new.config.clone(), keeps_histories })
    }
}

/// The same server with other settings and user sockets.
fn followed_by(before: &Server, config: Config, user_sockets: Vec<UserSocket>) -> Server {
    let counts_anew = counts_members(&user_sockets) && !before.member_counts.is_counting();
    Server {
        limits: config.limits_of_core(),
        origin_policy: config.origin_policy(),
        member_counts: match counts_anew {
            true => Arc::new(MemberCounts::new(true)),
            false => Arc::clone(&before.member_counts),
        },
        has_history: has_history(&user_sockets),
        user_sockets,
        config,
        ..before.clone()
    }
}

/// In a cluster histories stay as they are: the broker's streams are made at the start. Returns
/// whether that differs from the settings.
fn keep_histories(all: &mut [UserSocket], before: &[UserSocket]) -> bool {
    let mut differs = false;
    for new in all {
        let path = &new.parts().path;
        let none = UserSocket::new(path);
        let old = before.iter().find(|old| old.parts().path == *path);
        differs |= new.keep_histories_of(old.unwrap_or(&none));
    }
    differs
}

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader").finish_non_exhaustive()
    }
}

/// Has all shards take the newest settings, and waits until they have.
fn await_shards(server: &Server) {
    let taken = Arc::new(());
    for (shard, ended) in (0..).zip(&*server.ended) {
        if !ended.load(Relaxed) {
            server.post_to(shard, Mail::Reload(Arc::clone(&taken)));
        }
    }
    let began = Instant::now();
    while Arc::strong_count(&taken) > 1 {
        if began.elapsed() > TAKEN_WITHIN {
            return tracing::warn!("a blocked shard has not taken the new settings yet");
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// As [`UserSocket::arranged`]. Fails if there are too many.
pub(crate) fn arranged(
    all: Vec<UserSocket>,
    before: &[UserSocket],
) -> Result<Vec<UserSocket>, Error> {
    let all = UserSocket::arranged(all, before);
    match all.len() {
        count if count > USER_SOCKETS_MAX => Err(Error::TooManyUserSockets(count)),
        _ => Ok(all),
    }
}

pub(crate) fn counts_members(all: &[UserSocket]) -> bool {
    all.iter().any(|user_socket| user_socket.parts().channels.count_members)
}

pub(crate) fn has_history(all: &[UserSocket]) -> bool {
    all.iter().any(|user_socket| user_socket.parts().channels.has_history())
}

/// Sets fields back that only a start reads.
fn keep_what_needs_a_restart(new: &mut Config, server: &Server) {
    let old = server.config.clone();
    new.listen = old.listen;
    new.sighting_sink = old.sighting_sink;
    new.listen_unix = old.listen_unix;
    new.admin_listen = old.admin_listen;
    new.admin_listen_unix = old.admin_listen_unix;
    new.shards = old.shards;
    new.pin_shards = old.pin_shards;
    new.max_connections = old.max_connections;
    new.close_timeout = old.close_timeout;
    new.inbound_budget_bytes = old.inbound_budget_bytes;
    new.outbound_bytes_max = old.outbound_bytes_max;
    new.outbound_budget_bytes = old.outbound_budget_bytes;
    new.slow_after = old.slow_after;
    new.mailbox_bytes_max = old.mailbox_bytes_max;
    new.state_dir = old.state_dir;
    new.secret_key_base = old.secret_key_base;
    new.node_name = old.node_name;
    new.http.threads = old.http.threads;
    new.http.connections_max = old.http.connections_max;
    new.http.connections_reserved = old.http.connections_reserved;
    new.tls = match (old.tls, new.tls.take()) {
        (Some(mut old), Some(new)) => {
            old.certificates = new.certificates;
            Some(old)
        }
        (old, _) => old,
    };
    // Sockets that were not counted cannot be limited.
    if server.peer_limits.addresses.is_none() {
        new.max_connections_per_address = None;
    }
    if server.peer_limits.users.is_none() {
        new.max_connections_per_user = None;
    }
}
