//! Reads presence from code outside of channels.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use simurgh_core::{NodeHandle, PresenceList};
use simurgh_shard::server::Server;

/// Lists the presences of topics, for code outside of channels: tasks, HTTP handlers, other
/// threads. Channels track their clients with
/// [`ShardContext::presence`](crate::ShardContext::presence). A cheap clone, which does not keep
/// the server running.
///
/// ```
/// use simurgh::{
///     ChannelRoute, Endpoint, Join, Outcome, Payload, ShardChannel, ShardContext, UserSocket,
///     json,
/// };
///
/// struct Room;
///
/// impl ShardChannel for Room {
///     fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
///         if let Err(error) = ctx.presence().track("ann", json!({"typing": false})) {
///             eprintln!("{error}");
///         }
///         ctx.presence().push_state();
///     }
/// #   fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
/// #       Outcome::unknown_event()
/// #   }
/// }
///
/// #[derive(serde::Deserialize)]
/// struct Meta { typing: bool }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let rooms = ChannelRoute::on_shard("room:*", |_, _| Join::ok(Room));
/// let user_socket = UserSocket::new("/socket").channel(rooms);
/// let endpoint = Endpoint::builder().socket(user_socket).start_local()?;
/// let presence = endpoint.presence();
/// assert_eq!(presence.count("room:1").await?, 0);
/// let list = presence.list::<Meta>("room:1").await?;
/// assert!(list.values().flatten().all(|meta| !meta.typing));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Presence(pub(crate) Arc<Server>);

/// Why a list is not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PresenceListError {
    /// The shard of the topic has ended: the server drains or has stopped.
    #[error("the server has stopped or is stopping")]
    Ended,
    /// A meta is not of the requested type.
    #[error("a presence's meta has another type than requested: {0}")]
    OtherMeta(#[source] serde_json::Error),
}

impl Presence {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self(server)
    }

    /// The metas of all present clients, by key; a sample of the keys if there are more than
    /// [`PresenceConfig::list_max`](crate::PresenceConfig::list_max).
    ///
    /// # Errors
    /// The server ends, or a meta cannot be parsed as `M`.
    pub async fn list<M: DeserializeOwned>(
        &self,
        topic: &str,
    ) -> Result<BTreeMap<String, Vec<M>>, PresenceListError> {
        #[derive(Deserialize)]
        struct Metas<M> {
            metas: Vec<M>,
        }
        let list = self.ask(topic).await?;
        let all: BTreeMap<String, Metas<M>> =
            serde_json::from_str(&list.json).map_err(PresenceListError::OtherMeta)?;
        Ok(all.into_iter().map(|(key, it)| (key, it.metas)).collect())
    }

    /// How many presences a topic has; one key may have several. Fails if the server ends.
    pub async fn count(&self, topic: &str) -> Result<usize, PresenceListError> {
        Ok(self.ask(topic).await?.entries)
    }

    pub(crate) async fn ask(&self, topic: &str) -> Result<PresenceList, PresenceListError> {
        let (answer, answered) = self.0.answer();
        self.0.list_presences(topic, answer);
        answered.await.map_err(|_| PresenceListError::Ended)
    }
}
