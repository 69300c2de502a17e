//! A checked spec, and what it makes of joins and messages.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use simurgh_channel::{
    Broadcast, Context, Join, Outcome, PARSED_BYTES_MAX, Reply, Scope, ShardChannel, ShardContext,
};
use simurgh_proto::message::{Message, Payload, events};
use simurgh_proto::topic::Pattern;

use super::presence::{self, Presence, Present};
#[cfg(feature = "token")]
use super::rules;
#[cfg(feature = "schema")]
use super::schema::Schema;
use super::template::{Identity, Source, Template};
use super::{OtherEvents, PayloadShape, Reach, check};
use crate::identity::{self, OwnClaims};
use crate::shape::Misfit;
use crate::socket::Payloads;

/// A checked spec, shared by all members.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) deny: Vec<Pattern>,
    #[cfg(feature = "token")]
    pub(super) rules: rules::Rules,
    /// For joins, and for events without their own.
    pub(super) shape: PayloadShape,
    #[cfg(feature = "schema")]
    pub(super) join_schema: Option<Schema>,
    pub(super) join_reply: Template,
    pub(super) announce: Option<Announce>,
    pub(super) other_events: OtherEvents,
    pub(super) payload_bytes_max: usize,
    pub(super) members_max: Option<u32>,
    pub(super) presence: Option<Presence>,
    pub(super) events: Vec<Event>,
    pub(super) any_event: Option<Event>,
    /// Index of the hook that decides about joins.
    pub(super) join_hook: Option<usize>,
    /// Whether it decides even if a rule allows the join.
    pub(super) asks_always: bool,
}

/// The state of one member.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The claims of its own token.
    pub(super) claims: Option<OwnClaims>,
    /// The assigns in the application's answer to its join.
    pub(super) assigns: Option<Map<String, Value>>,
    pub(super) publish: Publish,
}

/// The events that an application's answer allows a member to publish.
#[derive(Debug, Default)]
pub(super) enum Publish {
    #[default]
    All,
    #[cfg_attr(not(feature = "hooks"), allow(dead_code, reason = "only an answer has such a list"))]
    Only(Vec<String>),
}

impl Kept {
    fn is_empty(&self) -> bool {
        self.claims.is_none() && self.assigns.is_none() && matches!(self.publish, Publish::All)
    }

    pub(super) fn may_publish(&self, event: &str) -> bool {
        match &self.publish {
            Publish::All => true,
            Publish::Only(events) => events.iter().any(|own| own == event),
        }
    }

    /// With the claims of the socket, if it has no own ones.
    pub(super) fn identity<'a>(&'a self, of_socket: Option<&'a OwnClaims>) -> Identity<'a> {
        Identity { claims: self.claims.as_ref().or(of_socket), assigns: self.assigns.as_ref() }
    }
}

/// A permission to join, and its values in place of the declared ones.
#[derive(Debug, Default)]
pub(super) struct Grant {
    pub(super) kept: Kept,
    pub(super) reply: Option<Payload<'static>>,
    pub(super) present: Option<Present>,
    /// Further topics whose broadcasts the member receives on its own topic.
    pub(super) subscribe: Vec<String>,
}

/// The reason for a payload that is not parsed on a shard ([`PARSED_BYTES_MAX`]).
///
/// [`PARSED_BYTES_MAX`]: simurgh_channel::PARSED_BYTES_MAX
pub(super) const TOO_LONG: &str = "payload_too_large";

#[derive(Debug)]
pub(super) struct Announce {
    pub(super) event: Box<str>,
    pub(super) payload: Template,
    pub(super) members_max: u32,
}

#[derive(Debug)]
pub(super) struct Event {
    pub(super) name: Box<str>,
    pub(super) shape: PayloadShape,
    #[cfg(feature = "schema")]
    pub(super) schema: Option<Schema>,
    pub(super) reach: Reach,
    pub(super) payload: Template,
    pub(super) reply: Option<(Box<str>, Template)>,
    /// Index of the hook that decides about it.
    pub(super) hook: Option<usize>,
}

impl Event {
    fn check(&self, payload: &Payload<'_>) -> Result<(), Misfit> {
        self.shape.check(payload)?;
        #[cfg(feature = "schema")]
        if let Some(schema) = &self.schema {
            schema.check(payload)?;
        }
        Ok(())
    }

    pub(super) fn templates(&self) -> impl Iterator<Item = &Template> {
        [&self.payload].into_iter().chain(self.reply.as_ref().map(|(_, reply)| reply))
    }

    pub(super) fn needs_identity(&self) -> bool {
        self.templates().any(Template::needs_identity)
    }
}

impl Declared {
    /// The templates that a join fills.
    pub(super) fn of_joins(&self) -> impl Iterator<Item = &Template> {
        let announce = self.announce.iter().map(|announce| &announce.payload);
        let presence = self.presence.iter().flat_map(Presence::templates);
        [&self.join_reply].into_iter().chain(announce).chain(presence)
    }

    /// Whether its members need the claims of their own tokens.
    fn needs_own(&self) -> bool {
        #[cfg(feature = "token")]
        if self.rules.guards() {
            return true;
        }
        self.events.iter().chain(&self.any_event).any(Event::needs_identity)
    }

    /// All templates.
    pub(super) fn templates(&self) -> impl Iterator<Item = &Template> {
        let events = self.events.iter().chain(&self.any_event).flat_map(Event::templates);
        self.of_joins().chain(events)
    }
}

#[derive(Debug, PartialEq)]
pub(super) struct Welcome {
    pub(super) reply: Payload<'static>,
    pub(super) announcement: Option<Payload<'static>>,
    pub(super) present: Option<Present>,
}

/// The prepared part of a long message: filling templates from megabytes takes longer than a turn
/// of a shard has.
#[derive(Debug)]
pub(super) enum Prepared {
    Join(Welcome),
    Event(Result<Answer, Refusal>),
    /// Its payload is accepted. Its templates need the identity: they are filled on the shard.
    Checked,
    Refused(Refusal),
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) broadcast: Option<(Reach, Payload<'static>)>,
    pub(super) outcome: Outcome,
}

impl Declared {
    pub(super) fn join(
        self: &Arc<Self>,
        ctx: &mut ShardContext<'_>,
        payload: &Payload<'_>,
    ) -> Join {
        #[cfg(feature = "hooks")]
        if let Some(hook) = self.join_hook {
            return super::asked_join::join(self, hook, ctx, payload);
        }
        self.join_by_rules(ctx, payload)
    }

    pub(super) fn join_by_rules(
        self: &Arc<Self>,
        ctx: &mut ShardContext<'_>,
        payload: &Payload<'_>,
    ) -> Join {
        #[cfg(feature = "token")]
        return self.rules.join(ctx, payload, |ctx, claims| {
            let kept = Kept { claims, ..Kept::default() };
            self.join_allowed(ctx, payload, Grant { kept, ..Grant::default() })
        });
        #[cfg(not(feature = "token"))]
        self.join_allowed(ctx, payload, Grant::default())
    }

    /// Joins an allowed client, if the channel has room.
    pub(super) fn join_allowed(
        self: &Arc<Self>,
        ctx: &mut ShardContext<'_>,
        payload: &Payload<'_>,
        grant: Grant,
    ) -> Join {
        let Grant { mut kept, reply, present, subscribe } = grant;
        let prepared = ctx.take_prepared();
        let members = || ctx.member_count().unwrap_or(0);
        let source = Source {
            identity: kept.identity(identity::claims(ctx)),
            payload,
            topic: ctx.topic(),
            event: events::JOIN,
        };
        let welcome = match self.admit(&source, members, prepared) {
            Ok(welcome) => welcome,
            Err(refusal) => return Join::error(refusal.counted(ctx)),
        };
        if let (Some(presence), Some(present)) = (&self.presence, present.or(welcome.present))
            && let Err(error) =
                presence.track(ctx, present, kept.claims.as_ref().and_then(OwnClaims::subject))
        {
            return Join::error(json!({"reason": error.to_string()}));
        }
        // Effects of a successful join are executed after its reply, when the new one is a member.
        if let (Some(announce), Some(payload)) = (&self.announce, welcome.announcement) {
            ctx.broadcast(&announce.event, payload);
        }
        for topic in subscribe {
            ctx.subscribe(&topic);
        }
        kept.claims = kept.claims.filter(|_| self.needs_own());
        let declared = Arc::clone(self);
        #[cfg(feature = "hooks")]
        if self.asks_about_messages() {
            let kept = Arc::new(kept);
            let asking = super::asking_member::AskingMember { declared, kept };
            return Join::ok(crate::asynchronous::Async::new(asking))
                .reply(reply.unwrap_or(welcome.reply));
        }
        let join = match kept.is_empty() {
            true => Join::ok(Member { declared }),
            false => Join::ok(OwnMember { declared, kept }),
        };
        join.reply(reply.unwrap_or(welcome.reply))
    }

    /// Whether the application decides about some of its members' messages.
    pub(super) fn asks_about_messages(&self) -> bool {
        self.events.iter().chain(&self.any_event).any(|event| event.hook.is_some())
    }

    /// Prepares what does not depend on the members, and takes the payload of an event.
    pub(super) fn prepare(&self, message: &mut Message<'static>) -> Prepared {
        let Message { topic, event, payload, .. } = message;
        if payload.len() > self.payload_bytes_max {
            return Prepared::Refused(Refusal::Because(TOO_LONG));
        }
        let is_join = event == events::JOIN;
        let checked = match is_join {
            true => self.check_join(payload),
            false => self.check_event(event, payload),
        };
        if let Err(misfit) = checked {
            return Prepared::Refused(misfit.into());
        }
        let needs_identity = match is_join {
            true => self.of_joins().any(Template::needs_identity),
            false => self.event(event).is_some_and(Event::needs_identity),
        };
        if needs_identity {
            return match payload.len() > PARSED_BYTES_MAX {
                true => Prepared::Refused(Refusal::Because(TOO_LONG)),
                false => Prepared::Checked,
            };
        }
        if is_join {
            let identity = Identity::default();
            let source = Source { identity, payload, topic, event: events::JOIN };
            return Prepared::Join(self.welcome(&source, true));
        }
        let payload = std::mem::replace(payload, Payload::NULL);
        Prepared::Event(self.answer(Identity::default(), topic, event, payload))
    }

    /// Decides a join; `members` is the number of members before it.
    pub(super) fn admit(
        &self,
        source: &Source<'_>,
        members: impl Fn() -> u32,
        prepared: Option<Prepared>,
    ) -> Result<Welcome, Refusal> {
        self.may_ask(source.topic)?;
        let prepared = match prepared {
            Some(Prepared::Refused(refusal)) => return Err(refusal),
            Some(Prepared::Join(welcome)) => Some(welcome),
            Some(Prepared::Checked) => None,
            _ => {
                self.check_join(source.payload)?;
                None
            }
        };
        if self.members_max.is_some_and(|max| members() >= max) {
            return Err(Refusal::Because("full"));
        }
        let announces = self.announce.as_ref().is_some_and(|it| members() < it.members_max);
        let welcome = prepared.unwrap_or_else(|| self.welcome(source, announces));
        Ok(Welcome { announcement: welcome.announcement.filter(|_| announces), ..welcome })
    }

    /// Refuses a join of any client, by its topic.
    pub(super) fn may_ask(&self, topic: &str) -> Result<(), Refusal> {
        match self.deny.iter().any(|pattern| pattern.matches(topic)) {
            true => Err(Refusal::Because("unauthorized")),
            false => Ok(()),
        }
    }

    /// Whether a join's payload is accepted.
    pub(super) fn check_join(&self, payload: &Payload<'_>) -> Result<(), Misfit> {
        self.shape.check(payload)?;
        #[cfg(feature = "schema")]
        if let Some(schema) = &self.join_schema {
            schema.check(payload)?;
        }
        Ok(())
    }

    /// Whether a member's payload is accepted; undeclared events have their own answer.
    pub(super) fn check_event(&self, event: &str, payload: &Payload<'_>) -> Result<(), Misfit> {
        self.event(event).map_or(Ok(()), |event| event.check(payload))
    }

    /// Whether any of its payloads has a schema.
    pub(super) fn has_schema(&self) -> bool {
        !self.refused().is_empty()
    }

    pub(super) fn welcome(&self, source: &Source<'_>, announces: bool) -> Welcome {
        let announce = self.announce.as_ref().filter(|_| announces);
        Welcome {
            reply: self.join_reply.fill(source),
            announcement: announce.map(|announce| announce.payload.fill(source)),
            present: self.presence.as_ref().and_then(|presence| presence.present(source)),
        }
    }

    pub(super) fn handle(
        &self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
        kept: &Kept,
    ) -> Outcome {
        let accepted = match ctx.take_prepared() {
            Some(Prepared::Event(answer)) => answer.map(Some),
            Some(Prepared::Refused(refusal)) => Err(refusal),
            Some(Prepared::Checked) => Ok(None),
            _ => self.check_event(event, &payload).map(|()| None).map_err(Refusal::from),
        };
        let who = kept.identity(identity::claims(ctx));
        let answer = accepted.and_then(|prepared| {
            if !self.may_publish(ctx.topic(), event, kept, who) {
                ctx.count_unauthorized();
                return Err(Refusal::Because("unauthorized"));
            }
            prepared.map_or_else(|| self.answer(who, ctx.topic(), event, payload), Ok)
        });
        let Answer { broadcast, outcome } = match answer {
            Ok(answer) => answer,
            Err(refusal) => return Outcome::error(refusal.counted(ctx)),
        };
        if let Some((reach, payload)) = broadcast {
            send(ctx, reach, event, payload);
        }
        outcome
    }

    /// Whether a member may send an event. An event without broadcast and hook is always allowed.
    pub(super) fn may_publish(
        &self,
        topic: &str,
        event: &str,
        kept: &Kept,
        who: Identity<'_>,
    ) -> bool {
        #[cfg(not(feature = "token"))]
        let _ = (topic, who);
        let publishes = |event: &Event| event.reach != Reach::None || event.hook.is_some();
        if !self.event(event).is_some_and(publishes) {
            return true;
        }
        #[cfg(feature = "token")]
        if !self.rules.may_publish(topic, who.claims) {
            return false;
        }
        kept.may_publish(event)
    }

    /// The effects of an event with an accepted payload.
    pub(super) fn answer(
        &self,
        identity: Identity<'_>,
        topic: &str,
        event: &str,
        payload: Payload<'_>,
    ) -> Result<Answer, Refusal> {
        let Some(declared) = self.event(event) else {
            let outcome = match self.other_events {
                OtherEvents::Error => return Err(Refusal::Because("unknown event")),
                OtherEvents::Ignore => Outcome::NoReply,
                OtherEvents::Crash => Outcome::unknown_event(),
            };
            return Ok(Answer { broadcast: None, outcome });
        };
        let source = Source { identity, payload: &payload, topic, event };
        let outcome = match &declared.reply {
            Some((status, reply)) if &**status == "ok" => Outcome::ok(reply.fill(&source)),
            Some((status, reply)) => {
                Outcome::Reply(Reply::new(status.to_string(), reply.fill(&source)))
            }
            None => Outcome::NoReply,
        };
        let broadcast = match declared.reach {
            Reach::None => None,
            // The common case of chat messages: the payload is passed on without parsing.
            reach if declared.payload.is_payload() => Some((reach, payload.into_owned())),
            reach => Some((reach, declared.payload.fill(&source))),
        };
        Ok(Answer { broadcast, outcome })
    }

    pub(super) fn event(&self, name: &str) -> Option<&Event> {
        let is_presence = self.presence.is_some() && presence::EVENTS.contains(&name);
        let is_announcement = self.announce.as_ref().is_some_and(|own| *own.event == *name);
        // A broadcast of, say, phx_close would end the channels of all other members, and one of
        // the server's own events would be forged.
        if check::is_reserved(name) || is_presence || is_announcement {
            return None;
        }
        self.events.iter().find(|event| *event.name == *name).or(self.any_event.as_ref())
    }
}

impl Payloads for Declared {
    fn check(&self, event: &str, payload: &Payload<'_>) -> Result<(), Misfit> {
        match self.event(event) {
            Some(event) => event.check(payload),
            None => self.shape.check(payload),
        }
    }

    #[cfg(feature = "schema")]
    fn refused(&self) -> Vec<(&str, u64)> {
        let joins = self.join_schema.iter().map(|schema| (events::JOIN, schema.refused()));
        let events = self.events.iter().chain(&self.any_event);
        let events =
            events.filter_map(|event| Some((&*event.name, event.schema.as_ref()?.refused())));
        joins.chain(events).collect()
    }

    #[cfg(not(feature = "schema"))]
    fn refused(&self) -> Vec<(&str, u64)> {
        Vec::new()
    }
}

/// Broadcasts to the receivers of an event, on a shard or away from it.
pub(super) fn send<S: Scope>(
    ctx: &mut Context<S>,
    reach: Reach,
    event: &str,
    payload: Payload<'static>,
) {
    match reach {
        Reach::All => ctx.broadcast(event, payload),
        Reach::Others => ctx.broadcast_from(event, payload),
        Reach::None => {}
    }
}

/// A membership of a declared channel: only a pointer to its spec.
pub(super) struct Member {
    pub(super) declared: Arc<Declared>,
}

// The cost of a joined client, in addition to its membership.
const _: () = assert!(size_of::<Member>() <= 8);

impl ShardChannel for Member {
    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        self.declared.handle(ctx, event, payload, &Kept::default())
    }
}

/// A membership with its own token, or with grants of the application.
struct OwnMember {
    declared: Arc<Declared>,
    kept: Kept,
}

impl ShardChannel for OwnMember {
    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        self.declared.handle(ctx, event, payload, &self.kept)
    }

    fn handle_broadcast(&mut self, ctx: &mut ShardContext<'_>, broadcast: &Broadcast) -> Outcome {
        ctx.push(broadcast.event(), broadcast.payload().clone());
        Outcome::NoReply
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Because(&'static str),
    Misfit(Misfit),
}

impl From<Misfit> for Refusal {
    fn from(misfit: Misfit) -> Self {
        Self::Misfit(misfit)
    }
}

impl Refusal {
    /// The reply to the client; its mistakes are counted.
    pub(super) fn counted(&self, ctx: &ShardContext<'_>) -> Payload<'static> {
        if let Self::Misfit(_) = self {
            ctx.count_wrong_payload();
        }
        self.response()
    }

    /// `{"reason": …}`.
    pub(super) fn response(&self) -> Payload<'static> {
        match self {
            Self::Because(reason) => json!({ "reason": reason }).into(),
            Self::Misfit(misfit) => {
                let mut fields = misfit.fields();
                fields["reason"] = "wrong_payload".into();
                fields.into()
            }
        }
    }
}
