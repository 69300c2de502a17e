//! A question that has to be sent, and its place in the queue.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::oneshot;

use super::Hook;
use super::state::{Equal, Pending};
use crate::question::Question;
use crate::queue::Ticket;
use crate::verdict::{Failure, Verdict};

/// The result of [`Hook::ask`].
#[derive(Debug)]
pub enum Asked {
    /// Known at once: from the cache, or because nothing can be asked now.
    Now(Verdict),
    /// The application has to be asked.
    Later(Unanswered),
}

/// A question that the application has to answer.
pub struct Unanswered {
    pub(super) hook: Arc<Hook>,
    pub(super) question: Question,
    pub(super) equal: Option<Equal>,
    pub(super) asked: SystemTime,
}

/// The place of a question in the queue. If it is dropped while the question waits, that is never
/// sent.
#[derive(Debug)]
pub struct Place(Option<(Arc<Hook>, Ticket)>);

impl Unanswered {
    /// Has the question wait until it is sent. `data` of its body is a JSON object without `hook`
    /// and `node`, which are added. `reply` runs on the thread `simurgh-hooks`, or at once if the
    /// queue is full.
    pub fn send(self, data: Box<str>, reply: impl FnOnce(Verdict) + Send + 'static) -> Place {
        let Self { hook, question, equal, asked } = self;
        let (kind, now_ms) = (question.kind, hook.now_ms());
        let reply = Box::new(reply);
        let pending = Pending { question, data, asked, deadline_ms: 0, equal, reply };
        let admitted = hook.lock().admit(Box::new(pending), now_ms);
        match admitted {
            Ok(ticket) => {
                hook.wake.notify_one();
                Place(Some((hook, ticket)))
            }
            Err((pending, why)) => {
                let verdict = hook.fail(kind, pending.equal.as_ref(), why);
                (pending.reply)(verdict);
                Place(None)
            }
        }
    }

    /// As [`send`](Self::send), with the verdict as a future for any runtime.
    pub fn verdict(self, data: Box<str>) -> impl Future<Output = Verdict> + Send {
        let (reply, verdict) = oneshot::channel();
        // The receiver is gone only with the place.
        let place = self.send(data, move |verdict| drop(reply.send(verdict)));
        async move {
            let verdict = verdict.await.unwrap_or(Verdict::Failed(Failure::NOBODY));
            drop(place);
            verdict
        }
    }
}

impl fmt::Debug for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Unanswered").field(&self.question.kind).finish()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some((hook, ticket)) = self.0.take() else { return };
        let forgotten = hook.lock().forget(ticket);
        // An equal question may take its place. What the reply owns is dropped without the lock.
        if forgotten.is_some() {
            hook.wake.notify_one();
        }
    }
}
