//! The request as a server reads it.
use alloc::vec::Vec;
use core::mem::MaybeUninit;

use thiserror::Error;

use super::{HEADERS_MAX, HeadError, KEY_BYTES, tokens};

/// Bounds of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Length of the whole head including its empty line, in bytes.
    pub bytes_max: usize,
    /// Number of headers; more than 100 are never accepted.
    pub headers_max: usize,
    /// Length of the request target, in bytes.
    pub target_bytes_max: usize,
}

impl Default for HeadLimits {
    /// 16 KiB, 100 headers, and 8 KiB of target.
    fn default() -> Self {
        Self { bytes_max: 16 * 1024, headers_max: HEADERS_MAX, target_bytes_max: 8 * 1024 }
    }
}

/// The head of an HTTP/1.x request, borrowed from the bytes it came in.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The method as sent; methods are case-sensitive.
    pub method: &'a str,
    /// The request target as sent: path and query, not decoded, possibly the whole URL.
    pub target: &'a str,
    /// Minor version: 0 or 1.
    pub version: u8,
    headers: Vec<(&'a str, &'a [u8])>,
}

impl<'a> Request<'a> {
    /// Reads a head from the front of `buf`, and returns its length in bytes; what follows it
    /// belongs to the connection. `None` when more bytes are needed.
    ///
    /// # Errors
    /// If `buf` cannot become a head within `limits`, whatever comes. It is the first error in the
    /// order of the bytes, so that it stays the same when more of them come.
    pub fn parse(buf: &'a [u8], limits: &HeadLimits) -> Result<Option<(Self, usize)>, HeadError> {
        let within = buf.get(..limits.bytes_max).unwrap_or(buf);
        let bare_line_feed = bare_line_feed(within);
        let before = bare_line_feed.and_then(|at| within.get(..at)).unwrap_or(within);
        let mut slots = [const { MaybeUninit::uninit() }; HEADERS_MAX];
        let slots_max = limits.headers_max.min(HEADERS_MAX);
        let slots = slots.get_mut(..slots_max).unwrap_or_default();
        let mut head = httparse::Request::new(&mut []);
        let status =
            head.parse_with_uninit_headers(before, slots).map_err(HeadError::from_httparse)?;
        let httparse::Status::Complete(head_bytes) = status else {
            if bare_line_feed.is_some() {
                return Err(HeadError::Malformed);
            }
            return match buf.len() >= limits.bytes_max {
                true if is_first_line(within) => Err(HeadError::TargetTooLong),
                true => Err(HeadError::TooLarge),
                false => Ok(None),
            };
        };
        let (Some(method), Some(target), Some(version)) = (head.method, head.path, head.version)
        else {
            return Err(HeadError::Malformed);
        };
        if target.len() > limits.target_bytes_max {
            return Err(HeadError::TargetTooLong);
        }
        let headers = head.headers.iter().map(|header| (header.name, header.value)).collect();
        Ok(Some((Self { method, target, version, headers }, head_bytes)))
    }

    /// The value of the first header of that name, in any case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.named(name).next()
    }

    /// All headers in order, with their names as sent.
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.headers.iter().copied()
    }

    /// The non-empty UTF-8 elements of a comma-separated list, over all headers of that name.
    pub fn header_tokens(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.named(name).flat_map(tokens)
    }

    /// The path of the target, not decoded; `/` when the target is a URL without one.
    #[must_use]
    pub fn path(&self) -> &'a str {
        let path = self.split_target().0;
        if path.is_empty() { "/" } else { path }
    }

    /// The part after the first `?` of the target, not decoded; empty when there is none.
    #[must_use]
    pub fn query(&self) -> &'a str {
        self.split_target().1
    }

    /// Whether it asks for a WebSocket: `Upgrade` may be a list.
    #[must_use]
    pub fn wants_websocket(&self) -> bool {
        self.lists("upgrade", "websocket")
    }

    /// Whether a list header has this element, in any case.
    pub(super) fn lists(&self, name: &str, element: &str) -> bool {
        self.named(name).any(|value| {
            let mut elements = value.split(|&byte| byte == b',');
            elements.any(|listed| listed.trim_ascii().eq_ignore_ascii_case(element.as_bytes()))
        })
    }

    /// The values of all headers of that name, in order.
    pub fn named(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let named = self.headers().filter(move |(other, _)| other.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value)
    }

    fn split_target(&self) -> (&'a str, &'a str) {
        let target = self.target;
        // The absolute form, which every server has to accept (RFC 9112 §3.2.2).
        let absolute = (!target.starts_with('/')).then(|| target.split_once("://")).flatten();
        let target = match absolute {
            Some((scheme, rest)) if !scheme.is_empty() && is_scheme(scheme) => {
                rest.find(['/', '?']).and_then(|end| rest.get(end..)).unwrap_or_default()
            }
            _ => target,
        };
        target.split_once('?').unwrap_or((target, ""))
    }
}

/// The offset of a line of the head that ends in LF alone. `httparse` accepts such a line (RFC 9112
/// §2.2 allows it), and then sees another head than a proxy that does not. Lines after the head are
/// ignored.
fn bare_line_feed(bytes: &[u8]) -> Option<usize> {
    // Nearly all requests have none: without a branch, which is several bytes at once.
    let pairs = bytes.iter().zip(bytes.iter().skip(1));
    let has_one = pairs.fold(bytes.first() == Some(&b'\n'), |found, (&before, &byte)| {
        found | ((byte == b'\n') & (before != b'\r'))
    });
    if !has_one {
        return None;
    }
    // Empty lines before the first line do not end a head (RFC 9112 §2.2).
    let (mut has_begun, mut line) = (false, 0);
    for end in memchr::memchr_iter(b'\n', bytes) {
        match bytes.get(line..end).and_then(|line| line.strip_suffix(b"\r")) {
            None => return Some(end),
            Some([]) if has_begun => return None,
            Some([]) => {}
            Some(_) => has_begun = true,
        }
        line = end + 1;
    }
    None
}

/// Whether the bytes end before the end of the request line.
fn is_first_line(bytes: &[u8]) -> bool {
    let begin = bytes.iter().take_while(|byte| b"\r\n".contains(byte)).count();
    !bytes.iter().skip(begin).any(|&byte| byte == b'\n')
}

fn is_scheme(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// A request that is a WebSocket upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upgrade<'a> {
    /// The `Sec-WebSocket-Key`, for [`super::write_accept`].
    pub key: &'a str,
    /// The client waits for 100 (Continue), which comes before 101 (RFC 9110 §7.8).
    pub expects_continue: bool,
}

/// Why a request is not a WebSocket upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UpgradeError {
    /// `Connection` does not list `upgrade`.
    #[error("'connection' header must contain 'upgrade'")]
    Connection,
    /// Not exactly one `Host`.
    #[error("exactly one 'host' header is required")]
    Host,
    /// Not exactly one `Sec-WebSocket-Key` of 16 bytes in base64.
    #[error("exactly one 'sec-websocket-key' header of 16 bytes in base64 is required")]
    Key,
    /// Not a GET.
    #[error("method must be GET")]
    Method,
    /// `Upgrade` does not list `websocket`.
    #[error("'upgrade' header must contain 'websocket'")]
    Upgrade,
    /// Not HTTP/1.1.
    #[error("HTTP version must be 1.1")]
    Version,
    /// `Sec-WebSocket-Version` is not 13.
    #[error("'sec-websocket-version' header must be 13")]
    WebSocketVersion,
}

impl UpgradeError {
    /// The status to refuse with: 400 for all of them (PROTOCOL §2).
    #[must_use]
    pub const fn status(self) -> u16 {
        400
    }

    /// Headers of the refusal: the WebSocket version that the server speaks (RFC 6455 §4.2.2).
    #[must_use]
    pub const fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::WebSocketVersion => &[("sec-websocket-version", "13")],
            _ => &[],
        }
    }
}

/// Checks that a request opens a WebSocket (RFC 6455 §4.2.1).
///
/// # Errors
/// The first condition that it does not meet.
pub fn check_upgrade<'a>(request: &Request<'a>) -> Result<Upgrade<'a>, UpgradeError> {
    if request.method != "GET" {
        return Err(UpgradeError::Method);
    }
    if request.version != 1 {
        return Err(UpgradeError::Version);
    }
    single(request, "host").ok_or(UpgradeError::Host)?;
    if !request.wants_websocket() {
        return Err(UpgradeError::Upgrade);
    }
    if !request.lists("connection", "upgrade") {
        return Err(UpgradeError::Connection);
    }
    if single(request, "sec-websocket-version") != Some(b"13") {
        return Err(UpgradeError::WebSocketVersion);
    }
    let key = single(request, "sec-websocket-key").and_then(check_key).ok_or(UpgradeError::Key)?;
    Ok(Upgrade { key, expects_continue: request.lists("expect", "100-continue") })
}

fn single<'a>(request: &Request<'a>, name: &str) -> Option<&'a [u8]> {
    let mut values = request.named(name);
    let value = values.next()?;
    values.next().is_none().then(|| value.trim_ascii())
}

fn check_key(key: &[u8]) -> Option<&str> {
    // 22 characters hold 16 bytes; unused bits of the last one do not matter.
    let digits = key.strip_suffix(b"==").filter(|digits| digits.len() == KEY_BYTES - 2)?;
    let are_base64 = digits.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(byte));
    core::str::from_utf8(key).ok().filter(|_| are_base64)
}
