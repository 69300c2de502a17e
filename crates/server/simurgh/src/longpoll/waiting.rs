//! A poll without messages yet, for a session here or on another node.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use simurgh_cluster::Answer;
use simurgh_shard::cluster_inbox::Calling;
use simurgh_shard::mail::poll::Delivery;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;
use tokio::time::sleep;

use super::token::Claim;
use super::{LongPolls, Reply};

/// How much longer than a poll's window to wait for another node.
const GRACE: Duration = Duration::from_secs(2);

/// The token for the answer with this number: the poll's own, unless answers are counted.
pub(super) fn token_of(polls: &LongPolls, claim: &Claim, token: String, number: u32) -> String {
    if number == claim.heard {
        return token;
    }
    polls.signer.sign(&Claim { heard: number, ..*claim })
}

pub(crate) struct Waiting {
    polls: Arc<LongPolls>,
    what: What,
    claim: Claim,
    token: String,
    window: Duration,
}

pub(super) enum What {
    Delivery(oneshot::Receiver<Delivery>),
    Elsewhere(Calling),
}

impl Waiting {
    pub(super) fn new(
        polls: &Arc<LongPolls>,
        what: What,
        claim: Claim,
        token: String,
        window: Duration,
    ) -> Self {
        let grace = if matches!(what, What::Elsewhere(_)) { GRACE } else { Duration::ZERO };
        let window = window + grace;
        polls.waiting.fetch_add(1, Relaxed);
        Self { polls: Arc::clone(polls), what, claim, token, window }
    }

    /// Waits for the answer: messages, an empty one at the end of the window, or the end of the
    /// client (`left`). Then nothing is taken from the session.
    pub(crate) async fn answer(
        &mut self,
        mut left: Pin<&mut (dyn Future<Output = ()> + Send)>,
    ) -> Vec<u8> {
        let mut window = pin!(sleep(self.window));
        // A single future without nested ones, because each waiting poll holds it.
        let ready = poll_fn(|context| {
            if let Poll::Ready(ready) = self.what.poll_ready(context) {
                return Poll::Ready(Some(ready));
            }
            let is_over = window.as_mut().poll(context).is_ready();
            let has_left = left.as_mut().poll(context).is_ready();
            if is_over || has_left { Poll::Ready(None) } else { Poll::Pending }
        });
        let ready = ready.await;
        self.body(ready)
    }

    fn body(&mut self, ready: Option<Ready>) -> Vec<u8> {
        let token = std::mem::take(&mut self.token);
        let ready = match (ready, &mut self.what) {
            (Some(ready), _) => Some(ready),
            (None, What::Delivery(heard)) => {
                // From here on the shard keeps its messages; those it had already sent are taken.
                heard.close();
                heard.try_recv().ok().map(|it| Ready::Delivery(Ok(it)))
            }
            (None, What::Elsewhere(_)) => Some(Ready::Elsewhere(None)),
        };
        match ready {
            Some(Ready::Delivery(Ok(Delivery::Messages(batch)))) => {
                let token = token_of(&self.polls, &self.claim, token, batch.number);
                Reply::poll(200, &token, &batch.messages).body()
            }
            Some(Ready::Delivery(Ok(Delivery::Newer))) | None => {
                Reply::poll(204, &token, &[]).body()
            }
            // The session has ended: its client is to start again.
            Some(Ready::Delivery(Err(_))) => Reply::poll(410, &token, &[]).body(),
            Some(Ready::Elsewhere(Some(answer))) if answer.status == 200 => answer.body,
            Some(Ready::Elsewhere(Some(_))) if self.claim.heard == 0 => {
                Reply::poll(410, &token, &[]).body()
            }
            // The other node cannot be reached, or an answer was lost: after this status clients of
            // all versions start again, on any node.
            Some(Ready::Elsewhere(_)) => Reply::status(500).body(),
        }
    }
}

enum Ready {
    Delivery(Result<Delivery, RecvError>),
    Elsewhere(Option<Answer>),
}

impl What {
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Ready> {
        match self {
            Self::Delivery(heard) => Pin::new(heard).poll(context).map(Ready::Delivery),
            Self::Elsewhere(calling) => Pin::new(calling).poll(context).map(Ready::Elsewhere),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.polls.waiting.fetch_sub(1, Relaxed);
    }
}
