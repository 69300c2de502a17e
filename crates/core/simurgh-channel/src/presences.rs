//! A channel's presences, as its callbacks use them.

use simurgh_presence::Meta;
use simurgh_proto::message::Payload;

use crate::context::{Context, Effect, Effects, Scope};
use crate::node_handle::NodeHandle;
use crate::presence::{PresenceCall, PresenceError, PresenceList};
use simurgh_data::prelude::*;

/// The presences of a channel, and of all members of its topic:
/// [`Context::presence`].
///
/// A presence is a meta, a JSON object, under a key, such as the user's id; a key may have several,
/// of one user's several devices. Members receive `presence_diff` when presences join and leave,
/// and have the list pushed as `presence_state` on request (PROTOCOL §10); the official client's
/// `Presence` reads both. A channel's presences end with it, for whatever reason it ends.
#[derive(derive_more::Debug)]
#[debug("Presences {{ topic: {topic:?}, .. }}")]
pub struct Presences<'c> {
    node: &'c dyn NodeHandle,
    topic: &'c str,
    effects: &'c mut dyn Effects,
}

impl<S: Scope> Context<S> {
    /// The presences of this channel.
    ///
    /// ```
    /// # use simurgh_channel::{ShardChannel, ShardContext, Outcome};
    /// # use simurgh_proto::message::Payload;
    /// struct Room { user: String }
    ///
    /// impl ShardChannel for Room {
    ///     fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
    ///         let meta = Payload::from_json(r#"{"typing":false}"#);
    ///         if let Err(error) = ctx.presence().track(&self.user, meta) {
    ///             ctx.push("refused", Payload::from_json(format!("{{\"reason\":\"{error}\"}}")));
    ///         }
    ///         ctx.presence().push_state();
    ///     }
    /// #   fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
    /// #       Outcome::unknown_event()
    /// #   }
    /// }
    /// ```
    pub fn presence(&mut self) -> Presences<'_> {
        let (node, topic, effects) = self.0.parts();
        Presences { node, topic, effects }
    }
}

impl Presences<'_> {
    /// Tracks this channel under a key. A second presence under the same key is refused, and so is
    /// one more than a channel may have; the log and the counter `errors_presence_refused` show it.
    ///
    /// # Errors
    /// The key or the meta is too long, or the meta is not a JSON object.
    pub fn track(
        &mut self,
        key: &str,
        meta: impl Into<Payload<'static>>,
    ) -> Result<(), PresenceError> {
        let meta = self.meta(key, meta.into())?;
        self.call(PresenceCall::Track(key.into(), meta, None));
        Ok(())
    }

    /// As [`track`](Self::track), with data beside the metas of the key, such as a user's database
    /// record: `{key: {"metas": […], …extra}}`, in lists and in diffs, until
    /// the key's last presence has left. Phoenix asks its `fetch/2` for that; here it is fetched
    /// before, in an asynchronous join for example. Another one for the same key replaces it;
    /// members who know the key get it with its next join.
    ///
    /// ```
    /// # use simurgh_channel::{ShardContext, PresenceError};
    /// # use simurgh_proto::message::Payload;
    /// fn enters(ctx: &mut ShardContext<'_>) -> Result<(), PresenceError> {
    ///     let (meta, user) = (r#"{"device":"phone"}"#, r#"{"user":{"name":"Zoë"}}"#);
    ///     ctx.presence().track_with("7", Payload::from_json(meta), Payload::from_json(user))
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`track`](Self::track), of the meta and the extra data.
    pub fn track_with(
        &mut self,
        key: &str,
        meta: impl Into<Payload<'static>>,
        extra: impl Into<Payload<'static>>,
    ) -> Result<(), PresenceError> {
        let meta = self.meta(key, meta.into())?;
        let extra = self.node.presence_config().extra(&extra.into())?;
        self.call(PresenceCall::Track(key.into(), meta, Some(extra)));
        Ok(())
    }

    /// Replaces the meta of one of this channel's presences; without one under this key it is
    /// refused as in [`track`](Self::track).
    ///
    /// # Errors
    /// As [`track`](Self::track).
    pub fn update(
        &mut self,
        key: &str,
        meta: impl Into<Payload<'static>>,
    ) -> Result<(), PresenceError> {
        let meta = self.meta(key, meta.into())?;
        self.call(PresenceCall::Update(key.into(), meta));
        Ok(())
    }

    /// Stops tracking this channel under this key.
    pub fn untrack(&mut self, key: &str) {
        self.call(PresenceCall::Untrack(key.into()));
    }

    /// Has the list of all presences pushed to this member as `presence_state`, behind all diffs it
    /// was sent before. If there are more than [`PresenceConfig::list_max`] the list is empty, and
    /// `presence_summary` follows: `{"count": entries, "keys": n, "sample": {key: {"metas":
    /// […]}}}`.
    ///
    /// [`PresenceConfig::list_max`]: crate::PresenceConfig::list_max
    pub fn push_state(&mut self) {
        self.call(PresenceCall::PushState);
    }

    /// Requests the list of presences; `callback` runs on the topic's home and must not block.
    pub fn list(&self, callback: impl FnOnce(PresenceList) + Send + 'static) {
        self.node.list_presences(self.topic, Box::new(callback));
    }

    fn meta(&self, key: &str, meta: Payload<'static>) -> Result<Meta, PresenceError> {
        let config = self.node.presence_config();
        config.check_key(key)?;
        config.meta(&meta)
    }

    fn call(&mut self, call: PresenceCall) {
        self.effects.add(Effect::Presence(call));
    }
}
