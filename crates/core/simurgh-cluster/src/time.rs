//! The time of a call.

/// The time of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// By a clock that never goes back, in nanoseconds.
    pub ns: u64,
    /// Milliseconds since 1970; shown, and where an engine does not say when it stored something,
    /// taken for that.
    pub unix_ms: u64,
}
