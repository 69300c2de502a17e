//! Requests that reach a node without their session are forwarded to the session's node.
//!
//! ```text
//! call     u8 0 poll, 1 POST of one frame, 2 POST of many; u16 length, token; then the body
//! answer   status 200: the body of the answer
//!          400: the body is malformed   410: the session does not exist
//! ```
//! An answer may be lost between nodes. So a forwarded session counts its answers, and the next
//! poll shows that one is missing: then its client starts again, as after a broken connection.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use serde::Deserialize;
use simurgh_cluster::NodeId;
use simurgh_shard::cluster_inbox::{Calling, Service};
use simurgh_shard::server::Server;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::LongPolls;
use super::Reply;
use super::session_request::{PollOutcome, SessionRequest};

const POLL: u8 = 0;
const POST_ONE: u8 = 1;
const POST_MANY: u8 = 2;

pub(super) fn poll(server: &Server, node: NodeId, token: &str) -> Option<Calling> {
    call(server, node, POLL, token, &[])
}

/// Forwards a POST; returns the status of its answer, or `None` if its body is malformed.
pub(super) async fn post(
    server: &Server,
    node: NodeId,
    token: &str,
    is_many: bool,
    body: &[u8],
    window: Duration,
) -> Option<u16> {
    #[derive(Deserialize)]
    struct Status {
        status: u16,
    }

    let what = if is_many { POST_MANY } else { POST_ONE };
    let Some(calling) = call(server, node, what, token, body) else { return Some(410) };
    match timeout(window, calling).await {
        Ok(Some(answer)) if answer.status == 400 => None,
        Ok(Some(answer)) if answer.status == 200 => {
            let status = serde_json::from_slice::<Status>(&answer.body);
            Some(status.map_or(500, |it| it.status))
        }
        Ok(Some(_)) => Some(410),
        // It may have been handled: clients assume the same after a crash.
        Ok(None) | Err(_) => Some(408),
    }
}

fn call(server: &Server, node: NodeId, what: u8, token: &str, body: &[u8]) -> Option<Calling> {
    let inbox = server.cluster.as_ref()?;
    let length = u16::try_from(token.len()).ok()?;
    let mut bytes = Vec::with_capacity(3 + token.len() + body.len());
    bytes.push(what);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(token.as_bytes());
    bytes.extend_from_slice(body);
    Some(inbox.call(node, Service::LongPoll, bytes))
}

/// Runs until the other node stops waiting: `left`. A malformed request is answered as if its
/// session did not exist.
pub(crate) async fn serve(
    polls: &Arc<LongPolls>,
    bytes: &[u8],
    left: oneshot::Receiver<()>,
) -> (u16, Vec<u8>) {
    const GONE: (u16, Vec<u8>) = (410, Vec::new());
    let Some((what, token, body)) = read(bytes) else { return GONE };
    let claim = polls.signer.verify(token).filter(|it| it.node == polls.server.id);
    let Some(claim) = claim else { return GONE };
    let user_socket = polls.server.user_sockets.get(usize::from(claim.user_socket));
    let Some(longpoll) = user_socket.and_then(|user_socket| user_socket.parts().longpoll) else {
        return GONE;
    };
    let (window, token) = (longpoll.window_time(), token.to_owned());
    let session_request = SessionRequest { polls, window, claim, token };
    if what != POLL {
        let body = Bytes::copy_from_slice(body);
        return match session_request.post(what == POST_MANY, body).await {
            Some(status) => (200, Reply::status(status).body()),
            None => (400, Vec::new()),
        };
    }
    match session_request.poll(true).await {
        PollOutcome::Body(body) => (200, body),
        PollOutcome::Waits(mut waiting) => {
            // Nothing is ever sent; the channel only closes.
            let left = pin!(async { drop(left.await) });
            (200, waiting.answer(left).await)
        }
        PollOutcome::Gone => GONE,
    }
}

fn read(bytes: &[u8]) -> Option<(u8, &str, &[u8])> {
    let (what, rest) = bytes.split_first()?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let (token, body) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    let is_known = [POLL, POST_ONE, POST_MANY].contains(what);
    is_known.then_some((*what, std::str::from_utf8(token).ok()?, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_forwarded_request_is_rejected() {
        let whole = [&[POST_MANY, 3, 0][..], b"tok", b"[]"].concat();
        assert_eq!(read(&whole), Some((POST_MANY, "tok", &b"[]"[..])));
        for cut in 0..6 {
            assert_eq!(read(&whole[..cut]), None, "{cut}");
        }
        let not_text = [POLL, 1, 0, 0xff];
        let unknown = [3, 0, 0];
        assert_eq!((read(&not_text), read(&unknown)), (None, None));
    }
}
