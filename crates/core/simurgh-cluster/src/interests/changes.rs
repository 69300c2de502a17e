//! The difference between what is wanted and the adapter's subscriptions.

use core::mem;

use super::topics::{NIL, Topic, Want};
use super::{InterestChanges, Interests, SPACES};
use crate::adapter::Wanted;
use crate::subject::{Bucket, Interest};
use simurgh_data::prelude::*;

/// Changes, and the number of subscriptions that they add.
type Sized = (isize, InterestChanges);

const fn wanted(is_wanted: bool) -> Wanted {
    if is_wanted { Wanted::Yes } else { Wanted::No }
}

fn growth(step: &InterestChanges) -> isize {
    step.iter().map(|(_, it)| if *it == Wanted::Yes { 1 } else { -1 }).sum()
}

impl Interests {
    /// The changes for the adapter since the last call: each element is for one call of
    /// [`Adapter::interest`](crate::Adapter::interest), in this order. An interest that began and
    /// ended in between is omitted. Changes that make the set smaller precede those that make it
    /// larger, so it is never larger than it was or will be.
    pub fn take_changes(&mut self) -> Vec<InterestChanges> {
        let mut ended = InterestChanges::new();
        let mut begun = InterestChanges::new();
        let mut turned: Vec<Sized> = Vec::new();
        for at in self.buckets.take_dirty() {
            let bucket = Bucket::new(at);
            let was_switched = mem::take(&mut self.buckets.get_mut(bucket).was_switched);
            let mut step = self.whole_changes(bucket);
            if was_switched {
                self.exact_changes(bucket, &mut step);
                turned.push((growth(&step), step));
            } else {
                sort(step, &mut ended, &mut begun);
            }
        }
        for at in mem::take(&mut self.dirty) {
            let Some(topic) = self.topics.get_mut(at) else { continue };
            topic.is_dirty = false;
            let is_whole = self.buckets.get(topic.bucket()).is_whole;
            let mut step = InterestChanges::new();
            add_topic_changes(topic, is_whole, &mut step);
            sort(step, &mut ended, &mut begun);
            self.forget_if_over(at);
        }
        turned.sort_by_key(|(growth, _)| *growth);
        let turned = turned.into_iter().map(|(_, step)| step);
        let steps = [ended].into_iter().chain(turned).chain([begun]);
        steps.filter(|step| !step.is_empty()).collect()
    }

    /// All current interests.
    pub fn wanted(&self) -> impl Iterator<Item = Interest> {
        self.buckets.iter().flat_map(|(bucket, part)| {
            let whole = (0..2)
                .filter(|space| part.wants_whole(*space))
                .map(move |space| Interest::Whole(SPACES[space], bucket));
            let first = if part.is_whole { NIL } else { part.first };
            let exact = self.topics.of_bucket(first).flat_map(|topic| {
                (0..2)
                    .filter(|space| topic.want[*space] != Want::No)
                    .map(|space| Interest::Exact(SPACES[space], topic.name.clone()))
            });
            whole.chain(exact)
        })
    }

    fn whole_changes(&mut self, bucket: Bucket) -> InterestChanges {
        let part = self.buckets.get_mut(bucket);
        let mut step = InterestChanges::new();
        for (at, space) in SPACES.into_iter().enumerate() {
            let is_wanted = part.wants_whole(at);
            if mem::replace(&mut part.is_subscribed[at], is_wanted) != is_wanted {
                step.push((Interest::Whole(space, bucket), wanted(is_wanted)));
            }
        }
        step
    }

    fn exact_changes(&mut self, bucket: Bucket, step: &mut InterestChanges) {
        let part = self.buckets.get(bucket);
        let (is_whole, mut at) = (part.is_whole, part.first);
        while let Some(topic) = self.topics.get_mut(at) {
            let next = topic.next;
            add_topic_changes(topic, is_whole, step);
            self.forget_if_over(at);
            at = next;
        }
    }
}

fn add_topic_changes(topic: &mut Topic, is_whole: bool, step: &mut InterestChanges) {
    for (at, space) in SPACES.into_iter().enumerate() {
        let is_wanted = !is_whole && topic.want[at] != Want::No;
        if mem::replace(&mut topic.is_subscribed[at], is_wanted) != is_wanted {
            let interest = Interest::Exact(space, topic.name.clone());
            step.push((interest, wanted(is_wanted)));
        }
    }
}

fn sort(step: InterestChanges, ended: &mut InterestChanges, begun: &mut InterestChanges) {
    for change in step {
        match change.1 {
            Wanted::No => ended.push(change),
            Wanted::Yes => begun.push(change),
        }
    }
}
