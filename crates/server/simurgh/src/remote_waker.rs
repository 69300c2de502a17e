//! Wakes requests on a thread of the HTTP side from a shard, many with one wake-up of the thread.

use std::cell::OnceCell;
use std::future::Future;
use std::task::{Context, Waker};

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

thread_local! {
    /// Leads to this thread's event loop; unset on threads that serve no requests.
    static WAKERS: OnceCell<UnboundedSender<Waker>> = const { OnceCell::new() };
}

/// Wakes requests for other threads; created and run on a thread's event loop.
pub(crate) fn wake_all() -> impl Future<Output = ()> {
    let (remote_waker, mut asked) = unbounded_channel::<Waker>();
    WAKERS.with(|it| _ = it.set(remote_waker));
    async move {
        // One wake-up for all that arrive before they are taken; and they are on its own thread.
        while let Some(waker) = asked.recv().await {
            waker.wake();
        }
    }
}

pub(crate) struct RemoteWaker {
    waker: Waker,
    thread: Option<UnboundedSender<Waker>>,
}

impl RemoteWaker {
    /// For the task of this context, on its own thread.
    pub(crate) fn new(context: &Context<'_>) -> Self {
        let thread = WAKERS.with(|it| it.get().cloned());
        Self { waker: context.waker().clone(), thread }
    }

    pub(crate) fn is_for(&self, context: &Context<'_>) -> bool {
        self.waker.will_wake(context.waker())
    }

    pub(crate) fn wake(self) {
        match self.thread {
            Some(thread) => {
                if let Err(has_ended) = thread.send(self.waker) {
                    has_ended.0.wake();
                }
            }
            None => self.waker.wake(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn waiting() -> (Waker, Arc<Woken>) {
        let woken = Arc::new(Woken::default());
        (Waker::from(Arc::clone(&woken)), woken)
    }

    #[test]
    fn thread_is_woken_once_for_many_requests() {
        let (of_thread, woken_thread) = waiting();
        let mut waking = pin!(wake_all());
        assert!(waking.as_mut().poll(&mut Context::from_waker(&of_thread)).is_pending());
        let (of_request, woken) = waiting();
        let context = Context::from_waker(&of_request);
        let wakers: Vec<RemoteWaker> = (0..10).map(|_| RemoteWaker::new(&context)).collect();
        assert!(wakers.iter().all(|it| it.is_for(&context)));
        let wake_them = move || wakers.into_iter().for_each(RemoteWaker::wake);
        std::thread::spawn(wake_them).join().unwrap();
        assert_eq!((woken_thread.0.load(Relaxed), woken.0.load(Relaxed)), (1, 0));
        assert!(waking.as_mut().poll(&mut Context::from_waker(&of_thread)).is_pending());
        assert_eq!(woken.0.load(Relaxed), 10);
    }

    #[test]
    fn request_on_another_or_ended_thread_is_woken_directly() {
        let (of_request, woken) = waiting();
        let context = Context::from_waker(&of_request);
        RemoteWaker::new(&context).wake();
        assert_eq!(woken.0.load(Relaxed), 1);
        drop(wake_all());
        RemoteWaker::new(&context).wake();
        assert_eq!(woken.0.load(Relaxed), 2);
    }
}
