//! Why a client cannot be given all that it missed.

/// Why something is missing.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
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
    /// The broker is unavailable, so what it has is unknown.
    Unavailable,
    /// A message that should have followed did not come, and could not be fetched.
    Lost,
}

impl GapReason {
    /// All of them.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Its name on the wire, in saves and in metrics.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The reason of this name.
    pub fn parse(word: &str) -> Option<Self> {
        word.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gap_reason_has_its_own_name() {
        for &reason in GapReason::ALL {
            assert_eq!(GapReason::parse(reason.as_str()), Some(reason));
        }
        assert_eq!(GapReason::parse("Expired"), None);
        assert_eq!(GapReason::parse(""), None);
    }
}
