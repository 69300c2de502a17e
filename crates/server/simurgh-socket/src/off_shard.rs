//! Values of asynchronous channels, which no shard's thread drops.
//!
//! A shard has a descriptor table of its own. A file or connection that was opened on tokio has a
//! number there that is nothing here, or somebody's socket: dropping its owner on the shard would
//! close that.

use std::cell::OnceCell;
use std::mem::needs_drop;

use tokio::runtime::Handle;

thread_local! {
    /// Where what this thread is not to drop is dropped; only shards' threads have one.
    static RUNTIME: OnceCell<Handle> = const { OnceCell::new() };
}

/// This thread is a shard's from here on: it gives what it is not to drop to this runtime, which
/// has to outlive it.
pub fn enter_shard(runtime: Option<&Handle>) {
    if let Some(runtime) = runtime {
        // A thread is one shard's only.
        RUNTIME.with(|it| _ = it.set(runtime.clone()));
    }
}

/// Something of the application's that a shard may keep and pass on, but not drop: dropped on a
/// shard's thread, it goes to tokio.
pub struct OffShard<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> OffShard<T> {
    /// Keeps a value.
    pub fn new(value: T) -> Self {
        Self(Some(value))
    }

    /// The value; `None` never, but to say so would be a panic.
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
        // None where the thread is no shard's, or is ending and holds nothing any more.
        let runtime = RUNTIME.try_with(|it| it.get().cloned()).ok().flatten();
        if let Some(runtime) = runtime {
            runtime.spawn(async move { drop(value) });
        }
    }
}
