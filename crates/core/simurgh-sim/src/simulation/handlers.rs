//! Ends of waiting handlers and of linked work, and broadcasts by handles.

use simurgh_sim_kit::setup::locked;

use super::NodeSimulation;
use crate::app::Member;
use crate::app::handlers::Speech;
use crate::model::{Intent, Life};

impl NodeSimulation {
    /// Ends a waiting handler, whose channel may have ended meanwhile.
    pub(super) fn done(&mut self, which: usize, c: u32) {
        let mut model = self.shared.model();
        let which = which.checked_rem(model.handlers.len()).unwrap_or(0);
        if which >= model.handlers.len() {
            return;
        }
        let it = model.handlers.swap_remove(which);
        drop(model);
        let Some(handle) = self.shared.handle(it.chan) else { return };
        let (chan, task) = (it.chan, it.task);
        self.tell(|| format!("handler {task} of channel {chan} is done"));
        *locked(&self.shared.intent) = Some((chan, Intent::Done(task)));
        handle.visit(move |it: &mut Member, ctx| it.done(ctx, task, c));
    }

    pub(super) fn end_work(&mut self, which: usize) {
        let mut model = self.shared.model();
        let count = model.tasks.len();
        let Some(at) = count.checked_sub(1 + which % count.clamp(1, 16)) else { return };
        if let Some(task) = model.tasks.get_mut(at).filter(|it| !it.is_handler) {
            task.is_finished = true;
        }
    }

    pub(super) fn speak(&mut self, c: u32) {
        let mut model = self.shared.model();
        let chans = model.chans.len();
        let Some(chan) = chans.checked_sub(1 + c as usize % chans.clamp(1, 16)) else { return };
        let Some(it) = model.chans.get(chan) else { return };
        let Some(handle) = self.shared.handle(chan as u32) else { return };
        if it.life == Life::Ended {
            self.shared.forget(chan as u32);
        }
        let speech = Speech::new(&self.shared, &mut model, chan as u32, 1, c.rotate_right(8));
        drop(model);
        let expected = self.node.may_broadcast_bytes("", speech.payload.len());
        let done = speech.by(&self.shared, &handle);
        if done != expected {
            self.shared.model().fail("bounds", format!("{done:?}, not {expected:?}"));
        }
        self.tell(|| format!("the handle of channel {chan} broadcasts #{}: {done:?}", speech.id));
    }
}
