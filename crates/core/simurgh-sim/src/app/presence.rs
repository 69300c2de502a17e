//! What channels do with their presences.

use crate::kit::NONE;
use crate::kit::presence::KEYS;
use simurgh_core::{PresenceConfig, PresenceError, ShardContext};
use simurgh_proto::message::Payload;

use super::{DEPTH_MAX, Draw, Member};
use crate::model::Action;
use crate::model::presence::PresenceAction;
use crate::profile::Habit;

/// The text of a meta, which begins with its number.
fn meta(number: u32, pad: usize) -> String {
    match pad {
        // The table drops members that only it may set.
        0 if number % 8 == 3 => format!("{{\"i\":{number},\"phx_ref\":\"mine\"}}"),
        0 => format!("{{ \"i\":{number}}}"),
        _ => format!("{{\"i\":{number},\"p\":\"{}\"}}", "p".repeat(pad)),
    }
}

impl Draw<'_> {
    pub(super) fn present(&mut self, ctx: &mut ShardContext<'_>, habit: Habit) {
        let (place, word) = (self.rng.u8(..KEYS.len() as u8), self.rng.u32(..));
        let key = KEYS.get(usize::from(place)).copied().unwrap_or_default();
        // Its events may call this again, without end.
        if self.depth >= DEPTH_MAX || self.chan == NONE {
            return;
        }
        self.model.presence_names(ctx.handle::<Member>().id(), self.chan);
        let does = match habit {
            Habit::Untrack => {
                ctx.presence().untrack(key);
                PresenceAction::Untrack(place)
            }
            Habit::AskState => {
                ctx.presence().push_state();
                PresenceAction::Ask
            }
            _ => {
                let topic = usize::from(self.topic);
                let number = self.model.presence.all.make(0, topic, self.chan, place);
                let text = meta(number, self.meta_pad(word));
                self.model.presence.all.weigh(number, text.len());
                let expected = self.may_be_tracked(key, &text);
                let (done, does) = match habit {
                    Habit::Track => {
                        let done = ctx.presence().track(key, Payload::from_json(text));
                        (done, PresenceAction::Track(number))
                    }
                    _ => {
                        let done = ctx.presence().update(key, Payload::from_json(text));
                        (done, PresenceAction::Update(number))
                    }
                };
                if done != expected {
                    self.model.fail("presence", format!("{does:?}: {done:?}, not {expected:?}"));
                }
                if done.is_err() {
                    return;
                }
                does
            }
        };
        self.effects.push(Action::Present(does));
    }

    fn meta_pad(&self, word: u32) -> usize {
        let bytes_max = self.shared.profile.config.presence.meta_bytes_max;
        match word % 32 {
            0..2 => 40,
            2 if bytes_max > 4096 => bytes_max - 60,
            _ => 0,
        }
    }

    fn may_be_tracked(&self, key: &str, meta: &str) -> Result<(), PresenceError> {
        let PresenceConfig { key_bytes_max, meta_bytes_max, .. } =
            self.shared.profile.config.presence;
        match (key.len(), meta.len()) {
            (bytes, _) if bytes > key_bytes_max => {
                Err(PresenceError::KeyTooLong { bytes, bytes_max: key_bytes_max })
            }
            (_, bytes) if bytes > meta_bytes_max => {
                Err(PresenceError::MetaTooLong { bytes, bytes_max: meta_bytes_max })
            }
            _ => Ok(()),
        }
    }
}
