//! Tokens of back ends, and what each may do.

use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use simurgh_proto::topic::Pattern;

/// A right of a token of the server API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Scope {
    /// Publish messages and push to sockets.
    Publish,
    /// End channels and sockets.
    Control,
    /// Read who is connected, what is in topics, and histories.
    Read,
    /// Block users and revoke their tokens.
    Access,
    /// Delete histories.
    History,
    /// Read notices, and have them sent again.
    Notices,
    /// Have the server read its settings again.
    Reload,
}

impl Scope {
    pub const ALL: [Self; 7] = [
        Self::Publish,
        Self::Control,
        Self::Read,
        Self::Access,
        Self::History,
        Self::Notices,
        Self::Reload,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Control => "control",
            Self::Read => "read",
            Self::Access => "access",
            Self::History => "history",
            Self::Notices => "notices",
            Self::Reload => "reload",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }
}

/// A token of the server API besides [`Config::api_token`](super::Config::api_token), which may do
/// everything.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ApiToken {
    /// Shown in metrics and logs in place of the token.
    pub name: String,
    /// The SHA-256 hash of the token.
    pub sha256: [u8; SHA256_OUTPUT_LEN],
    pub scopes: Vec<Scope>,
    /// The topics that it may use; empty: all.
    pub topics: Vec<Pattern>,
}

impl ApiToken {
    /// A token that may use all topics, by its hash ([`hash`](Self::hash)).
    pub fn new(
        name: impl Into<String>,
        sha256: [u8; SHA256_OUTPUT_LEN],
        scopes: impl Into<Vec<Scope>>,
    ) -> Self {
        Self { name: name.into(), sha256, scopes: scopes.into(), topics: Vec::new() }
    }

    /// Limits it to topics of these patterns.
    #[must_use]
    pub fn topics(mut self, topics: impl Into<Vec<Pattern>>) -> Self {
        self.topics = topics.into();
        self
    }

    /// The hash of a token.
    pub fn hash(token: &[u8]) -> [u8; SHA256_OUTPUT_LEN] {
        let mut hash = [0; SHA256_OUTPUT_LEN];
        hash.copy_from_slice(digest(&SHA256, token).as_ref());
        hash
    }

    pub fn may_use(&self, topic: &str) -> bool {
        self.topics.is_empty() || self.topics.iter().any(|pattern| pattern.matches(topic))
    }

    /// Whether it may use all topics that begin so.
    pub fn may_use_all(&self, prefix: &str) -> bool {
        let covers = |pattern: &Pattern| match pattern {
            Pattern::Prefix(own) => prefix.starts_with(&**own),
            Pattern::Literal(_) => false,
        };
        self.topics.is_empty() || self.topics.iter().any(covers)
    }
}
