//! The mailboxes of a node's shards, and the bytes on their way to each.

use simurgh_history::StoredAt;

use crate::flow::{Charge, Posted};
use crate::history::engine::{self, NotKept};
use crate::history::{HistoryMail, HistoryRequest};
use crate::mail::Mail;
use crate::presence::{PresenceCallback, PresenceMail, home_shard};
use simurgh_data::prelude::*;

/// Mail for each shard of a node. Bytes of broadcasts in flight are charged to the shard that they
/// are sent to.
pub trait Mailboxes {
    /// How many shards there are.
    fn shards(&self) -> usize;

    /// The shard that keeps a topic's presences and history.
    fn home(&self, topic: &str) -> usize {
        home_shard(topic, self.shards())
    }

    /// Posts to a shard; `false` if that has ended.
    fn post(&self, shard: usize, mail: Mail) -> bool;

    /// Charges bytes in flight to a shard.
    fn charge(&self, shard: usize, bytes: usize);

    /// Releases charged bytes.
    fn discharge(&self, shard: usize, bytes: usize);

    /// Bytes in flight to a shard; 0 for one that has ended, since those are never released.
    fn charged(&self, shard: usize) -> usize;

    /// Posts to a shard and charges these bytes to it.
    fn post_weighed(&self, shard: usize, bytes: usize, mail: Mail) {
        self.charge(shard, bytes);
        if !self.post(shard, mail) {
            self.discharge(shard, bytes);
        }
    }

    /// Posts a broadcast to a shard and charges its bytes to it.
    fn post_charged(&self, shard: usize, posted: Posted) {
        let weight = posted.broadcast().weight();
        self.post_weighed(shard, weight, Mail::Broadcast(posted));
    }

    /// Posts to the shard that keeps a topic's presences, and charges the bytes to it; `charge`
    /// counts them in the flow of the member that caused them.
    fn post_home(&self, topic: &str, mail: PresenceMail, charge: Option<Arc<Charge>>) {
        let (shard, bytes) = (self.home(topic), mail.weight() + topic.len());
        self.post_weighed(shard, bytes, Mail::Presence(topic.into(), mail, charge));
    }

    /// Implements [`NodeHandle::list_presences`](crate::NodeHandle::list_presences).
    fn request_presences(&self, topic: &str, callback: PresenceCallback) {
        self.post_home(topic, PresenceMail::List(callback), None);
    }

    /// Requests something about the history of a topic, from any thread.
    fn request_history(&self, request: HistoryRequest) {
        let shard = match &request {
            HistoryRequest::Read(topic, ..) | HistoryRequest::Forget(topic, _) => self.home(topic),
            HistoryRequest::Topics(shard, ..) => usize::from(*shard),
        };
        self.post(shard, Mail::History(HistoryMail::Request(request)));
    }

    /// The outcome of a store or a purge with this number.
    fn post_stored(&self, number: u64, outcome: Result<StoredAt, NotKept>) {
        let shard = engine::shard_of(number);
        if shard < self.shards() {
            self.post(shard, Mail::History(HistoryMail::Stored(number, outcome)));
        }
    }
}
