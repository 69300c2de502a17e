//! The verified identity of a socket: the claims of its token, or of the application's answer to
//! its connect. All code reads and replaces it here.

use std::any::Any;
use std::sync::Arc;

use simurgh_channel::{Assigns, Identity, Lifetime, ShardContext, SocketState};

/// The claims of a verified token.
#[cfg(feature = "token")]
pub(crate) type OwnClaims = simurgh_token::Claims;
/// Without tokens there are none.
#[cfg(not(feature = "token"))]
#[derive(Debug)]
pub(crate) enum OwnClaims {}

#[cfg(not(feature = "token"))]
impl OwnClaims {
    pub(crate) fn subject(&self) -> Option<&str> {
        match *self {}
    }

    pub(crate) fn find(&self, _: &str) -> Option<&serde_json::Value> {
        match *self {}
    }

    fn get(&self, _: &str) -> Option<&serde_json::Value> {
        match *self {}
    }

    fn issued_at(&self) -> Option<u64> {
        match *self {}
    }
}

/// The assigned value of a socket with hooks, in place of its claims alone.
#[cfg_attr(not(feature = "hooks"), allow(dead_code, reason = "no socket has hooks"))]
#[derive(Clone)]
pub(crate) struct HookedSocket {
    pub(crate) claims: Option<Arc<OwnClaims>>,
    /// The content of its questions.
    pub(crate) asker: Arc<dyn Asker>,
}

/// Asks an application about one socket.
pub(crate) trait Asker: Any + Send + Sync {
    /// Voids the cached answers about a user.
    fn void_grants(&self, user: &str);

    /// The name of the limits that the answer to its connect has chosen.
    fn limits(&self) -> Option<&str>;
}

/// The changes of a connection's grant.
#[derive(Default)]
pub struct Regrant {
    /// Its assigned value.
    pub value: Option<Assigns>,
    /// How long it stays open.
    pub lifetime: Option<Lifetime>,
    /// The name of its limits.
    pub limits: Option<Box<str>>,
}

/// The claims of a socket.
pub(crate) fn claims<'c>(ctx: &'c ShardContext<'_>) -> Option<&'c OwnClaims> {
    claims_of(ctx.assigned()?)
}

/// The claims in a socket's assigned value.
pub(crate) fn claims_of(assigns: &Assigns) -> Option<&OwnClaims> {
    match assigns.downcast_ref::<HookedSocket>() {
        Some(socket) => socket.claims.as_deref(),
        None => assigns.downcast_ref(),
    }
}

fn asker_of(state: &SocketState) -> Option<&dyn Asker> {
    Some(&*state.assigns.as_ref()?.downcast_ref::<HookedSocket>()?.asker)
}

/// The user of a socket: the subject of its claims.
pub fn user_of(state: &SocketState) -> Option<&str> {
    user_in(state.assigns.as_ref()?)
}

/// The user of a socket with this assigned value.
pub fn user_in(assigns: &Assigns) -> Option<&str> {
    claims_of(assigns)?.subject()
}

/// The identity of a socket, by its claims.
pub fn identity_of(state: &SocketState) -> Option<Identity<'_>> {
    Some(identity(claims_of(state.assigns.as_ref()?)?))
}

/// The identity that claims prove.
pub(crate) fn identity(claims: &OwnClaims) -> Identity<'_> {
    Identity {
        user: claims.subject(),
        token_id: claims.get("jti").and_then(serde_json::Value::as_str),
        issued_at: claims.issued_at(),
    }
}

/// Why the client may not join this topic, if its user is blocked there.
pub(crate) fn denial(ctx: &ShardContext<'_>) -> Option<&'static str> {
    ctx.node.denial(&identity(claims(ctx)?), Some(ctx.topic()))
}

/// The name of the limits that a hook has chosen for a socket.
pub fn limits_of(state: &SocketState) -> Option<&str> {
    asker_of(state)?.limits()
}

/// Voids the cached answers about the user of a socket: the next question is sent.
pub fn void_grants(state: &SocketState) {
    if let (Some(user), Some(asker)) = (user_of(state), asker_of(state)) {
        asker.void_grants(user);
    }
}

/// Replaces the claims of a socket.
#[cfg(feature = "token")]
pub(crate) fn assign(ctx: &mut ShardContext<'_>, claims: OwnClaims) {
    if let Some(socket) = ctx.assigns::<HookedSocket>() {
        let socket = HookedSocket { claims: Some(Arc::new(claims)), ..socket.clone() };
        return ctx.assign(socket);
    }
    ctx.assign(claims);
}
