//! Logs panics of application code on tokio.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Logs the panic's value, and drops it.
pub fn log_panic(topic: &str, at: &str, panic: Box<dyn Any + Send>) {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(topic, at, panic = text.unwrap_or("without a text"), "a handler panicked");
    // Dropping the value may panic again.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
}
