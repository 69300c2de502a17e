//! Handles of channels of any type.

use std::sync::Arc;

use simurgh_core::{ChannelHandle, ShardChannel};

use crate::kit::payload;

/// Broadcasts the payload of a number by the handle of a channel; to others only, if so.
pub(crate) type Handle = Arc<dyn Fn(bool, u32) + Send + Sync>;

/// Wraps the handle of a channel.
pub(crate) fn wrap<C: ShardChannel>(handle: ChannelHandle<C>) -> Handle {
    Arc::new(move |is_for_others, id| {
        let payload = payload::make(id, 0, 0, false);
        // Its channel may have ended.
        let _ = match is_for_others {
            true => handle.broadcast_from("b", payload),
            false => handle.broadcast("b", payload),
        };
    })
}
