//! User sockets with Supabase channels.

use std::sync::Arc;

use simurgh_proto::message::{Message, Payload};
use simurgh_proto::serializer::{Frame, Serializer};

use super::UserSocket;
use crate::supabase::{Realtime, Settings};

impl UserSocket {
    /// Topics that match `pattern`, which begins with `realtime:`, are Supabase channels (PROTOCOL
    /// §11). The user socket then accepts the binary frames of Supabase's clients, and tokens from
    /// the parameter `apikey`.
    ///
    /// # Panics
    /// As [`channel`](Self::channel).
    pub fn supabase(self, pattern: &str, settings: Settings) -> Self {
        let realtime = Arc::new(Realtime::new(settings));
        let joined = Arc::clone(&realtime);
        self.channel(ChannelRoute::on_shard(pattern, move |ctx, payload| {
            joined.join(ctx, &payload)
        }))
        .last(|_, own| own.supabase = Some(realtime))
    }

    /// Whether a topic has a Supabase channel; `None` if it has no channel.
    #[doc(hidden)]
    pub fn is_supabase(&self, topic: &str) -> Option<bool> {
        Some(self.own_of(topic)?.supabase.is_some())
    }

    /// Whether it has Supabase channels, and accepts the binary frames of their clients.
    #[doc(hidden)]
    pub fn speaks_supabase(&self) -> bool {
        self.own.iter().any(|own| own.supabase.is_some())
    }

    /// Decodes a client's message, which may be a Supabase binary frame; `None` if it is malformed,
    /// or such a frame for another kind of channel, whose members could not decode it.
    #[doc(hidden)]
    pub fn decode<'f>(&self, serializer: Serializer, frame: Frame<'f>) -> Option<Message<'f>> {
        let message = serializer.decode_supabase(frame).ok()?;
        let is_user = matches!(message.payload, Payload::User(_));
        (!is_user || self.is_supabase(&message.topic) != Some(false)).then_some(message)
    }

    /// A copy at another path.
    pub(crate) fn at(&self, path: &str) -> Self {
        let mut user_socket = self.clone();
        user_socket.path = Self::new(path).path;
        user_socket
    }
}
