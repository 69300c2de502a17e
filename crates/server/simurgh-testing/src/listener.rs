//! The test's own socket, which receives broadcasts.

use serde_json::Value;
use simurgh::driver::Error as DriverError;
use simurgh::{BroadcastError, Channel, Context, Join, Outcome, UserSocket};
use simurgh_proto::message::Payload;

use crate::check::report;
use crate::fail;
use crate::state::Shared;

const LISTEN_AT: &str = "/simurgh/testing/listener";

pub(crate) fn user_socket() -> UserSocket {
    UserSocket::new(LISTEN_AT).channels_max(u16::MAX).channel("*", |_, _| Join::ok(Listener))
}

/// The test's own member of a topic. It intercepts nothing, so broadcasts arrive unchanged.
struct Listener;

impl Channel for Listener {
    /// Sends a broadcast to all members except the test.
    fn handle_in(&mut self, ctx: &mut Context<'_>, event: &str, payload: Payload<'_>) -> Outcome {
        ctx.broadcast_from(event, payload.into_owned());
        Outcome::NoReply
    }
}

/// Subscribes the test to a topic; returns the index of the mailbox.
#[track_caller]
pub(crate) fn subscribe(shared: &Shared, topic: &str) -> usize {
    let known = shared.lock().listener;
    let at = match known {
        Some(at) => at,
        None => match shared.ask(|driver| driver.connect(LISTEN_AT, Value::Null)) {
            Ok(socket) => {
                let mut state = shared.lock();
                let at = state.opened(socket, true);
                state.listener = Some(at);
                at
            }
            Err(error) => fail(&format!("the test cannot subscribe: {error}")),
        },
    };
    let socket = shared.lock().mailbox(at).map(|mailbox| mailbox.socket);
    let is_new = !shared.lock().topics.contains(topic);
    if let Some(socket) = socket.filter(|_| is_new) {
        let joined = shared.ask(|driver| {
            let join = driver.join(socket, topic, Payload::EMPTY_OBJECT)?;
            driver.reply(join)
        });
        match joined {
            Ok(reply) if *reply.status == *"ok" => {}
            Ok(reply) => fail(&report::not_joined(topic, &reply.status, &reply.response)),
            Err(error) => fail(&format!("the test cannot subscribe: {error}")),
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
    match sent {
        Ok(Ok(())) => {}
        Ok(Err(error)) => fail(&error.to_string()),
        Err(error) => fail(&error.to_string()),
    }
}

/// Broadcasts to all members of a topic except the test.
#[track_caller]
pub(crate) fn broadcast_from(shared: &Shared, topic: &str, event: &str, payload: Payload<'static>) {
    let listener = {
        let state = shared.lock();
        let at = state.listener.filter(|_| state.topics.contains(topic));
        at.and_then(|at| Some(state.mailbox(at)?.socket))
    };
    let Some(listener) = listener else { return broadcast(shared, topic, event, payload) };
    let sent = shared.ask(|driver| driver.push(listener, topic, event, payload.clone()));
    if let Err(error) = sent {
        fail(&error.to_string());
    }
}
