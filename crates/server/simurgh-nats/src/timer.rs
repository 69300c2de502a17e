//! A timer that is set again and again.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::time::Sleep;

/// Rings once it was set, at its time; until it is set again it has rung.
#[derive(Default)]
pub(crate) struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    pub(crate) fn set(&mut self, at: Instant, runtime: &Handle) {
        match &mut self.0 {
            Some(sleep) => sleep.as_mut().reset(at.into()),
            None => {
                let _runtime = runtime.enter();
                self.0 = Some(Box::pin(tokio::time::sleep_until(at.into())));
            }
        }
    }

    /// Whether it rings later than that, or not at all.
    pub(crate) fn is_after(&self, at: Instant) -> bool {
        self.0.as_ref().is_none_or(|sleep| sleep.deadline() > at.into())
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Some(sleep) => sleep.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}
