//! How presences reach the homes of their topics, and events of presence reach shards.

use std::sync::Arc;

use crate::kit::fault::Fault;
use crate::kit::{NONE, payload};
use simurgh_core::{Broadcast, Mail, PresenceCall, PresenceMail};

use super::{MailTag, SimNode, TaggedMail};
use crate::app::DEPTH_MAX;
use crate::model::PayloadInfo;
use crate::model::presence::{PresenceAction, event_of, key_of};

pub(crate) fn is_of_presence(mail: &Mail) -> bool {
    match mail {
        Mail::Presence(..) | Mail::Push(_) => true,
        Mail::Broadcast(posted) => event_of(posted.broadcast().event()).is_some(),
        _ => false,
    }
}

impl SimNode {
    pub(crate) fn post_presence(&self, shard: usize, mut mail: Mail) -> bool {
        if let Mail::Presence(_, PresenceMail::Call(..), charge) = &mut mail
            && self.shared.is_faulty(Fault::Uncharged)
        {
            *charge = None;
        }
        let tag = match &mail {
            Mail::Presence(topic, PresenceMail::ListAnswer(events), _) => {
                let mut model = self.shared.model();
                let topic = model.topics.number(topic).unwrap_or_default();
                let events =
                    events.as_ref().map(|it| it.iter().map(|(event, json)| (*event, &**json)));
                MailTag::Answers(model.answers_go(topic, events))
            }
            Mail::Presence(topic, it, _) => MailTag::Present(self.for_home(shard, topic, it)),
            Mail::Push(push) => MailTag::Pushes(self.shared.model().presence_pushes(push)),
            Mail::Broadcast(posted) => MailTag::Broadcast(self.told_all(posted.broadcast())),
            _ => MailTag::Nothing,
        };
        let is_told = matches!(tag, MailTag::Broadcast(_)) && self.shared.is_faulty(Fault::Absent);
        let is_for_home =
            matches!(tag, MailTag::Present(_)) && self.shared.is_faulty(Fault::Untold);
        if is_told || is_for_home {
            return false;
        }
        self.put(shard, TaggedMail::new(mail, tag))
    }

    fn for_home(&self, shard: usize, topic: &str, mail: &PresenceMail) -> u32 {
        let mut model = self.shared.model();
        let topic = model.topics.number(topic);
        let mut number = |meta: &str| {
            let number = payload::number(meta.get(5..).unwrap_or("").as_bytes()).0;
            model.presence.weigh(number, meta.len());
            number
        };
        match mail {
            PresenceMail::Call(channel, call) => {
                let does = match call {
                    PresenceCall::Track(key, it, _) => {
                        PresenceAction::Track(key_of(key), number(it.as_str()))
                    }
                    PresenceCall::Update(key, it) => {
                        PresenceAction::Update(key_of(key), number(it.as_str()))
                    }
                    PresenceCall::Untrack(key) => PresenceAction::Untrack(key_of(key)),
                    PresenceCall::PushState => PresenceAction::Ask,
                    PresenceCall::End => PresenceAction::End,
                };
                model.now.is_presence_called = true;
                model.presence_posted(*channel, topic, shard, does)
            }
            // Only nodes in a cluster send these.
            PresenceMail::List(_)
            | PresenceMail::ListAnswer(_)
            | PresenceMail::Begin
            | PresenceMail::Peers(_) => {
                topic.map_or(NONE, |it| model.presence_goes(it, shard, None))
            }
        }
    }

    /// The number of an event for all members, which is the same for all shards.
    fn told_all(&self, broadcast: &Arc<Broadcast>) -> u32 {
        let mut state = self.state();
        if let Some((last, id)) = &state.told_last
            && Arc::ptr_eq(last, broadcast)
        {
            return *id;
        }
        drop(state.told_last.take());
        drop(state);
        let mut model = self.shared.model();
        let topic = model.topics.number(broadcast.topic()).unwrap_or_default();
        let (event, text) = (broadcast.event(), broadcast.payload().json().unwrap_or_default());
        let record = model.presence_says(topic, event, text, None);
        let event = event_of(event).unwrap_or_default();
        let sum = payload::sum(broadcast.payload());
        let id =
            model.make(PayloadInfo { event, record, sum, ..PayloadInfo::plain(topic, DEPTH_MAX) });
        drop(model);
        self.state().told_last = Some((Arc::clone(broadcast), id));
        id
    }
}
