//! A request for a session of this node, which its token names.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use simurgh_core::Received;
use simurgh_proto::serializer::{Frame, Serializer};
use simurgh_shard::mail::Mail;
use simurgh_shard::mail::poll::{Line, PollAnswer, PollCommand, Post};
use simurgh_shard::shard::{Long, receive};
use simurgh_socket::UserSocket;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::frames::{PostFrame, frames};
use super::token::Claim;
use super::waiting::{What, token_of};
use super::{LongPolls, Reply, Waiting};

pub(super) struct SessionRequest<'a> {
    pub(super) polls: &'a Arc<LongPolls>,
    pub(super) window: Duration,
    pub(super) claim: Claim,
    pub(super) token: String,
}

pub(super) enum PollOutcome {
    Body(Vec<u8>),
    Waits(Box<Waiting>),
    Gone,
}

impl SessionRequest<'_> {
    fn user_socket(&self) -> Option<&UserSocket> {
        self.polls.server.user_sockets.get(usize::from(self.claim.user_socket))
    }

    pub(super) async fn poll(self, is_elsewhere: bool) -> PollOutcome {
        let Self { polls, window, claim, token } = self;
        let Claim { shard, key, nonce, heard, .. } = claim;
        let (answer, answered) = oneshot::channel();
        let poll = PollCommand::Poll { key, nonce, heard, is_elsewhere, answer };
        polls.server.post_to(shard, Mail::LongPoll(Box::new(poll)));
        match answered.await {
            Ok(PollAnswer::Messages(batch)) => {
                let token = token_of(polls, &claim, token, batch.number);
                PollOutcome::Body(Reply::poll(200, &token, &batch.messages).body())
            }
            Ok(PollAnswer::Waits(heard)) => {
                let what = What::Delivery(heard);
                PollOutcome::Waits(Box::new(Waiting::new(polls, what, claim, token, window)))
            }
            // After this answer clients of all versions start again and rejoin.
            Ok(PollAnswer::Lost) => PollOutcome::Body(Reply::status(500).body()),
            Ok(PollAnswer::Gone) | Err(_) => PollOutcome::Gone,
        }
    }

    /// Serves a POST; returns the status of its answer, or `None` if its body is malformed.
    pub(super) async fn post(&self, is_many: bool, body: Bytes) -> Option<u16> {
        let mut lines = Vec::new();
        let mut is_wrong = false;
        for frame in frames(is_many, body) {
            match frame {
                Some(frame) => lines.push(self.line(frame).await),
                None => {
                    is_wrong = true;
                    break;
                }
            }
        }
        let Claim { shard, key, nonce, .. } = self.claim;
        let bytes = lines.iter().map(weight).sum();
        let (answer, handled) = oneshot::channel();
        let post = Post { lines: lines.into_iter(), bytes, answer };
        let command = PollCommand::Post { key, nonce, post };
        self.polls.server.post_to(shard, Mail::LongPoll(Box::new(command)));
        match timeout(self.window, handled).await {
            Ok(Ok(200)) if is_wrong => None,
            Ok(Ok(status)) => Some(status),
            Ok(Err(_)) => Some(410),
            Err(_) => Some(408),
        }
    }

    /// Decodes one message; a long one on another thread, so that it blocks no other request.
    async fn line(&self, frame: PostFrame) -> Line {
        let Some(user_socket) = self.user_socket() else { return Line::Malformed };
        let limits = user_socket.parts().limits.unwrap_or(self.polls.server.config.limits);
        let most = limits.message_bytes_max.min(self.polls.server.limits.broadcast_bytes_max());
        let Some(serializer) = self.claim.wire.serializer() else { return Line::Malformed };
        let received = match frame {
            PostFrame::Text(text) if text.len() > most => return Line::TooBig,
            PostFrame::Binary(bytes) if bytes.len() > most => return Line::TooBig,
            PostFrame::Text(text) if text.len() > user_socket.text_bytes_max() => {
                self.read_long(serializer, Long::Text(text)).await
            }
            PostFrame::Binary(bytes) if user_socket.speaks_supabase() => {
                self.read_long(serializer, Long::Binary(bytes)).await
            }
            PostFrame::Text(text) => serializer.decode_owned(text).ok().map(Received::from),
            PostFrame::Binary(bytes) => {
                let message = serializer.decode(Frame::Binary(&bytes)).ok();
                message.map(|message| Received::from(message.into_owned()))
            }
            PostFrame::Nonsense => None,
        };
        received.map_or(Line::Malformed, |received| Line::Message(Box::new(received)))
    }

    async fn read_long(&self, serializer: Serializer, long: Long) -> Option<Received<'static>> {
        let (server, at) = (Arc::clone(&self.polls.server), usize::from(self.claim.user_socket));
        // As many at once as there are cores: others wait here without a thread.
        let _permit = self.polls.server.readers.acquire().await;
        let read = move || receive(server.user_sockets.get(at), serializer, long);
        tokio::task::spawn_blocking(read).await.ok().flatten()
    }
}

fn weight(line: &Line) -> usize {
    match line {
        Line::Message(received) => size_of::<Received<'_>>() + received.message.payload.len(),
        Line::Malformed | Line::TooBig => 0,
    }
}
