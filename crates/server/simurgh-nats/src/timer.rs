//! A timer that is set repeatedly.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::time::Sleep;

/// Ready from its time on until it is set again; never before it was set.
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
