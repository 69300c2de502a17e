//! How presences reach the homes of their topics, and events of presence reach shards.

use std::sync::Arc;

use crate::kit::fault::Fault;
use crate::kit::payload;
use simurgh_core::{Broadcast, Mail, PresenceMail};

use super::{MailTag, SimNode, TaggedMail};
use crate::app::DEPTH_MAX;
use crate::model::PayloadInfo;
use crate::model::presence::event_of;

pub(crate) fn is_of_presence(mail: &Mail) -> bool {
    match mail {
        Mail::Presence(..) | Mail::Push(_) => true,
        Mail::Broadcast(posted) => event_of(posted.broadcast().event()).is_some(),
        _ => false,
    }
}

impl SimNode {
    pub(crate) fn post_presence(&self, shard: usize, mut mail: Mail) -> bool {
        if let Mail::Presence(_, PresenceMail::Call(..), charge) = &mut mail {
            if self.shared.is_faulty(Fault::Uncharged) {
                *charge = None;
            }
            if self.shared.is_faulty(Fault::Untold) {
                return false;
            }
        }
        let tag = match &mail {
            Mail::Presence(topic, PresenceMail::ListAnswer(events), _) => {
                let mut model = self.shared.model();
                let topic = model.topics.number(topic).unwrap_or_default();
                let events =
                    events.as_ref().map(|it| it.iter().map(|(event, json)| (*event, &**json)));
                MailTag::Answers(model.answers_go(topic, events))
            }
            Mail::Push(push) => MailTag::Pushes(self.shared.model().presence_pushes(push)),
            Mail::Broadcast(posted) => MailTag::Broadcast(self.told_all(posted.broadcast())),
            _ => MailTag::Nothing,
        };
        if matches!(tag, MailTag::Broadcast(_)) && self.shared.is_faulty(Fault::Absent) {
            return false;
        }
        self.put(shard, TaggedMail::new(mail, tag))
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
