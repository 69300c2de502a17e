//! The user of a socket.

use simurgh_channel::SocketState;

/// The user of a socket: the subject of the claims that its token or the application gave it.
#[cfg(feature = "token")]
pub fn user_of(state: &SocketState) -> Option<&str> {
    state.assigns.as_ref()?.downcast_ref::<crate::token::Claims>()?.subject()
}

/// Without tokens no socket has a user.
#[cfg(not(feature = "token"))]
pub fn user_of(_: &SocketState) -> Option<&str> {
    None
}
