//! What channels do with their presences, how that goes to the homes of topics, and who asks there.

use std::sync::Arc;

use simurgh_core::{Context, Mail, Node, PresenceCall, PresenceError, PresenceMail};
use simurgh_proto::message::Payload;
use simurgh_sim_kit::NONE;
use simurgh_sim_kit::fault::Fault;
use simurgh_sim_kit::presence::KEYS;

use crate::app::{DEPTH_MAX, Draw, Member};
use crate::model::presence::{PresenceAction, event_of, key_of};
use crate::model::{Action, Model, PayloadInfo};
use crate::node::{MailTag, SimNode, TaggedMail};
use crate::profile::Habit;
use crate::simulation::NodeSimulation;

/// Whether a mail has to do with presence.
pub(crate) fn is_of_presence(mail: &Mail) -> bool {
    match mail {
        Mail::Presence(..) | Mail::Push(_) => true,
        Mail::Broadcast(posted) => event_of(posted.broadcast().event()).is_some(),
        _ => false,
    }
}

/// The text of a meta, which begins with its number.
fn meta(number: u32, pad: usize) -> String {
    match pad {
        // What is the table's to say is dropped.
        0 if number % 8 == 3 => format!("{{\"i\":{number},\"phx_ref\":\"mine\"}}"),
        0 => format!("{{ \"i\":{number}}}"),
        _ => format!("{{\"i\":{number},\"p\":\"{}\"}}", "p".repeat(pad)),
    }
}

impl Draw<'_> {
    /// One effect on the presences of a channel.
    pub(crate) fn present(
        &mut self,
        model: &mut Model,
        ctx: &mut Context<'_>,
        effects: &mut Vec<Action>,
        habit: Habit,
    ) {
        let (place, word) = (self.rng.u8(..KEYS.len() as u8), self.rng.u32(..));
        let key = KEYS.get(usize::from(place)).copied().unwrap_or_default();
        // What is told of it may have this called: there would be no end of it.
        if self.depth >= DEPTH_MAX {
            return;
        }
        // In a join function there is no channel yet.
        if self.chan != NONE {
            model.presence_names(ctx.handle::<Member>().id(), self.chan);
        }
        match habit {
            Habit::Untrack => {
                ctx.presence().untrack(key);
                effects.push(Action::Present(PresenceAction::Untrack(place)));
            }
            Habit::AskState => {
                ctx.presence().push_state();
                effects.push(Action::Present(PresenceAction::Ask));
            }
            _ => {
                let config = &self.shared.profile.config.presence;
                let pad = match word % 32 {
                    0..2 => 40,
                    2 if config.meta_bytes_max > 4096 => config.meta_bytes_max - 60,
                    _ => 0,
                };
                let number = model.presence.next_number();
                let text = meta(number, pad);
                let (bytes, bytes_max) = (text.len(), config.meta_bytes_max);
                let expected = match key.len() > config.key_bytes_max {
                    true => Err(PresenceError::KeyTooLong {
                        bytes: key.len(),
                        bytes_max: config.key_bytes_max,
                    }),
                    false if bytes > bytes_max => {
                        Err(PresenceError::MetaTooLong { bytes, bytes_max })
                    }
                    false => Ok(()),
                };
                let (done, does) = match habit {
                    Habit::Track => {
                        let done = ctx.presence().track(key, Payload::from_json(text));
                        (done, PresenceAction::Track(place, number))
                    }
                    _ => {
                        let done = ctx.presence().update(key, Payload::from_json(text));
                        (done, PresenceAction::Update(place, number))
                    }
                };
                if done != expected {
                    model.fail("presence", format!("{does:?}: {done:?}, not {expected:?}"));
                }
                if done.is_ok() {
                    effects.push(Action::Present(does));
                }
            }
        }
    }
}

impl SimNode {
    /// Posts what has to do with presence.
    pub(crate) fn post_presence(&self, shard: usize, mail: Mail) -> bool {
        let tag = match &mail {
            Mail::Presence(topic, PresenceMail::ListAnswer(events)) => {
                let mut model = self.shared.model();
                let topic = model.topics.number(topic).unwrap_or_default();
                let events =
                    events.as_ref().map(|it| it.iter().map(|(event, json)| (*event, &**json)));
                MailTag::Answers(model.answers_go(topic, events))
            }
            Mail::Presence(topic, it) => MailTag::Present(self.for_home(shard, topic, it)),
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
            let number = simurgh_sim_kit::payload::number(meta.get(5..).unwrap_or("").as_bytes()).0;
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
                model.presence_posted(*channel, topic, shard, does)
            }
            // Those of a node with others: here is only one.
            PresenceMail::List(_)
            | PresenceMail::ListAnswer(_)
            | PresenceMail::Begin
            | PresenceMail::Peers(_) => {
                topic.map_or(NONE, |it| model.presence_goes(it, shard, None))
            }
        }
    }

    /// The number of what is told to all, which is the same for all shards.
    fn told_all(&self, broadcast: &Arc<simurgh_core::Broadcast>) -> u32 {
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
        let sum = simurgh_sim_kit::payload::sum(broadcast.payload());
        let id =
            model.make(PayloadInfo { event, record, sum, ..PayloadInfo::plain(topic, DEPTH_MAX) });
        drop(model);
        self.state().told_last = Some((Arc::clone(broadcast), id));
        id
    }
}

impl NodeSimulation {
    /// Somebody outside of channels asks who is present.
    pub(crate) fn ask_who(&mut self, topic: u8) {
        if !self.shared.profile.features.is_present {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let name = shared.model().topics.name(topic).to_owned();
        self.tell(|| format!("somebody asks who is present in {name}"));
        let answer = move |list: simurgh_core::PresenceList| {
            let counts = (list.entries, list.keys);
            shared.model().presence_answers(topic, counts, &list.json);
        };
        self.node.request_presences(&name, Box::new(answer));
    }

    /// What is still to be told of presences, or is kept although nobody is there.
    pub(crate) fn presence_unrest(&self) -> Option<String> {
        let keeps_nothing = |it: &crate::simulation::Server| it.core.presences() == Some(0);
        if let Some(shard) = self.servers.iter().position(keeps_nothing) {
            return Some(format!("shard {shard} keeps topics without presences"));
        }
        // A list that was asked for while another one was on its way.
        let is_due = |it: &crate::simulation::Server| !it.has_ended && it.core.has_presences_due();
        if let Some(shard) = self.servers.iter().position(is_due) {
            return Some(format!("shard {shard} has something to tell"));
        }
        self.shared.model().presence.unrest()
    }

    /// Time passes, if there is only something to be told of presences.
    pub(crate) fn wait_for_presence(&mut self) {
        if self.shared.profile.features.is_present && self.presence_unrest().is_some() {
            self.clock_ns += 60_000_000;
        }
    }
}
