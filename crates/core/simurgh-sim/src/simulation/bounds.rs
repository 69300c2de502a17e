//! Checks after every step the bounds that a configuration promises.

use crate::kit::peer::Peer;
use simurgh_core::{Mail, Phase, PresenceMail, Publisher};

use super::checks::check_waits;
use super::{NodeSimulation, Server};
use crate::model::{Input, Model};
use crate::node::SimNode;

/// Publishers that are read again in one turn at most.
const RELEASED_MAX: usize = 16;

impl NodeSimulation {
    /// All mail in a mailbox is charged to its shard, and calls of presence also to their topics.
    pub(crate) fn check_charges(&self, model: &mut Model) {
        let state = self.node.state();
        for (shard, (mailbox, charged)) in state.mailboxes.iter().zip(&state.charged).enumerate() {
            let present: usize = mailbox.iter().map(|it| weight(&it.mail)).sum();
            if present > *charged {
                let text = format!("{present} bytes wait for shard {shard}, {charged} charged");
                return model.fail("bytes", text);
            }
            if let Some(mail) = mailbox.iter().find(|it| is_uncharged(&it.mail)) {
                return model.fail("bytes", format!("{:?} is not charged to its topic", mail.mail));
            }
        }
    }

    /// The fan-out ends with the first reading of the clock that shows that its time is over.
    pub(crate) fn check_slice(&self, shard: usize, input: Input, model: &mut Model) {
        let sent = self.servers.get(shard).map_or(0, |it| it.net.sent_late.get());
        if input == Input::FanOut && sent > 0 {
            model.fail("slice", format!("shard {shard} sends {sent} times after its time"));
        }
    }

    pub(crate) fn open_peer(&self, shard: usize, conn: u32) -> Option<&Peer> {
        let link = self.links.get(conn as usize).filter(|it| it.shard == shard)?;
        self.servers.get(shard)?.net.peer(link.key).filter(|it| it.socket.is_open())
    }
}

/// The bytes that a mail takes in a mailbox, at least.
fn weight(mail: &Mail) -> usize {
    match mail {
        Mail::Broadcast(posted) => posted.broadcast().weight(),
        Mail::Presence(_, mail, _) => mail.weight(),
        Mail::Push(push) => push.weight(),
        Mail::ToChannel(_, what) => what.weight(),
        _ => 0,
    }
}

fn is_uncharged(mail: &Mail) -> bool {
    let Mail::Presence(_, call @ PresenceMail::Call(..), charge) = mail else { return false };
    charge.as_ref().is_none_or(|charge| charge.bytes() < call.weight())
}

impl Server {
    /// Checks the end of a turn: exactly the sockets that must be held are held, and no socket has
    /// more queued than it may.
    pub(crate) fn check_settled(&self, node: &SimNode, model: &mut Model) {
        let config = &node.shared.profile.config;
        let released = self.net.released.len();
        if released > RELEASED_MAX || (released > 0 && node.is_jammed()) {
            model.fail("bounds", format!("{released} publishers are read again"));
        }
        for peer in self.net.peers() {
            check_waits(peer, model);
            let (conn, waits) = (peer.conn, peer.queue.len());
            let is_awaiting = peer.socket.phase() == Phase::Waiting;
            let is_to_be = is_awaiting || self.core.is_held_back(peer.key);
            if peer.socket.is_open() && peer.is_held != is_to_be {
                model.fail("bounds", format!("socket {conn} is held: {}", peer.is_held));
            }
            if waits > config.outbound_bytes_max && !peer.is_mute {
                model.fail("bounds", format!("{waits} bytes wait for socket {conn}"));
            }
        }
    }
}
