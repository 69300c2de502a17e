//! Why a client cannot be given all that it missed.
use core::fmt;

/// Why something is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GapReason {
    /// It is older than the topic's retention.
    Expired,
    /// Newer messages replaced it: the topic's limit of count or bytes.
    Overwritten,
    /// The histories of all topics exceeded the server's memory limit.
    Evicted,
    /// It was purged on request.
    Purged,
    /// The position is of another epoch, of none, or later than the head.
    Epoch,
    /// It is there, but it is more messages than a server sends to one client.
    TooMany,
    /// It is there, but it is more bytes than a server sends to one client.
    TooLarge,
    /// The engine is unavailable, so what it has is unknown.
    Unavailable,
    /// A message that should have followed did not come, and could not be fetched.
    Lost,
}

impl GapReason {
    /// All of them.
    pub const ALL: [GapReason; 9] = [
        GapReason::Expired,
        GapReason::Overwritten,
        GapReason::Evicted,
        GapReason::Purged,
        GapReason::Epoch,
        GapReason::TooMany,
        GapReason::TooLarge,
        GapReason::Unavailable,
        GapReason::Lost,
    ];

    /// Its name on the wire, in saves and in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            GapReason::Expired => "expired",
            GapReason::Overwritten => "overwritten",
            GapReason::Evicted => "evicted",
            GapReason::Purged => "purged",
            GapReason::Epoch => "epoch",
            GapReason::TooMany => "too_many",
            GapReason::TooLarge => "too_large",
            GapReason::Unavailable => "unavailable",
            GapReason::Lost => "lost",
        }
    }

    /// The reason of this name.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word)
    }
}

impl fmt::Display for GapReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_word_of_its_own() {
        for reason in GapReason::ALL {
            assert_eq!(GapReason::parse(reason.as_str()), Some(reason));
        }
        assert_eq!(GapReason::parse("Expired"), None);
        assert_eq!(GapReason::parse(""), None);
    }
}
