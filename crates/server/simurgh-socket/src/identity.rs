//! The verified identity of a socket: the claims of its token, or of the application's answer to its
//! connect. There is one place to look it up and one to change it, whoever gave it.

use simurgh_channel::{Assigns, ShardContext, SocketState};

/// The claims of a verified token.
#[cfg(feature = "token")]
pub(crate) type OwnClaims = crate::token::Claims;
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
}

/// The claims of a socket.
pub(crate) fn claims<'c>(ctx: &'c ShardContext<'_>) -> Option<&'c OwnClaims> {
    claims_of(ctx.assigned()?)
}

/// The claims in what is kept with a socket.
pub(crate) fn claims_of(assigns: &Assigns) -> Option<&OwnClaims> {
    #[cfg(feature = "hooks")]
    if let Some(socket) = assigns.downcast_ref::<crate::hooks::HookedSocket>() {
        return socket.claims.as_deref();
    }
    assigns.downcast_ref()
}

/// The user of a socket: the subject of its claims.
pub fn user_of(state: &SocketState) -> Option<&str> {
    claims_of(state.assigns.as_ref()?)?.subject()
}

/// Has the application be asked again about the user of a socket, in place of its cached answers.
pub fn void_grants(state: &SocketState) {
    #[cfg(feature = "hooks")]
    if let Some(assigns) = &state.assigns
        && let Some(socket) = assigns.downcast_ref::<crate::hooks::HookedSocket>()
    {
        socket.void_grants();
    }
    #[cfg(not(feature = "hooks"))]
    let _ = state;
}

/// Replaces the claims of a socket.
#[cfg(feature = "token")]
pub(crate) fn assign(ctx: &mut ShardContext<'_>, claims: OwnClaims) {
    #[cfg(feature = "hooks")]
    if let Some(socket) = ctx.assigns::<crate::hooks::HookedSocket>() {
        let socket = socket.with_claims(claims);
        return ctx.assign(socket);
    }
    ctx.assign(claims);
}
