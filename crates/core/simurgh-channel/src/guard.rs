//! Running code of the application that may panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs application code; `None` if it panicked. The drop of the panic's own value is guarded as
/// well, and skipped if it panics again.
pub fn guarded<R>(f: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => Some(result),
        Err(panic) => {
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
                std::mem::forget(again);
            }
            None
        }
    }
}
