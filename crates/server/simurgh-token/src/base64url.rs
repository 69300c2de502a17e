//! Base64url without padding (RFC 4648 §5, RFC 7515 §2), of which each text has one form only:
//! bits that belong to no byte have to be zero, so that no two tokens mean the same.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

pub(crate) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// None: it is not base64url.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}
