//! Base64url without padding (RFC 4648 §5, RFC 7515 §2). Unused bits at the end must be zero, so
//! that bytes have one form only.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::error::{Part, TokenError};

pub(crate) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

pub(crate) fn decode_part(text: &str, part: Part) -> Result<Vec<u8>, TokenError> {
    let why = "it is not base64url without padding";
    decode(text).ok_or_else(|| TokenError::malformed(part, why))
}
