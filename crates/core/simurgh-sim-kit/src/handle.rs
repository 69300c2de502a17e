//! Handles of channels of any type.

use std::fmt;
use std::sync::Arc;

use simurgh_core::{Channel, ChannelHandle};

use crate::payload;

/// Broadcasts by the handle of a channel.
#[derive(Clone)]
pub struct Handle(Arc<dyn Fn(bool, u32) + Send + Sync>);

impl Handle {
    /// Wraps the handle of a channel.
    pub fn new<C: Channel>(handle: ChannelHandle<C>) -> Self {
        Self(Arc::new(move |is_for_others, id| {
            let payload = payload::make(id, 0, 0, false);
            // Its channel may have ended.
            let _ = match is_for_others {
                true => handle.broadcast_from("b", payload),
                false => handle.broadcast("b", payload),
            };
        }))
    }

    /// Broadcasts the payload of a number.
    pub fn broadcast(&self, is_for_others: bool, id: u32) {
        (self.0)(is_for_others, id);
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle")
    }
}
