//! Messages about a topic for a socket that may have a channel there.

use simurgh_channel::Node;
use simurgh_proto::serializer::ServerMessage;
use simurgh_reactor::Key;

use crate::core::Core;
use crate::frames::say;
use crate::sockets::Sockets;

impl<N: Node> Core<N> {
    pub(super) fn say_behind(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        membership: Option<u32>,
        message: ServerMessage<'_>,
    ) {
        let id = membership.and_then(|it| self.name_of(it));
        if let Some(id) = id {
            self.catch_up(out, id.membership);
        }
        say(out, &self.metrics, key, message);
        if let Some(id) = id {
            self.end_as_wanted(out, id);
        }
    }
}
