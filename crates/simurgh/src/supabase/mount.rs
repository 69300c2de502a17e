//! Mounts with Supabase channels.

use std::sync::Arc;

use simurgh_core::Kind;

use super::{Realtime, Settings};
use crate::socket::Mount;

impl Mount {
    /// Topics that match `pattern`, which begins with `realtime:`, are channels as Supabase
    /// Realtime has them (PROTOCOL §11). The mount takes the binary frames of its clients then, and
    /// tokens from the parameter `apikey` as well.
    ///
    /// # Panics
    /// As [`channel`](Self::channel).
    pub fn supabase(self, pattern: &str, settings: Settings) -> Self {
        let realtime = Arc::new(Realtime::new(settings));
        let joined = Arc::clone(&realtime);
        let mut mount = self.channel(pattern, move |ctx, payload| joined.join(ctx, &payload));
        if let Some(last) = mount.supabase.last_mut() {
            *last = Some(realtime);
        }
        mount
    }

    /// Whether a topic leads to a channel as Supabase has them; `None` if it leads nowhere.
    pub(crate) fn is_supabase(&self, topic: &str) -> Option<bool> {
        let Kind::Channels(routes) = &self.channels.kind else { return None };
        let at = routes.iter().position(|route| route.pattern.matches(topic))?;
        Some(self.supabase.get(at)?.is_some())
    }

    /// Whether it speaks as Supabase does, and takes the binary frames of its clients.
    pub(crate) fn speaks_supabase(&self) -> bool {
        self.supabase.iter().any(Option::is_some)
    }

    /// The same at another path.
    pub(crate) fn at(&self, path: &str) -> Self {
        let mut mount = self.clone();
        mount.path = Self::new(path).path;
        mount
    }
}
