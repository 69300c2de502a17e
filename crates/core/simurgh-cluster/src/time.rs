//! The time of a call, and its units.

pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MILLISECOND;

/// The time of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// By a clock that never goes back, in nanoseconds.
    pub ns: u64,
    /// Milliseconds since 1970: shown, and taken for the time of storing if a broker does not
    /// report that.
    pub unix_ms: u64,
}
