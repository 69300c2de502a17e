//! Values of asynchronous channels, which must not be dropped on a shard's thread.
//!
//! A shard has its own descriptor table. The descriptor number of a file or connection opened
//! on tokio is invalid there, or belongs to a socket: dropping its owner on the shard would close
//! that socket.

use std::cell::OnceCell;
use std::mem::needs_drop;

use tokio::runtime::Handle;

thread_local! {
    /// The runtime on which values of a shard's thread are dropped; unset on other threads.
    static RUNTIME: OnceCell<Handle> = const { OnceCell::new() };
}

/// Marks this thread as a shard's, which drops values on this runtime; the runtime has to outlive
/// it.
pub fn enter_shard(runtime: Option<&Handle>) {
    if let Some(runtime) = runtime {
        // A thread belongs to one shard only.
        RUNTIME.with(|it| _ = it.set(runtime.clone()));
    }
}

/// A value of the application that a shard may keep and pass on, but not drop: dropped on a shard's
/// thread, it is sent to tokio.
pub struct OffShard<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> OffShard<T> {
    /// Keeps a value.
    pub fn new(value: T) -> Self {
        Self(Some(value))
    }

    /// The value. It is never `None`; the `Option` avoids a panic.
    pub fn take(mut self) -> Option<T> {
        self.0.take()
    }

    /// As [`take`](Self::take), without taking it.
    pub fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }

    /// As [`take`](Self::take), without taking it.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_mut()
    }
}

impl<T: Send + 'static> Drop for OffShard<T> {
    fn drop(&mut self) {
        if !needs_drop::<T>() {
            return;
        }
        let Some(value) = self.0.take() else { return };
        // None if the thread is not a shard's, or is ending.
        let runtime = RUNTIME.try_with(|it| it.get().cloned()).ok().flatten();
        if let Some(runtime) = runtime {
            runtime.spawn(async move { drop(value) });
        }
    }
}
