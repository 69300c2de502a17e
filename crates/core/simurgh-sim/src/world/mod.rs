//! The simulated world: nodes, each with the cores of its shards and its part in a cluster by the
//! loopback adapter; or one node without a broker, with histories or without. Links, the
//! broker and nodes fail and return. What members receive, which presences they see, and which
//! sockets are closed is compared with what was sent on all nodes.
//!
//! ```text
//!   client ⇄ shard ⇄ mailboxes ⇄ shard ⇄ client        a node: real cores,
//!              mailbox ⇅ local shards                    and a real `Cluster`
//!           Cluster ⇄ Loopback ⇄ Network ⇄ … other nodes
//! ```
//!
//! Shards and the cluster reach each other as they do in the server, by
//! [`NodeThread`]. All files of the world share the imports below.

/// Kinds of something with weights: an enum, and a table of its variants in their order.
macro_rules! weighted {
    ($(#[$doc:meta])* $name:ident, $table:ident: $weight:ty;
     $($(#[$of:meta])* $kind:ident $value:expr,)+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name {
            $($(#[$of])* $kind,)+
        }

        pub(crate) const $table: &[($name, $weight)] = &[$(($name::$kind, $value)),+];
    };
}

mod app;
mod ledger;
mod node;
mod plan;
mod simulation;
mod thread;
mod transport;
mod view;

use std::cell::{Cell, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::future::poll_fn;
use std::mem;
use std::ops::{Deref, Range};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use fastrand::Rng;
use simurgh_cluster::{
    Adapter, Class, Cluster, ClusterConfig, DisconnectOutcome, DisconnectReply, ENVELOPE_BYTES_MAX,
    Envelope, GoneReason, HistoryEvent, Item, LinkState, LocalNode, NodeId, NodeThread, Notice,
    PeerEvent, Prefix, Shards, Space, StoredAt, ThreadNode,
};
use simurgh_core::metrics::ShardMetrics;
use simurgh_core::{
    Assigns, Audience, Broadcast, BroadcastError, CallbackWatch, ChannelHandle, ChannelId,
    ChannelLimits, Config, Core, Effect, FanoutPermits, GapReason, HistoryConfig, HistoryMail,
    HistoryPage, HistoryRequest, HistoryRule, Join, JoinDecision, JoinFn, KeptAt, Lifetime,
    LimitPolicy, LinkedWork, Listener, Mail, Mailboxes, NETWORK, Node, NodeHandle, Outcome, Phase,
    Posted, PrepareFn, Prepared, PresenceCall, PresenceCallback, PresenceConfig, PresenceError,
    PresenceList, PresenceMail, Publisher, Rate, RateLimit, Reason, Received, ReplayLimits, Reply,
    ReplyRef, Route, SavedHistory, ShardChannel, ShardContext, ShardHandleInfo, Signer, SizeLimit,
    SocketLimits, SocketState, Stop, TICK, ToChannel, ToCluster, UserSocket, WallClock, Wire, Work,
    guarded, nanoseconds,
};
use simurgh_data::{Key, Next, Now};
use simurgh_history::{Epoch, Place, Position};
use simurgh_loopback::{
    Direction, LogEntry, Loopback, Network, NetworkConfig, RestartData, StreamLimits,
};
use simurgh_presence::{FromPeers, Owner};
use simurgh_proto::message::{Message, Payload, events};
use simurgh_proto::serializer::{Frame, Serializer, ServerMessage};
use simurgh_proto::topic::Pattern;
use simurgh_proto::ws::CloseCode;

use crate::findings::{Fault, Faults, Findings};
use crate::payload::{EMPTY, field, hashed, parse};
use crate::presence::{KEYS, Meta, PresenceEvent, Presences, View, letter_of};
use crate::wire::{
    Connection, Delivery, DeliveryKind, EVENTS, FIELD_BYTES_MAX, IDS, NONE, Request, RequestKind,
    TOPIC_BYTES_MAX, Topics, letter,
};
use crate::world::app::{Actor, AppPlan, Assigned, Limits, Quota, Ready, lifetime, speech};
pub(crate) use crate::world::ledger::Ledger;
use crate::world::ledger::sessions::{
    Act, Answer, Call, CallEnd, Called, Chan, DISCONNECT, INTERCEPTS_DIFF, INTERCEPTS_STATE, Input,
    JOINER, Joining, Life, ListenerGuard, Size, code_bit, number_of, ticks,
};
use crate::world::ledger::{BroadcastInfo, Disconnect, Entry, Made, join_payload};
use crate::world::node::{RunningNode, SimNode};
use crate::world::plan::{Habits, HistoryPlan, Kind, MILLISECOND, SECOND, SWALLOWED};
pub(crate) use crate::world::plan::{KINDS, OF_ONE_NODE, Op, Plan, World};
pub(crate) use crate::world::simulation::{Shard, Simulation};
use crate::world::thread::{ClusterThread, Command, Mailbox};
use crate::world::transport::{ClientMessage, POLLED, Peer, Transport, Value};
use crate::world::view::{Resume, TopicView};
use crate::{locked, payload, wire};

/// What the nodes, applications and clients of a run share: the plan, and a ledger of what has
/// happened, by which the outcome is checked.
#[derive(Default)]
pub(crate) struct Shared {
    ledger: Mutex<Ledger>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) faults: Faults,
    /// The next work that is linked to a channel.
    pub(crate) linking: Mutex<Option<app::Linked>>,
    /// Each channel, value kept with a socket and value prepared from a long message has a clone.
    pub(crate) channels: Arc<()>,
    pub(crate) assigned: Arc<()>,
    pub(crate) ready: Arc<()>,
}

impl Shared {
    pub(crate) fn new(plan: &Plan) -> Self {
        let plan = Arc::new(plan.clone());
        let ledger = Mutex::new(Ledger::new(Arc::clone(&plan)));
        Self { ledger, faults: Faults::new(plan.fault), plan, ..Self::default() }
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        locked(&self.ledger)
    }

    /// Adds a line to the log, if there is one.
    pub(crate) fn note(&self, text: impl FnOnce() -> String) {
        self.ledger().note(text);
    }

    pub(crate) fn fail(&self, rule: &'static str, text: impl Into<String>) {
        self.ledger().fail(rule, text);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.ledger().failure.get().is_some()
    }
}
