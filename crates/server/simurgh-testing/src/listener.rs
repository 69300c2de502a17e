//! The test's own socket, which receives broadcasts.

use serde_json::Value;
use simurgh::driver::DriverError;
use simurgh::{
    BroadcastError, ChannelRoute, Join, Outcome, ShardChannel, ShardContext, UserSocket,
};
use simurgh_proto::message::Payload;

use crate::check::report;
use crate::state::Shared;
use crate::{fail, or_fail};

const LISTEN_AT: &str = "/simurgh/testing/listener";

pub(crate) fn user_socket() -> UserSocket {
    UserSocket::new(LISTEN_AT)
        .channels_max(u16::MAX)
        .channel(ChannelRoute::on_shard("*", |_, _| Join::ok(Listener)))
}

/// The test's own member of a topic. It intercepts nothing, so broadcasts arrive unchanged.
struct Listener;

impl ShardChannel for Listener {
    /// Sends a broadcast to all members except the test.
    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        ctx.broadcast_from(event, payload.into_owned());
        Outcome::NoReply
    }
}

/// Subscribes the test to a topic; returns the index of the mailbox.
#[track_caller]
pub(crate) fn subscribe(shared: &Shared, topic: &str) -> usize {
    let failed = |error| format!("the test cannot subscribe: {error}");
    let known = shared.lock().listener;
    let (at, socket) = match known {
        Some(listener) => listener,
        None => {
            let opened = shared.ask(|driver| driver.connect(LISTEN_AT, Value::Null));
            let socket = or_fail(opened.map_err(failed));
            let mut state = shared.lock();
            let listener = (state.opened(socket, true), socket);
            state.listener = Some(listener);
            listener
        }
    };
    if !shared.lock().topics.contains(topic) {
        let joined = shared.ask(|driver| {
            let join = driver.join(socket, topic, Payload::EMPTY_OBJECT)?;
            driver.reply(join)
        });
        let reply = or_fail(joined.map_err(failed));
        if *reply.status != *"ok" {
            fail(&report::not_joined(topic, &reply.status, &reply.response));
        }
        shared.lock().topics.insert(topic.into());
    }
    at
}

#[track_caller]
pub(crate) fn broadcast(shared: &Shared, topic: &str, event: &str, payload: Payload<'static>) {
    let sent = shared.ask(|_| match shared.endpoint.broadcast(topic, event, payload.clone()) {
        Err(BroadcastError::Congested) => Err(DriverError::Congested),
        other => Ok(other),
    });
    or_fail(or_fail(sent));
}

/// Broadcasts to all members of a topic except the test.
#[track_caller]
pub(crate) fn broadcast_from(shared: &Shared, topic: &str, event: &str, payload: Payload<'static>) {
    let state = shared.lock();
    let listener = state.listener.filter(|_| state.topics.contains(topic));
    drop(state);
    let Some((_, socket)) = listener else { return broadcast(shared, topic, event, payload) };
    or_fail(shared.ask(|driver| driver.push(socket, topic, event, payload.clone())));
}
