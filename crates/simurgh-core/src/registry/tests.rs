//! The registry against what it promises.

use super::*;

/// Deliveries of which nothing is ever under way, unless a test says so.
#[derive(Default)]
pub(super) struct Nothing {
    pub(super) is_busy: bool,
}

impl Deliveries for Nothing {
    fn head(&self) -> u32 {
        0
    }

    fn is_idle(&self) -> bool {
        !self.is_busy
    }

    fn shrink(&mut self) -> bool {
        false
    }
}
