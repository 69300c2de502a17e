//! The client's side of the upgrade: request and answer.
use alloc::string::String;
use alloc::vec::Vec;
use core::mem::MaybeUninit;

use base64::Engine as _;
use thiserror::Error;

use super::response::write_header;
use super::{HEADERS_MAX, HeadError, HeadLimits, STANDARD, accept_key, extension, tokens};

/// The request that opens a WebSocket (RFC 6455 §4.1).
#[derive(Clone, Copy, Debug)]
pub struct ClientRequest<'a> {
    /// Host, with the port unless it is the scheme's own.
    pub host: &'a str,
    /// Path and query, beginning with `/`, already percent-encoded.
    pub target: &'a str,
    /// The Origin header, such as a browser sends for its page.
    pub origin: Option<&'a str>,
    /// Subprotocols to offer, best first.
    pub subprotocols: &'a [&'a str],
    /// 16 random bytes in base64: see [`client_key`].
    pub key: &'a str,
    /// Whether to offer permessage-deflate.
    pub deflate: bool,
    /// Further headers.
    pub headers: &'a [(&'a str, &'a str)],
}

impl ClientRequest<'_> {
    /// Appends the request to `out`. A header that could forge further lines is left out.
    ///
    /// `target` must have no blanks or control characters: it is the caller's own, not a peer's.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"GET ");
        out.extend_from_slice(self.target.as_bytes());
        out.extend_from_slice(b" HTTP/1.1\r\n");
        write_header("host", self.host, out);
        out.extend_from_slice(
            b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n",
        );
        write_header("sec-websocket-key", self.key, out);
        if let Some(origin) = self.origin {
            write_header("origin", origin, out);
        }
        if !self.subprotocols.is_empty() {
            write_header("sec-websocket-protocol", &self.subprotocols.join(", "), out);
        }
        if self.deflate {
            write_header(extension::HEADER, extension::DEFLATE_OFFER, out);
        }
        for (name, value) in self.headers {
            write_header(name, value, out);
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// The `Sec-WebSocket-Key` of 16 bytes, which should be random (RFC 6455 §4.1).
#[must_use]
pub fn client_key(nonce: [u8; 16]) -> String {
    STANDARD.encode(nonce)
}

/// A server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// 101 when the WebSocket is open, else the status of the refusal: check it first.
    pub status: u16,
    /// The subprotocol that the server picked, one of those offered.
    pub subprotocol: Option<&'a str>,
    /// Whether messages may be compressed: the server accepts the offered permessage-deflate.
    pub deflate: bool,
}

/// Why a server's answer neither opens nor refuses a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HandshakeError {
    /// `Sec-WebSocket-Accept` does not belong to the key.
    #[error("'sec-websocket-accept' does not belong to the key")]
    Accept,
    /// `Connection` does not list `upgrade`.
    #[error("'connection' header does not contain 'upgrade'")]
    Connection,
    /// An extension that was not requested, or not with these parameters.
    #[error("extension that was not requested")]
    Extension,
    /// Not an HTTP response, or too long a head.
    #[error("{0}")]
    Head(HeadError),
    /// A subprotocol that was not offered.
    #[error("subprotocol that was not offered")]
    Subprotocol,
    /// `Upgrade` is not `websocket`.
    #[error("'upgrade' header is not 'websocket'")]
    Upgrade,
}

/// Reads the answer to a [`ClientRequest`], which offers these subprotocols and perhaps
/// permessage-deflate, from the front of `buf`, and returns the length of its head in bytes;
/// frames, or the body of a refusal, follow it. `None` when more bytes are needed. The limits are
/// those of [`HeadLimits::default`].
///
/// # Errors
/// If the server does not follow RFC 6455 §4.1: close the connection. A refusal is not an error but
/// a [`Response`] with its status.
pub fn check_response<'a>(
    buf: &'a [u8],
    key: &str,
    offered: &[&str],
    deflate: bool,
) -> Result<Option<(Response<'a>, usize)>, HandshakeError> {
    let limits = HeadLimits::default();
    let within = buf.get(..limits.bytes_max).unwrap_or(buf);
    let mut slots = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut []);
    // Folded lines are still sent (RFC 9112 §5.2).
    let parsed = httparse::ParserConfig::default()
        .allow_obsolete_multiline_headers_in_responses(true)
        .parse_response_with_uninit_headers(&mut head, within, &mut slots)
        .map_err(|error| HandshakeError::Head(HeadError::from_httparse(error)))?;
    let httparse::Status::Complete(head_bytes) = parsed else {
        let full = buf.len() >= limits.bytes_max;
        return if full { Err(HandshakeError::Head(HeadError::TooLarge)) } else { Ok(None) };
    };
    let status = head.code.ok_or(HandshakeError::Head(HeadError::Malformed))?;
    let mut response = Response { status, subprotocol: None, deflate: false };
    if status == 101 {
        response.deflate = check_switch(head.headers, key, deflate)?;
        response.subprotocol = check_subprotocol(head.headers, offered)?;
    }
    Ok(Some((response, head_bytes)))
}

/// The values of all headers of that name.
fn values<'a, 'h>(
    headers: &'h [httparse::Header<'a>],
    name: &'static str,
) -> impl Iterator<Item = &'a [u8]> + use<'a, 'h> {
    let named = headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
    named.map(|header| header.value)
}

/// Checks the headers of a 101 (RFC 6455 §4.1); returns whether it accepts permessage-deflate,
/// where that was offered.
fn check_switch(
    headers: &[httparse::Header<'_>],
    key: &str,
    deflate: bool,
) -> Result<bool, HandshakeError> {
    let lists = |name, token: &str| {
        values(headers, name).flat_map(tokens).any(|listed| listed.eq_ignore_ascii_case(token))
    };
    if !lists("upgrade", "websocket") {
        return Err(HandshakeError::Upgrade);
    }
    if !lists("connection", "upgrade") {
        return Err(HandshakeError::Connection);
    }
    let mut accepts = values(headers, "sec-websocket-accept");
    let accept = accepts.next().map(<[u8]>::trim_ascii);
    if accept != Some(&accept_key(key)) || accepts.next().is_some() {
        return Err(HandshakeError::Accept);
    }
    let listed = values(headers, extension::HEADER).flat_map(|it| extension::split(it, b','));
    let mut extensions = listed.filter(|it| !it.is_empty());
    match (extensions.next(), extensions.next()) {
        (None, _) => Ok(false),
        (Some(only), None) if deflate && extension::is_answer(only) => Ok(true),
        _ => Err(HandshakeError::Extension),
    }
}

/// The subprotocol of a 101.
fn check_subprotocol<'a>(
    headers: &[httparse::Header<'a>],
    offered: &[&str],
) -> Result<Option<&'a str>, HandshakeError> {
    let mut picked = values(headers, "sec-websocket-protocol");
    let Some(subprotocol) = picked.next() else { return Ok(None) };
    match core::str::from_utf8(subprotocol.trim_ascii()) {
        Ok(name) if offered.contains(&name) && picked.next().is_none() => Ok(Some(name)),
        _ => Err(HandshakeError::Subprotocol),
    }
}
