//! Calls to other nodes.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use simurgh_cluster::{Answer, CALL_BYTES_MAX, CallNumber};
use tokio::sync::oneshot;

use super::{ClusterInbox, Mail};

/// Most bytes of another node's answer to an observer.
const LOOK_ANSWER_BYTES_MAX: usize = 4096;

/// The services that nodes call on each other. A number is never reused for another service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Service {
    /// A long-poll request, for the node that has its session.
    LongPoll = 1,
    Look = 2,
    /// A back end's question.
    Ask = 3,
    /// The list of blocks and revocations.
    Blocks = 4,
    /// A part of the cached answers of applications.
    Grants = 5,
    /// Memberships of another node, for the coordinator of notices.
    Notices = 6,
    /// A question about notices, or an order.
    AskNotices = 7,
}

impl Service {
    pub const fn answer_bytes_max(self) -> usize {
        match self {
            Self::LongPoll | Self::Ask | Self::Blocks | Self::Grants | Self::AskNotices => {
                CALL_BYTES_MAX
            }
            Self::Notices => 0,
            Self::Look => LOOK_ANSWER_BYTES_MAX,
        }
    }

    pub fn of(number: u16) -> Option<Self> {
        use Service::{Ask, AskNotices, Blocks, Grants, LongPoll, Look, Notices};
        [LongPoll, Look, Ask, Blocks, Grants, Notices, AskNotices]
            .into_iter()
            .find(|it| *it as u16 == number)
    }
}

/// Receives the answer to a call; `None` if there will be none.
pub type CallReply = oneshot::Sender<Option<Answer>>;

/// A pending call. Dropping it hangs up.
pub struct Calling {
    pub(super) inbox: Arc<ClusterInbox>,
    pub(super) number: CallNumber,
    pub(super) answered: Option<oneshot::Receiver<Option<Answer>>>,
}

/// Resolves to the answer; `None` if there will be none.
impl Future for Calling {
    type Output = Option<Answer>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        let Some(answered) = &mut self.answered else { return Poll::Ready(None) };
        let answer = std::task::ready!(pin!(answered).poll(context));
        self.answered = None;
        Poll::Ready(answer.ok().flatten())
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        if self.answered.is_some() {
            self.inbox.post(Mail::HangUp(self.number));
        }
    }
}
