//! The resume that a client sends with its join.

use simurgh_core::Position;

use super::AlonePlan;

const BAD: [&str; 8] = [
    "7",
    "[]",
    "\"a00000.1\"",
    r#"{"since":7}"#,
    r#"{"since":[]}"#,
    r#"{"id":"short","since":null}"#,
    r#"{"since":null,"partial":1}"#,
    r#"{"since":null,"seen":7}"#,
];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Resume {
    /// No resume: it does not opt in.
    #[default]
    Nothing,
    /// Only messages from now on.
    Null,
    Honest(Position),
    Older(Position),
    /// A position that was never given.
    Odd,
    Bad,
}

/// How a client proves its first join; without proof it is sent only later messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Proof {
    #[default]
    None,
    Key,
    Forged,
}

impl Resume {
    /// Draws the resume of a client that has received messages up to this position.
    pub(crate) fn draw(plan: &AlonePlan, heard: Option<Position>, c: u32) -> Self {
        match (heard, c >> 8 & 31) {
            (_, 0) => Self::Null,
            (_, 1) => Self::Odd,
            (_, 3 | 4) if plan.says_bad => Self::Bad,
            (None, _) => Self::Null,
            (Some(mut at), 2) => {
                at.place.seq = at.place.seq.saturating_sub(u64::from(c >> 20 & 7) + 1);
                Self::Older(at)
            }
            (Some(at), _) => Self::Honest(at),
        }
    }

    /// As a further member of its join's payload, with `more` behind the position.
    pub(crate) fn member(self, id: &str, more: &str, c: u32) -> String {
        let since = match self {
            Self::Nothing => return String::new(),
            Self::Bad => return format!(r#","simurgh":{}"#, BAD[c as usize & 7]),
            Self::Null => "null".to_owned(),
            Self::Honest(at) | Self::Older(at) => format!("\"{at}\""),
            Self::Odd => if c & 1 == 0 { "\"what\"" } else { "\"zzzzzz.9\"" }.to_owned(),
        };
        format!(r#","simurgh":{{{id}"since":{since}{more}}}"#)
    }
}

impl Proof {
    /// Draws the proof of a client that received this key with its first join, and its JSON member.
    pub(crate) fn draw(key: Option<&(String, Position)>, word: u32) -> (Self, String) {
        let Some((key, first)) = key else { return (Self::None, String::new()) };
        let (proof, key) = match word {
            0 => return (Self::None, String::new()),
            1 if first.place.seq > 0 => {
                let mut older = *first;
                older.place.seq -= 1;
                (Self::Forged, key.replacen(&first.to_string(), &older.to_string(), 1))
            }
            _ => (Self::Key, key.clone()),
        };
        (proof, format!(r#","key":"{key}""#))
    }
}
