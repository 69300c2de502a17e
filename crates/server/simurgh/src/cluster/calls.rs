//! Calls between nodes: those of this node, and those that it serves.

use std::collections::HashMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use simurgh_cluster::{Answer, CALL_BYTES_MAX, CallNumber, NodeId};
use tokio::sync::oneshot;

use super::inbox::{ClusterInbox, Mail};
use crate::server::Server;
use crate::{longpoll, observe};

/// Calls of other nodes that are served at a time; more are not answered.
const SERVED_MAX: usize = 1 << 17;

/// The services that nodes call on each other. A number is never reused for another service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Service {
    /// A request of a long poll, for the node that has its session ([`longpoll::elsewhere`]).
    LongPoll = 1,
    /// Figures and lists for an observer ([`observe::serve`]).
    Look = 2,
}

impl Service {
    /// The longest answer that is accepted.
    pub(super) const fn answer_bytes_max(self) -> usize {
        match self {
            Self::LongPoll => CALL_BYTES_MAX,
            Self::Look => observe::ANSWER_BYTES_MAX,
        }
    }

    fn of(number: u16) -> Option<Self> {
        [Self::LongPoll, Self::Look].into_iter().find(|it| *it as u16 == number)
    }
}

/// Receives the answer to a call; `None` if there will be none.
pub(super) type CallReply = oneshot::Sender<Option<Answer>>;

/// A call that is waited for. Dropping it hangs up.
pub(crate) struct Calling {
    inbox: Arc<ClusterInbox>,
    number: CallNumber,
    answered: Option<oneshot::Receiver<Option<Answer>>>,
}

impl Calling {
    pub(super) fn new(
        inbox: &Arc<ClusterInbox>,
        number: CallNumber,
        answered: oneshot::Receiver<Option<Answer>>,
    ) -> Self {
        Self { inbox: Arc::clone(inbox), number, answered: Some(answered) }
    }
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

/// Calls of other nodes that are being served: dropping what is kept here tells the service that
/// nobody waits any more.
#[derive(Default)]
pub(super) struct Served(HashMap<(NodeId, u64), oneshot::Sender<()>>);

impl Served {
    /// Has a service do what it is asked, and post its answer.
    pub(super) fn begin(
        &mut self,
        server: &Arc<Server>,
        (by, number): (NodeId, u64),
        service: u16,
        body: Vec<u8>,
    ) {
        let (Some(service), Some(inbox)) = (Service::of(service), server.cluster.clone()) else {
            return;
        };
        if self.0.len() >= SERVED_MAX {
            return;
        }
        let (is_waited_for, left) = oneshot::channel();
        self.0.insert((by, number), is_waited_for);
        let here = Arc::clone(server);
        server.spawn(async move {
            let (status, body) = match service {
                Service::LongPoll => longpoll::elsewhere::serve(&here, &body, left).await,
                Service::Look => observe::serve(&here, &body).await,
            };
            inbox.post(Mail::Answer(by, number, Answer { status, body }));
        });
    }

    /// A call was answered or given up; whether it was still waited for.
    pub(super) fn end(&mut self, by: NodeId, number: u64) -> bool {
        self.0.remove(&(by, number)).is_some()
    }

    /// A node has gone: drops all its calls.
    pub(super) fn gone(&mut self, node: NodeId) {
        self.0.retain(|(by, _), _| *by != node);
    }
}
