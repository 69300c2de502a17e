//! The breaker: stops asking an application whose answers fail.

/// State of a breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BreakerState {
    /// Questions are sent.
    #[default]
    Closed,
    /// Questions fail at once.
    Open,
    /// One question is in flight and decides; all others fail at once.
    HalfOpen,
}
