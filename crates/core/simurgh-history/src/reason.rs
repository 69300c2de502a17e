//! Why a client cannot be given all that it missed.
use core::fmt;

/// Why something is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Kept for as long as the topic's history lasts.
    Expired,
    /// Newer messages have taken the place: the topic's count or bytes.
    Overwritten,
    /// The server had to forget, as the histories of all topics were too much for it.
    Evicted,
    /// Somebody had it forgotten.
    Purged,
    /// The position is of another epoch, or of none, or later than everything.
    Epoch,
    /// It is there, but more messages than a server gives to one client.
    TooMany,
    /// It is there, but more bytes than a server gives to one client.
    TooLarge,
    /// What is there is not known: the engine is away.
    Unavailable,
    /// What should follow did not come, and could not be fetched.
    Lost,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 9] = [
        Reason::Expired,
        Reason::Overwritten,
        Reason::Evicted,
        Reason::Purged,
        Reason::Epoch,
        Reason::TooMany,
        Reason::TooLarge,
        Reason::Unavailable,
        Reason::Lost,
    ];

    /// The word for it on the wire, in saves and in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::Expired => "expired",
            Reason::Overwritten => "overwritten",
            Reason::Evicted => "evicted",
            Reason::Purged => "purged",
            Reason::Epoch => "epoch",
            Reason::TooMany => "too_many",
            Reason::TooLarge => "too_large",
            Reason::Unavailable => "unavailable",
            Reason::Lost => "lost",
        }
    }

    /// The reason that is said with this word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_word_of_its_own() {
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(reason));
        }
        assert_eq!(Reason::parse("Expired"), None);
        assert_eq!(Reason::parse(""), None);
    }
}
