//! Joins and connects that are `async fn`s.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::Value;
use simurgh_channel::{Assigns, Join, ShardContext};
use simurgh_history::Resume;
use simurgh_proto::message::Payload;
use simurgh_proto::topic::subtopic;

use super::adapter::Async;
use super::{Channel, Reject};
use crate::connect::{Connect, ConnectInfo, Transport};
use crate::off_shard::OffShard;

/// The socket and topic of an asynchronous join function. There is no channel yet, so nothing can
/// be pushed: use [`Channel::after_join`] for that.
#[derive(Debug)]
pub struct JoinContext {
    pub(super) topic: Arc<str>,
    socket_id: Option<Box<str>>,
    pub(super) assigns: Option<Assigns>,
    resume: Option<Box<Resume>>,
}

impl JoinContext {
    pub(super) fn of(ctx: &ShardContext<'_>) -> Self {
        Self {
            topic: ctx.topic().into(),
            socket_id: ctx.socket_id().map(Into::into),
            assigns: ctx.assigned().cloned(),
            resume: ctx.resume().cloned().map(Box::new),
        }
    }

    /// The topic of the channel.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The part of the topic after the first colon: `lobby` of `rooms:lobby`, or the whole topic.
    pub fn subtopic(&self) -> &str {
        subtopic(&self.topic)
    }

    /// The socket's id from its connect function.
    pub fn socket_id(&self) -> Option<&str> {
        self.socket_id.as_deref()
    }

    /// The value assigned to the socket when this function began, or since by the function itself,
    /// if it has this type.
    pub fn assigns<T: Any>(&self) -> Option<&T> {
        self.assigns.as_ref()?.downcast_ref()
    }

    /// The value that is kept with the socket.
    #[cfg(feature = "hooks")]
    pub(crate) fn assigned(&self) -> Option<&Assigns> {
        self.assigns.as_ref()
    }

    /// The position up to which the client has received; as
    /// [`ShardContext::resume`](simurgh_channel::OnShard::resume).
    pub fn resume(&self) -> Option<&Resume> {
        self.resume.as_deref()
    }
}

/// The result of an asynchronous join function that accepts the client: a channel, or a channel
/// with the payload of the reply, or a [`Join`].
pub trait IntoJoin {
    /// The answer to the join.
    fn into_join(self) -> Join;
}

impl IntoJoin for Join {
    fn into_join(self) -> Join {
        self
    }
}

impl<C: Channel> IntoJoin for C {
    fn into_join(self) -> Join {
        Join::ok(Async::new(self))
    }
}

impl<C: Channel, R: Into<Payload<'static>>> IntoJoin for (C, R) {
    fn into_join(self) -> Join {
        let (channel, reply) = self;
        Join::ok(Async::new(channel)).reply(reply)
    }
}

pub(crate) fn join<F, J>(
    ctx: &ShardContext<'_>,
    payload: Payload<'_>,
    decide: impl FnOnce(JoinContext, Payload<'static>) -> F,
) -> Join
where
    F: Future<Output = Result<J, Reject>> + Send + 'static,
    J: IntoJoin,
{
    let context = JoinContext::of(ctx);
    let topic = Arc::clone(&context.topic);
    let work = decide(context, payload.into_owned());
    let mut work = OffShard::new(Box::pin(work));
    Join::later(async move {
        let Some(work) = work.get_mut() else { return Join::error(Payload::EMPTY_OBJECT) };
        match work.await {
            Ok(join) => join.into_join(),
            Err(reject) => {
                reject.log(&topic, "join");
                Join::error(reject.response())
            }
        }
    })
}

/// The request of an asynchronous connect function: an owned copy of [`ConnectInfo`].
#[derive(Debug, Clone)]
pub struct ConnectRequest {
    /// All params, decoded as nested forms, path variables included, `vsn` too.
    pub params: Value,
    /// The address of the client; behind trusted proxies the one that they report.
    pub peer: SocketAddr,
    /// Path and query as received.
    pub uri: String,
    /// The `user-agent` header.
    pub user_agent: Option<String>,
    /// Headers whose names begin with `x-`.
    pub x_headers: HashMap<String, String>,
    /// `traceparent` and `tracestate`.
    pub trace_headers: HashMap<String, String>,
    /// Headers whose names begin with `sec-websocket-`.
    pub websocket_headers: HashMap<String, String>,
    /// The token sent as a subprotocol, where
    /// [`UserSocket::auth_token`](crate::UserSocket::auth_token) is on.
    pub auth_token: Option<String>,
    /// The transport of the socket.
    pub transport: Transport,
}

impl ConnectRequest {
    fn of(info: &ConnectInfo<'_>) -> Self {
        Self {
            params: info.params(),
            peer: info.peer(),
            uri: info.uri().to_owned(),
            user_agent: info.user_agent().map(str::to_owned),
            x_headers: info.x_headers(),
            trace_headers: info.trace_headers(),
            websocket_headers: info.websocket_headers(),
            auth_token: info.auth_token().map(str::to_owned),
            transport: info.transport(),
        }
    }

    /// One param, if it exists and is a string.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.get(name)?.as_str()
    }

    /// The token of the client: from the subprotocols, else from the param `token`.
    pub fn token(&self) -> Option<&str> {
        self.auth_token.as_deref().or_else(|| self.param("token"))
    }
}

pub(crate) fn connect<F>(
    info: &ConnectInfo<'_>,
    decide: impl FnOnce(ConnectRequest) -> F,
) -> Connect
where
    F: Future<Output = Result<Connect, Reject>> + Send + 'static,
{
    let mut work = OffShard::new(Box::pin(decide(ConnectRequest::of(info))));
    Connect::later(async move {
        let Some(work) = work.get_mut() else { return Connect::refuse(500) };
        match work.await {
            Ok(connect) => connect,
            Err(reject) => {
                let status = if reject.log("", "connect") { 500 } else { 403 };
                Connect::refuse_with(status, reject.reason())
            }
        }
    })
}
