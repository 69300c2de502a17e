//! Decides which clients may connect, and what is stored about them.

use serde::Serialize;
use serde_json::Value;
use simurgh::{Connect, ConnectInfo};

/// Stored at a socket's connect, for all its channels: the answer to `whoami`.
#[derive(Serialize)]
pub(crate) struct Visitor {
    user_id: Option<String>,
    auth: Option<String>,
    params: Value,
    transport: &'static str,
}

/// `reject=true` and `ratelimit=true` request a refusal; `user_id=N` gives the socket an id, by
/// which it can be disconnected from anywhere.
pub(crate) fn connect(info: &ConnectInfo<'_>) -> Connect {
    let asks = |param| info.param(param).as_deref() == Some("true");
    if asks("reject") {
        return Connect::refuse(403);
    }
    if asks("ratelimit") {
        return Connect::refuse_with(429, "too many connections");
    }
    let visitor = Visitor {
        user_id: info.param("user_id"),
        auth: info.auth_token().map(str::to_owned),
        params: info.params(),
        transport: info.transport().name(),
    };
    let connect = match &visitor.user_id {
        Some(user_id) => Connect::ok().id(format!("user_sockets:{user_id}")),
        None => Connect::ok(),
    };
    connect.assign(visitor)
}
