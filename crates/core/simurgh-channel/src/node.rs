//! The node of a core, as its shards see it.

use core::any::Any;
use core::sync::atomic::AtomicU64;

use simurgh_data::Key;
use simurgh_notices::{Settings, Sighting};

use crate::channel::{Decision, Join, JoinDecision};
use crate::cluster::Cluster;
use crate::config::Config;
use crate::context::Assigns;
use crate::mail::Mail;
use crate::mailboxes::Mailboxes;
use crate::node_handle::NodeHandle;
use crate::permits::FanoutPermits;
use crate::takeover::OtherProcess;
use crate::user_socket::UserSocket;
use crate::watch::CallbackWatch;
use simurgh_data::prelude::*;

/// Where shards report memberships and users' connections to, for notices.
#[derive(Clone, derive_more::Debug)]
pub struct SightingSink {
    /// They say which are reported.
    pub settings: Arc<Settings>,
    /// Takes the begins and ends of one turn of a shard, in their order. It must not wait.
    #[debug(skip)]
    pub take: Arc<dyn Fn(Vec<Sighting>) + Send + Sync>,
}

/// The node that a core is a shard of: what all its shards share.
pub trait Node:
    NodeHandle + Mailboxes + CallbackWatch + Signer + WallClock + Sized + 'static
{
    /// Limits and times.
    fn config(&self) -> &Config;

    /// A user socket by its place.
    fn user_socket(&self, index: u8) -> Option<&UserSocket>;

    /// All user sockets, in the order of their places.
    fn user_sockets(&self) -> impl Iterator<Item = &UserSocket> {
        (0..=u8::MAX).map_while(|index| self.user_socket(index))
    }

    /// A number that is different for each start of each node, by more than the number of shards.
    fn id(&self) -> u64;

    /// Whether some topics' broadcasts are kept.
    fn has_history(&self) -> bool;

    /// Bytes that each shard keeps of topics' broadcasts.
    fn history_bytes(&self) -> &[AtomicU64];

    /// The permits to fan out.
    fn permits(&self) -> &FanoutPermits;

    /// The other nodes; `None` if this is the only one.
    fn cluster(&self) -> Option<&dyn Cluster> {
        None
    }

    /// The other process, while one takes over from the other.
    fn other_process(&self) -> Option<Arc<dyn OtherProcess>> {
        None
    }

    /// A shard has no sockets left in a drain. Whether it may end: until all shards have none, it
    /// may be the home of topics of others.
    fn may_end(&self, _shard: usize) -> bool {
        true
    }

    /// Has a join decided on another thread: [`Mail::Joined`] is sent back,
    /// unless it takes far too long.
    fn decide(&self, shard: usize, key: Key, ticket: u32, work: JoinDecision);

    /// Begins to decide a join away from its shard, to which [`Mail::Joined`] is sent back. Returns
    /// what is dropped when nobody waits for it any more.
    fn begin(
        self: &Arc<Self>,
        shard: usize,
        (key, ticket): (Key, u32),
        decision: Decision<Join>,
    ) -> Option<Box<dyn Any + Send>> {
        match decision {
            Decision::Work(work) => {
                self.decide(shard, key, ticket, work);
                None
            }
            Decision::Call(ask) => {
                let node = Arc::clone(self);
                Some(ask(Box::new(move |join| {
                    // False only once the shard has ended.
                    let _ = node.post(shard, Mail::Joined(key, ticket, Some(join)));
                })))
            }
        }
    }

    /// A topic has one more member, over all shards.
    fn member_joined(&self, topic: &str);

    /// A topic has one member less.
    fn member_left(&self, topic: &str);

    /// Cached answers of applications about a user, or about sockets with an id, count no more.
    fn void_grants(&self, _of: &str) {}

    /// Where to report memberships and users' connections; `None`: no hook wants notices. A core
    /// asks once.
    fn sighting_sink(&self) -> Option<SightingSink> {
        None
    }

    /// The user that the application's value of a socket names; not empty.
    fn user_of<'a>(&self, _of: &'a Assigns) -> Option<&'a str> {
        None
    }

    /// The id of a connection, which no other one of any node has.
    fn connection_id(&self, shard: u16, key: Key) -> String;

    /// A socket has closed: another connection may take its place.
    fn release_connection(&self);
}

/// The secret of a node.
pub trait Signer {
    /// Signs a text as this node, or another with its secret.
    fn sign(&self, text: &str) -> String;

    /// Whether this is the signature of the text, in constant time.
    fn is_signed(&self, text: &str, proof: &str) -> bool;
}

/// The time of day.
pub trait WallClock {
    /// Milliseconds since 1970 at a time of the shards' clock.
    fn unix_ms(&self, now_ns: u64) -> u64;
}
