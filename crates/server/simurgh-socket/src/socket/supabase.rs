//! User sockets with Supabase channels.

use std::sync::Arc;

use simurgh_channel::Kind;
use simurgh_proto::message::{Message, Payload};
use simurgh_proto::serializer::{Frame, Serializer};

use super::UserSocket;
use crate::supabase::{Realtime, Settings};

impl UserSocket {
    /// Topics that match `pattern`, which begins with `realtime:`, are channels as Supabase
    /// Realtime has them (PROTOCOL §11). The user socket takes the binary frames of its clients
    /// then, and tokens from the parameter `apikey` as well.
    ///
    /// # Panics
    /// As [`channel`](Self::channel).
    pub fn supabase(self, pattern: &str, settings: Settings) -> Self {
        let realtime = Arc::new(Realtime::new(settings));
        let joined = Arc::clone(&realtime);
        let mut user_socket = self.channel(pattern, move |ctx, payload| joined.join(ctx, &payload));
        if let Some(last) = user_socket.supabase.last_mut() {
            *last = Some(realtime);
        }
        user_socket
    }

    /// Whether a topic leads to a channel as Supabase has them; `None` if it leads nowhere.
    #[doc(hidden)]
    pub fn is_supabase(&self, topic: &str) -> Option<bool> {
        let Kind::Channels(routes) = &self.channels.kind else { return None };
        let at = routes.iter().position(|route| route.pattern.matches(topic))?;
        Some(self.supabase.get(at)?.is_some())
    }

    /// Whether it speaks as Supabase does, and takes the binary frames of its clients.
    #[doc(hidden)]
    pub fn speaks_supabase(&self) -> bool {
        self.supabase.iter().any(Option::is_some)
    }

    /// Reads a message of a client, which may be a binary frame of Supabase's; none if it is no
    /// message, or such a frame for a channel of another kind, whose members could not read it.
    #[doc(hidden)]
    pub fn decode<'f>(&self, serializer: Serializer, frame: Frame<'f>) -> Option<Message<'f>> {
        let message = serializer.decode_supabase(frame).ok()?;
        let is_user = matches!(message.payload, Payload::User(_));
        (!is_user || self.is_supabase(&message.topic) != Some(false)).then_some(message)
    }

    /// The same at another path.
    pub(crate) fn at(&self, path: &str) -> Self {
        let mut user_socket = self.clone();
        user_socket.path = Self::new(path).path;
        user_socket
    }
}
