//! A poll for which there is nothing yet: here, or on another node.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;
use tokio::time::sleep;

use super::token::Claim;
use super::{Given, Heard, Reply};
use crate::cluster::{Answer, Calling};
use crate::hub::Hub;

/// Another node may take so much longer than a poll may wait, until it is given up.
const GRACE: Duration = Duration::from_secs(2);

/// The token that goes with the answer of this number: the one that the poll had, unless answers
/// are counted.
pub(super) fn token_of(hub: &Hub, claim: &Claim, token: String, number: u32) -> String {
    if number == claim.heard {
        return token;
    }
    hub.longpolls.signer.sign(&Claim { heard: number, ..*claim })
}

/// A poll that waits.
pub(crate) struct Waiting {
    hub: Arc<Hub>,
    what: What,
    claim: Claim,
    token: String,
    window: Duration,
}

/// What is waited for.
enum What {
    /// A session of a shard here.
    Heard(oneshot::Receiver<Heard>),
    /// The node that has the session.
    Elsewhere(Calling),
}

impl Waiting {
    /// For a session here.
    pub(super) fn here(
        hub: &Arc<Hub>,
        heard: oneshot::Receiver<Heard>,
        claim: Claim,
        token: String,
        window: Duration,
    ) -> Self {
        Self::new(hub, What::Heard(heard), claim, token, window)
    }

    /// For a session on another node, which is asked.
    pub(super) fn elsewhere(
        hub: &Arc<Hub>,
        calling: Calling,
        claim: Claim,
        token: String,
        window: Duration,
    ) -> Self {
        Self::new(hub, What::Elsewhere(calling), claim, token, window + GRACE)
    }

    fn new(hub: &Arc<Hub>, what: What, claim: Claim, token: String, window: Duration) -> Self {
        hub.longpolls.waiting.fetch_add(1, Relaxed);
        Self { hub: Arc::clone(hub), what, claim, token, window }
    }

    /// Waits until there is something to answer: what was said, or that nothing was said in the
    /// window, or until the client has gone, `left`. Then nothing is taken from the session.
    pub(crate) async fn answer(
        &mut self,
        mut left: Pin<&mut (dyn Future<Output = ()> + Send)>,
    ) -> Vec<u8> {
        let mut window = pin!(sleep(self.window));
        // One future, and no other within it: each that waits holds it.
        let told = poll_fn(|context| {
            if let Poll::Ready(told) = self.what.poll_told(context) {
                return Poll::Ready(Some(told));
            }
            let is_over = window.as_mut().poll(context).is_ready();
            let has_left = left.as_mut().poll(context).is_ready();
            if is_over || has_left { Poll::Ready(None) } else { Poll::Pending }
        });
        let told = told.await;
        self.body(told)
    }

    fn body(&mut self, told: Option<Told>) -> Vec<u8> {
        let token = std::mem::take(&mut self.token);
        let told = match (told, &mut self.what) {
            (Some(told), _) => Some(told),
            (None, What::Heard(heard)) => {
                // From here on the shard keeps what it has; what it had sent before is taken.
                heard.close();
                heard.try_recv().ok().map(|it| Told::Heard(Ok(it)))
            }
            (None, What::Elsewhere(_)) => Some(Told::Elsewhere(None)),
        };
        match told {
            Some(Told::Heard(Ok(Heard::Messages(Given { number, messages })))) => {
                let token = token_of(&self.hub, &self.claim, token, number);
                Reply::poll(200, &token, &messages).body()
            }
            Some(Told::Heard(Ok(Heard::Newer))) | None => Reply::poll(204, &token, &[]).body(),
            // The session has ended: its client is to begin anew.
            Some(Told::Heard(Err(_))) => Reply::poll(410, &token, &[]).body(),
            Some(Told::Elsewhere(Some(answer))) if answer.status == 200 => answer.body,
            Some(Told::Elsewhere(Some(_))) if self.claim.heard == 0 => {
                Reply::poll(410, &token, &[]).body()
            }
            // The other node cannot be reached, or an answer was lost: clients of all versions
            // begin anew after this, wherever they come to.
            Some(Told::Elsewhere(_)) => Reply::status(500).body(),
        }
    }
}

/// What was waited for.
enum Told {
    Heard(Result<Heard, RecvError>),
    Elsewhere(Option<Answer>),
}

impl What {
    fn poll_told(&mut self, context: &mut Context<'_>) -> Poll<Told> {
        match self {
            Self::Heard(heard) => Pin::new(heard).poll(context).map(Told::Heard),
            Self::Elsewhere(calling) => Pin::new(calling).poll(context).map(Told::Elsewhere),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.hub.longpolls.waiting.fetch_sub(1, Relaxed);
    }
}
