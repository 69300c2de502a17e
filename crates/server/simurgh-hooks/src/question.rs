//! Questions of the server.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

/// The subject of a question. It is the last part of the URL's path and of the body's `type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// May this client connect, and as which user?
    Connect,
    /// May this client join a topic?
    Join,
    /// May this client send this message?
    Message,
    /// May this client stay after its grant has expired?
    Refresh,
}

impl Kind {
    /// All kinds, in the order of [`Kind::index`].
    pub const ALL: [Self; 4] = [Self::Connect, Self::Join, Self::Message, Self::Refresh];

    /// The word in paths, types and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Join => "join",
            Self::Message => "message",
            Self::Refresh => "refresh",
        }
    }

    /// The `type` of its requests.
    pub(crate) fn type_word(self) -> &'static str {
        match self {
            Self::Connect => "question.connect",
            Self::Join => "question.join",
            Self::Message => "question.message",
            Self::Refresh => "question.refresh",
        }
    }

    /// Its place in [`Kind::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// One question to an application.
#[derive(Clone, Debug)]
pub struct Question {
    /// Its subject.
    pub kind: Kind,
    /// The part of the client's address that counts as one client.
    pub client: IpAddr,
    /// Headers of the client's upgrade that the application sees.
    pub forwarded: Arc<[(HeaderName, HeaderValue)]>,
    /// `traceparent` of the client; the question gets a span of its own in that trace.
    pub traceparent: Option<HeaderValue>,
    /// Equal questions have equal inputs. `None`: the answer is neither cached nor shared.
    pub cache: Option<Box<CacheInputs>>,
}

/// The inputs of an answer: equal questions have equal ones.
#[derive(Clone, Debug)]
pub struct CacheInputs {
    /// Everything the answer may depend on, in a fixed order.
    pub key: Vec<Vec<u8>>,
    /// The user who asks, and the id of the socket, if known:
    /// [`Shared::void`](crate::Shared::void) finds grants by them.
    pub user: Option<String>,
    /// The socket id.
    pub id: Option<String>,
}
