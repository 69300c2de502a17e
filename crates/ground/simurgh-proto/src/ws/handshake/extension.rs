//! The offer and the answer of permessage-deflate (RFC 7692 §5, §7.1).
use super::Request;
use crate::ws::deflate::WINDOW_BITS;

pub(super) const HEADER: &str = "sec-websocket-extensions";
/// The `Sec-WebSocket-Extensions` that a client of ours offers.
pub const DEFLATE_OFFER: &str =
    "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
/// The answer to an offer that limits the server's window, too.
const ANSWER_WITH_WINDOW: &str = "permessage-deflate; server_no_context_takeover; \
     client_no_context_takeover; server_max_window_bits=12";
const _: () = assert!(WINDOW_BITS == 12, "the answer names it");

/// The answer of a server to the first offer of permessage-deflate that it can accept, if there is
/// one: always without context takeover.
///
/// It declines an offer with an unknown, repeated or malformed parameter, and one that limits the
/// server's window to less than 12 bits.
#[must_use]
pub fn accept_deflate(request: &Request<'_>) -> Option<&'static str> {
    let offers = request.named(HEADER).flat_map(|value| split(value, b','));
    let mut ours = offers.filter_map(Parameters::parse);
    let accepted = ours.find(|it| it.server_bits.is_none_or(|bits| bits >= WINDOW_BITS))?;
    Some(accepted.server_bits.map_or(DEFLATE_OFFER, |_| ANSWER_WITH_WINDOW))
}

/// Whether a server's answer to [`DEFLATE_OFFER`] is one: `None` if it is not.
pub(super) fn is_answer(extension: &[u8]) -> bool {
    Parameters::parse(extension).is_some_and(|it| it.server_no_context && it.client_bits.is_none())
}

/// The parameters of permessage-deflate.
#[derive(Default)]
struct Parameters {
    server_no_context: bool,
    client_no_context: bool,
    server_bits: Option<u8>,
    /// With or without a value.
    client_bits: Option<Option<u8>>,
}

impl Parameters {
    /// `None` if it is another extension, or has a parameter that this one does not have.
    fn parse(extension: &[u8]) -> Option<Self> {
        let mut parts = split(extension, b';');
        if parts.next()? != b"permessage-deflate" {
            return None;
        }
        let mut all = Self::default();
        for part in parts {
            let mut sides = part.splitn(2, |&byte| byte == b'=').map(<[u8]>::trim_ascii);
            let (name, value) = (sides.next()?, sides.next());
            let is_new = match (name, value) {
                (b"server_no_context_takeover", None) => {
                    !core::mem::replace(&mut all.server_no_context, true)
                }
                (b"client_no_context_takeover", None) => {
                    !core::mem::replace(&mut all.client_no_context, true)
                }
                (b"server_max_window_bits", Some(value)) => {
                    all.server_bits.replace(window_bits(value)?).is_none()
                }
                (b"client_max_window_bits", value) => {
                    let bits = value.map(|value| window_bits(value).ok_or(())).transpose().ok()?;
                    all.client_bits.replace(bits).is_none()
                }
                _ => false,
            };
            if !is_new {
                return None;
            }
        }
        Some(all)
    }
}

/// A number of 8 to 15, without leading zeros, perhaps in quotes.
fn window_bits(value: &[u8]) -> Option<u8> {
    let quoted = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    match quoted.unwrap_or(value) {
        [digit @ b'8'..=b'9'] => Some(digit - b'0'),
        [b'1', digit @ b'0'..=b'5'] => Some(10 + digit - b'0'),
        _ => None,
    }
}

/// The parts between separators outside of quotes, without the blanks around them.
pub(super) fn split(value: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let parts = value.split(move |&byte| {
        let is_end = byte == separator && !is_quoted;
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_quoted,
            b'"' => is_quoted = !is_quoted,
            _ => {}
        }
        is_end
    });
    parts.map(<[u8]>::trim_ascii)
}
