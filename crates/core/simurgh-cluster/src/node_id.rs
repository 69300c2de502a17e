//! The id of a node.

use core::fmt;
use core::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

const CHARS: usize = 11;

/// The id of a node, random at each of its starts. The [`Owner`](simurgh_presence::Owner) of its
/// presences is the same number. It is shown as 11 characters of base64url.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chars = [b'A'; CHARS];
        // Eight bytes are always eleven characters.
        let _ = URL_SAFE_NO_PAD.encode_slice(self.0.to_be_bytes(), &mut chars);
        f.pad(str::from_utf8(&chars).unwrap_or_default())
    }
}

/// A text that is not the id of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of a node must have {CHARS} characters of base64url")]
pub struct NodeIdError;

impl FromStr for NodeId {
    type Err = NodeIdError;

    fn from_str(text: &str) -> Result<Self, NodeIdError> {
        let mut bytes = [0; 9];
        let length = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).map_err(|_| NodeIdError)?;
        let bytes = bytes.get(..length).and_then(|it| it.try_into().ok()).ok_or(NodeIdError)?;
        Ok(Self(u64::from_be_bytes(bytes)))
    }
}
