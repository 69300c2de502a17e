//! Counts requests to the server API.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The verb, the name of the token, the status. The settings name the tokens, so there are few.
type Labels = (&'static str, Box<str>, u16);

#[derive(Debug, Default)]
pub struct ApiRequests(Mutex<BTreeMap<Labels, u64>>);

impl ApiRequests {
    /// The token is empty if the request had none that is known.
    pub fn count(&self, verb: &'static str, token: &str, status: u16) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((verb, token.into(), status)).or_default() += 1;
    }

    pub fn counts(&self) -> Vec<(Labels, u64)> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().map(|(labels, count)| (labels.clone(), *count)).collect()
    }
}
