//! The broadcasts of a topic that are not sent to everybody yet, each with one frame for each form.

use simurgh_channel::{Broadcast, Posted};
use simurgh_data::{Run, Shared};

use crate::wire::{COMMON_FORMS, FORMS, Form};
use simurgh_data::prelude::*;

/// A frame of one form, made when it is first needed.
enum Frame {
    NotYet,
    /// A binary payload has no form in V1. The first and the last of several in a row have their
    /// number, so that they are skipped in one step.
    Impossible(u32),
    Made(Shared),
}

/// The frames of a broadcast with positions, or for compression.
type Rare = [Frame; FORMS - COMMON_FORMS];

const NOT_YET: Rare = [const { Frame::NotYet }; FORMS - COMMON_FORMS];

struct Entry {
    posted: Posted,
    frames: [Frame; COMMON_FORMS],
}

/// Numbered broadcasts that are still to be sent; numbers wrap.
#[derive(Default)]
pub(crate) struct Log {
    entries: VecDeque<Entry>,
    /// Their rare frames, once a member has needed one.
    #[expect(clippy::box_collection, reason = "a log without rare frames pays 8 bytes, not 32")]
    rare: Option<Box<VecDeque<Rare>>>,
    head: u32,
    /// The last frames of broadcasts that were dropped from the log, for members that are behind:
    /// the next frame is linked to them and makes no queue longer.
    tails: Option<Box<[Option<Shared>; FORMS]>>,
    #[cfg(test)]
    looks: core::cell::Cell<usize>,
}

impl Log {
    #[inline]
    pub(crate) fn head(&self) -> u32 {
        self.head
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn push(&mut self, posted: Posted) {
        let frames = [const { Frame::NotYet }; COMMON_FORMS];
        self.entries.push_back(Entry { posted, frames });
        if let Some(rare) = &mut self.rare {
            rare.push_back(NOT_YET);
        }
        self.head = self.head.wrapping_add(1);
    }

    /// Drops the oldest. With `is_awaited` a member is behind on it: the next frame must be linked
    /// to it.
    pub(crate) fn pop(&mut self, is_awaited: bool) -> Option<Posted> {
        let entry = self.entries.pop_front()?;
        let rare = self.rare.as_mut().and_then(|rare| rare.pop_front());
        if !is_awaited {
            self.tails = None;
            return Some(entry.posted);
        }
        let tails = self.tails.get_or_insert_default();
        let frames = entry.frames.into_iter().chain(rare.unwrap_or(NOT_YET));
        for (tail, frame) in tails.iter_mut().zip(frames) {
            match frame {
                Frame::Made(frame) => *tail = Some(frame.last_part().clone()),
                Frame::NotYet => *tail = None,
                Frame::Impossible(_) => {}
            }
        }
        Some(entry.posted)
    }

    pub(crate) fn nobody_waits(&mut self) {
        self.tails = None;
    }

    pub(crate) fn shrink(&mut self) -> bool {
        let had_room = self.entries.capacity() > 0;
        if self.entries.is_empty() {
            (self.entries, self.rare) = (VecDeque::new(), None);
        }
        had_room && self.entries.capacity() == 0
    }

    #[inline]
    pub(crate) fn pending(&self, cursor: u32) -> impl Iterator<Item = &Arc<Broadcast>> {
        let entries = (self.at(cursor)..self.entries.len()).filter_map(|at| self.entries.get(at));
        entries.map(|entry| entry.posted.broadcast())
    }

    /// The frames for `form` of the broadcasts from `cursor` on that are `wanted`, as runs: one,
    /// unless something in between is left out. `encode` makes a frame at its first use; `None` if
    /// it has no form.
    pub(crate) fn runs(
        &mut self,
        cursor: u32,
        form: Form,
        wanted: impl Fn(&Broadcast) -> bool,
        mut encode: impl FnMut(&Arc<Broadcast>) -> Option<Shared>,
        mut found: impl FnMut(&Run, u32),
    ) {
        let mut run: Option<(Run, u32)> = None;
        for at in self.at(cursor)..self.entries.len() {
            self.make(at, form, &mut encode);
            let Some(entry) = self.entries.get(at) else { break };
            let Some(Frame::Made(frame)) = self.frame_at(at, form) else { continue };
            if !wanted(entry.posted.broadcast()) {
                continue;
            }
            if let Some((run, count)) = &mut run
                && run.push(frame)
            {
                *count += 1;
            } else if let Some((run, count)) = run.replace((Run::of(frame), 1)) {
                found(&run, count);
            }
        }
        if let Some((run, count)) = run {
            found(&run, count);
        }
    }

    /// Makes the frame at a place if it was not needed before, and links it to its neighbours.
    fn make(
        &mut self,
        at: usize,
        form: Form,
        encode: &mut impl FnMut(&Arc<Broadcast>) -> Option<Shared>,
    ) {
        if let Some(Frame::Made(_) | Frame::Impossible(_)) = self.frame_at(at, form) {
            return;
        }
        let Some(entry) = self.entries.get(at) else { return };
        let Some(frame) = encode(entry.posted.broadcast()) else {
            if let (Some(before), Some(after)) = (self.before(at, form), self.after(at, form)) {
                before.follow(after);
            }
            return self.has_no_form(at, form);
        };
        if let Some(place) = self.frame_mut(at, form) {
            *place = Frame::Made(frame.clone());
        }
        if let Some(before) = self.before(at, form) {
            before.follow(&frame);
        }
        if let Some(after) = self.after(at, form) {
            frame.follow(after);
        }
    }

    /// Notes that the broadcast at a place has no frame, in one row with its neighbours.
    fn has_no_form(&mut self, at: usize, form: Form) {
        // Part of the row may have been dropped.
        let first = at - self.row_before(at, form).min(at);
        let last = at + self.row(at + 1, form);
        let row = (last - first + 1) as u32;
        for at in [first, at, last] {
            if let Some(place) = self.frame_mut(at, form) {
                *place = Frame::Impossible(row);
            }
        }
    }

    fn row(&self, at: usize, form: Form) -> usize {
        match self.frame(at, form) {
            Some(Frame::Impossible(row)) => *row as usize,
            _ => 0,
        }
    }

    fn row_before(&self, at: usize, form: Form) -> usize {
        at.checked_sub(1).map_or(0, |at| self.row(at, form))
    }

    fn before(&self, at: usize, form: Form) -> Option<&Shared> {
        let Some(at) = at.checked_sub(self.row_before(at, form) + 1) else {
            return self.tails.as_ref()?.get(form.index())?.as_ref();
        };
        self.made(at, form)
    }

    fn after(&self, at: usize, form: Form) -> Option<&Shared> {
        self.made(at + 1 + self.row(at + 1, form), form)
    }

    fn made(&self, at: usize, form: Form) -> Option<&Shared> {
        match self.frame(at, form)? {
            Frame::Made(frame) => Some(frame),
            Frame::NotYet | Frame::Impossible(_) => None,
        }
    }

    fn frame(&self, at: usize, form: Form) -> Option<&Frame> {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        self.frame_at(at, form)
    }

    fn frame_at(&self, at: usize, form: Form) -> Option<&Frame> {
        match form.index().checked_sub(COMMON_FORMS) {
            None => self.entries.get(at)?.frames.get(form.index()),
            Some(rare) => self.rare.as_ref()?.get(at)?.get(rare),
        }
    }

    fn frame_mut(&mut self, at: usize, form: Form) -> Option<&mut Frame> {
        let Some(index) = form.index().checked_sub(COMMON_FORMS) else {
            return self.entries.get_mut(at)?.frames.get_mut(form.index());
        };
        let rare = || Box::new(self.entries.iter().map(|_| NOT_YET).collect());
        self.rare.get_or_insert_with(rare).get_mut(at)?.get_mut(index)
    }

    #[inline]
    fn at(&self, cursor: u32) -> usize {
        let count = self.head.wrapping_sub(cursor) as usize;
        self.entries.len().saturating_sub(count)
    }
}

#[cfg(test)]
mod tests {
    use simurgh_proto::message::Payload;

    use super::*;
    use crate::wire::Wire;

    fn broadcast(text: &str) -> Posted {
        Posted::new(Arc::new(Broadcast::new("t", text, Payload::EMPTY_OBJECT)), None)
    }

    fn log(events: &[&str]) -> Log {
        let mut log = Log::default();
        for event in events {
            log.push(broadcast(event));
        }
        log
    }

    fn runs(log: &mut Log, cursor: u32, but: &str) -> Vec<String> {
        let mut all = Vec::new();
        let encode = |it: &Arc<Broadcast>| {
            (it.event() != "-").then(|| Shared::from(it.event().as_bytes().to_vec()))
        };
        log.runs(
            cursor,
            Form::plain(Wire::V2),
            |it| it.event() != but,
            encode,
            |run, count| {
                let text: Vec<u8> = run.frames().flat_map(|it| it.as_bytes().to_vec()).collect();
                assert_eq!(run.frames().count(), count as usize);
                all.push(String::from_utf8(text).unwrap());
            },
        );
        all
    }

    #[test]
    fn frame_is_encoded_once_for_all_positions() {
        let mut log = log(&["a", "b", "-", "c"]);
        assert_eq!(runs(&mut log, 3, ""), ["c"]);
        assert_eq!(runs(&mut log, 1, ""), ["bc"], "what is made later is put before what was");
        assert_eq!(runs(&mut log, 0, "b"), ["a", "c"]);
        let none = |_: &Arc<Broadcast>| panic!("made a second time");
        log.runs(0, Form::plain(Wire::V2), |_| true, none, |run, _| assert_eq!(run.len(), 3));
        assert!(runs(&mut log, 4, "").is_empty());
    }

    /// Those in a row without a form are skipped in one step, in whatever order they are requested.
    #[test]
    fn broadcasts_without_a_frame_are_skipped() {
        const COUNT: u32 = 2_000;
        let cursors: [Vec<u32>; 4] = [
            vec![0],
            (0..COUNT).rev().collect(),
            (0..COUNT).rev().step_by(7).collect(),
            (0..COUNT / 2).flat_map(|n| [COUNT / 2 + n, COUNT / 2 - n]).collect(),
        ];
        for cursors in cursors {
            let mut log = log(&["-"; COUNT as usize]);
            for cursor in cursors {
                assert!(runs(&mut log, cursor, "").is_empty());
            }
            let looks = log.looks.take();
            assert!(looks <= 6 * COUNT as usize, "{looks} for {COUNT}");
            for n in 0..COUNT {
                log.push(broadcast("-"));
                assert!(runs(&mut log, COUNT + n, "").is_empty());
            }
            let looks = log.looks.take();
            assert!(looks <= 6 * COUNT as usize, "{looks} for {COUNT} more");
        }
    }

    /// In whatever order frames are requested and dropped: all that have a form are one chain.
    #[test]
    fn broadcast_without_a_frame_does_not_split_a_chain() {
        for seed in 0..300_u32 {
            let mut random = seed.wrapping_mul(0x9e37_79b9) | 1;
            let mut draw = |below: u32| {
                random ^= random << 13;
                random ^= random >> 17;
                random ^= random << 5;
                random % below
            };
            let (mut log, mut forms) = (Log::default(), String::new());
            for _ in 0..40 {
                match draw(4) {
                    0 | 1 => {
                        let form = if draw(3) == 0 { "x" } else { "-" };
                        log.push(broadcast(form));
                        forms.push_str(form);
                    }
                    2 => {
                        let back = draw(log.len() as u32 + 1);
                        let wanted = forms[forms.len() - back as usize..].replace('-', "");
                        let cursor = log.head() - back;
                        let found = runs(&mut log, cursor, "");
                        assert_eq!(found, Vec::from_iter((!wanted.is_empty()).then_some(wanted)));
                    }
                    _ => drop(log.pop(draw(2) == 0)),
                }
            }
        }
    }

    #[test]
    fn log_numbers_wrap() {
        let mut log = Log { head: u32::MAX, ..Log::default() };
        ["a", "b", "c"].iter().for_each(|event| log.push(broadcast(event)));
        assert_eq!((log.head(), log.len(), log.is_empty()), (2, 3, false));
        assert_eq!(runs(&mut log, u32::MAX, ""), ["abc"]);
        assert_eq!(runs(&mut log, 1, ""), ["c"]);
        assert_eq!(log.pending(0).map(|it| it.event().to_owned()).collect::<String>(), "bc");
        assert_eq!(log.pending(2).count(), 0);
    }

    #[test]
    fn empty_log_frees_its_memory() {
        let mut log = log(&["a"]);
        assert!(!log.shrink(), "it is in use");
        assert!(log.pop(false).is_some() && log.pop(false).is_none());
        assert!(log.is_empty() && log.shrink() && !log.shrink(), "once");
    }

    #[test]
    fn next_broadcast_is_chained_only_while_a_reader_is_behind() {
        for is_awaited in [true, false] {
            let mut log = log(&["a", "b"]);
            let (form, mut behind, mut next) = (Form::plain(Wire::V2), None, None);
            let made = |it: &Arc<Broadcast>| Some(Shared::from(it.event().as_bytes().to_vec()));
            log.runs(0, form, |_| true, made, |run, _| behind = Some(run.clone()));
            while log.pop(is_awaited).is_some() {}
            log.push(broadcast("c"));
            log.runs(2, form, |_| true, made, |run, _| next = run.single().cloned());
            let (mut behind, next) = (behind.unwrap(), next.unwrap());
            assert_eq!(behind.push(&next), is_awaited);
        }
    }
}
