//! What is wrong with a declaration, and where.

/// Something in a list of specs that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Which spec, counted from 0.
    pub channel: usize,
    /// Which of its events, counted from 0, if it is about one.
    pub event: Option<usize>,
    /// The key it is about.
    pub key: &'static str,
    /// What is wrong, and what is allowed.
    pub message: String,
}

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "channel {}", self.channel + 1)?;
        if let Some(event) = self.event {
            write!(f, ", event {}", event + 1)?;
        }
        write!(f, ", {}: {}", self.key, self.message)
    }
}

impl std::error::Error for Mistake {}
