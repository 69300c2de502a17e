//! What clients receive of topics that have a history. Their messages have positions; replies and
//! pushes wait until the broadcasts before them are stored.

use simurgh_history::Position;
use simurgh_proto::message::{Message, Payload};
use simurgh_proto::serializer::ServerMessage;

use super::Ledger;
use crate::kit::delivery::{Delivery, DeliveryKind};
use crate::kit::{EVENTS, payload, refs};
use crate::world::view::TopicView;

impl Ledger {
    fn view_at(&self, client: u32, topic: u8) -> usize {
        client as usize * self.plan.topics.rooms + usize::from(topic)
    }

    /// What a client knows of a topic, if that has a history.
    pub(crate) fn view(&self, client: u32, topic: u8) -> Option<&TopicView> {
        self.views.get(self.view_at(client, topic)).filter(|_| self.is_kept(topic))
    }

    /// Changes what a client knows of a topic, if that has a history.
    pub(crate) fn with_view<T>(
        &mut self,
        client: u32,
        topic: u8,
        act: impl FnOnce(&mut TopicView, &mut Self) -> T,
    ) -> Option<T> {
        let at = self.view_at(client, topic);
        let mut view = std::mem::take(self.views.get_mut(at).filter(|view| view.is_of(client))?);
        let result = act(&mut view, self);
        self.views[at] = view;
        Some(result)
    }

    /// A connection of a client is over.
    pub(crate) fn disconnected(&mut self, client: u32) {
        let of_client = self.views.iter_mut().filter(|view| view.is_of(client));
        of_client.for_each(TopicView::disconnected);
    }

    /// A client receives an event with a history; returns whether it is one.
    pub(super) fn receive_kept(&mut self, conn: u32, topic: u8, it: &Message<'_>) -> bool {
        let (event, payload) = (&*it.event, &it.payload);
        let is_plain = event == "p" || event.starts_with("presence_");
        let is_here_only = EVENTS.contains(&event) && self.is_here_only(payload::parse(payload).0);
        let Some(of) = self.sessions.conn(conn) else { return true };
        let (client, joined) = (of.client, of.joins[usize::from(topic)]);
        if is_plain || is_here_only {
            return false;
        }
        let at = Position::parse(it.msg_ref.raw().trim_matches('"'));
        let is_stale = !it.join_ref.is_null() && refs::number(it.join_ref.raw(), false) != joined;
        self.note(|| {
            let text = String::from_utf8_lossy(payload.data());
            let heard = if is_stale || joined == 0 { "drops" } else { "hears" };
            format!("client {client} {heard} {event} at {at:?} on {topic}: {text:.80}")
        });
        self.with_view(client, topic, |view, ledger| {
            let is_of_none = at.is_none() && !(view.opts_in() && payload.binary().is_some());
            if joined > 0 || !is_of_none {
                view.receive(ledger, (event, payload, at), joined == 0 || is_stale);
            }
        });
        true
    }

    /// A reply or a push comes once the broadcasts before it are stored.
    pub(super) fn check_stored_before(&mut self, line: Delivery) {
        if line.word == b'o' || line.kind == DeliveryKind::Event {
            let ids = self.log.before(line.id).iter().copied();
            let missing = ids.into_iter().find(|id| !self.log.has(*id) && !self.is_here_only(*id));
            self.counts.count("replies", 1);
            if let Some(id) = missing {
                self.fail("barrier", format!("{line:?} is sent before #{id} is stored"));
            }
        }
    }

    /// Clients with channels have all messages that are stored.
    pub(crate) fn check_views(&mut self) {
        for at in 0..self.sessions.conns.len() {
            let it = &self.sessions.conns[at];
            if !it.is_open || it.is_lost {
                continue;
            }
            let (client, joins) = (it.client, it.joins.clone());
            for (topic, _) in (0..).zip(joins).filter(|(_, joined)| *joined > 0) {
                self.with_view(client, topic, |view, ledger| view.check_rest(ledger));
            }
        }
    }

    /// Whether an error answers a message whose broadcast is not stored, or a join whose client's
    /// messages are not known in time.
    pub(super) fn is_excuse(&mut self, conn: u32, topic: u8, line: Delivery) -> bool {
        let what = match line.id {
            payload::UNCONFIRMED => "unconfirmed",
            payload::NOT_STORED => "not stored",
            payload::JOIN_TIMED_OUT => "join timeouts",
            _ => return false,
        };
        if line.kind != DeliveryKind::Reply || !self.is_kept(topic) {
            return false;
        }
        self.counts.count(what, 1);
        let admitted = self.sessions.conn_mut(conn).map(|conn| &mut conn.admitted);
        let refused = admitted.and_then(|it| it.take_if(|it| it.0.msg_ref == line.msg_ref));
        if refused.is_some() {
            // What follows was sent before the answers to later messages.
            let before = self.sessions.own(conn, topic).map_or(0, |own| own.len());
            self.close_replaced(conn);
            if let Some(own) = self.sessions.own(conn, topic) {
                own.rotate_right(own.len() - before);
            }
        }
        true
    }

    /// A client receives a message of a serializer.
    pub(crate) fn receive_message(&mut self, conn: u32, message: &ServerMessage<'_>) {
        let (topic, line, sum) = Delivery::of(&self.plan.topics, message);
        if let Some(topic) = topic.filter(|topic| self.is_kept(*topic)) {
            if let ServerMessage::Event(it) = message
                && line.kind == DeliveryKind::Event
                && self.receive_kept(conn, topic, it)
            {
                return;
            }
            self.note_joined(conn, topic, line);
        }
        self.receive_delivery(conn, topic, line, sum);
    }

    /// A client receives the answer to its join, or the end of its channel.
    fn note_joined(&mut self, conn: u32, topic: u8, line: Delivery) {
        let Some(it) = self.sessions.conn_mut(conn) else { return };
        let (client, joined) = (it.client, &mut it.joins[usize::from(topic)]);
        match line.kind {
            _ if line.msg_ref != *joined || *joined == 0 => {}
            DeliveryKind::Reply if line.word == b'o' => {
                self.with_view(client, topic, |view, _| view.joined());
            }
            DeliveryKind::Reply | DeliveryKind::Close | DeliveryKind::Error => {
                *joined = 0;
                self.counts.count("refused", u64::from(line.id == payload::BAD_RESUME));
            }
            DeliveryKind::Event | DeliveryKind::Raw => {}
        }
    }
}

/// The payload of a join, with what its client says about the messages that it has.
pub(crate) fn join_payload(id: u32, word: u32, resume: &str) -> Payload<'static> {
    Payload::from_json(format!(r#"{{"i":{id},"s":{word}{resume}}}"#))
}
