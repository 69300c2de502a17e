//! Counts of messages received for topics without members here, by bucket.

use crate::subject::{BUCKETS, Bucket};
use simurgh_data::prelude::*;

const WORST: usize = 10;

/// The counters of buckets are allocated with the first message.
#[derive(Debug, Default)]
pub(super) struct Unwanted {
    all: u64,
    by_bucket: Option<Box<[u64]>>,
}

impl Unwanted {
    pub(super) fn count(&mut self, bucket: Bucket) {
        self.all += 1;
        let by_bucket = self.by_bucket.get_or_insert_with(|| vec![0; BUCKETS].into());
        if let Some(count) = by_bucket.get_mut(bucket.number()) {
            *count += 1;
        }
    }

    pub(super) const fn all(&self) -> u64 {
        self.all
    }

    pub(super) fn worst(&self) -> Vec<(Bucket, u64)> {
        let counts = self.by_bucket.as_deref().unwrap_or_default();
        let mut worst: Vec<(Bucket, u64)> = core::iter::zip(0.., counts)
            .filter(|(_, count)| **count > 0)
            .map(|(at, count)| (Bucket::new(at), *count))
            .collect();
        worst.sort_by_key(|(bucket, count)| (u64::MAX - count, *bucket));
        worst.truncate(WORST);
        worst
    }
}
