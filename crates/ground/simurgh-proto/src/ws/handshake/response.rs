//! The answer of a server.
use alloc::format;
use alloc::vec::Vec;

use super::{Upgrade, accept_key, extension};

/// Appends the 101 response to `out`.
///
/// `subprotocol` is that of [`super::Negotiated`], `deflate` that of [`super::accept_deflate`].
pub fn write_accept(
    upgrade: &Upgrade<'_>,
    subprotocol: Option<&str>,
    deflate: Option<&str>,
    out: &mut Vec<u8>,
) {
    if upgrade.expects_continue {
        out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
    }
    out.extend_from_slice(
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
          sec-websocket-accept: ",
    );
    out.extend_from_slice(&accept_key(upgrade.key));
    out.extend_from_slice(b"\r\n");
    if let Some(subprotocol) = subprotocol {
        write_header("sec-websocket-protocol", subprotocol, out);
    }
    if let Some(deflate) = deflate {
        write_header(extension::HEADER, deflate, out);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a whole response to `out` that refuses a request and announces the end of the connection
/// (`connection: close`).
///
/// `content-length` is written here; other headers are the caller's `headers`. A header that could
/// forge further lines (a CR, LF or NUL in its value, or an invalid name) is left out.
pub fn write_refusal(status: u16, headers: &[(&str, &str)], body: &str, out: &mut Vec<u8>) {
    let (reason, body_bytes) = (reason(status), body.len());
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nconnection: close\r\ncontent-length: {body_bytes}\r\n"
    );
    out.extend_from_slice(head.as_bytes());
    for (name, value) in headers {
        write_header(name, value, out);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(body.as_bytes());
}

/// Appends one header line, unless its name or value is invalid.
pub(super) fn write_header(name: &str, value: &str, out: &mut Vec<u8>) {
    let token = !name.is_empty() && name.bytes().all(is_token_byte);
    if !token || value.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
        return;
    }
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Whether a byte is allowed in a token such as a header name (RFC 9110 §5.6.2).
const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        )
}

/// The reason phrase of the statuses that a refusal may have; no client depends on it.
const fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        410 => "Gone",
        413 => "Content Too Large",
        414 => "URI Too Long",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Refused",
    }
}
