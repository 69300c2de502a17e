//! Where the body of a request ends, and whether two readers of the same bytes could disagree.
//!
//! A proxy and a server that see different ends of one request let a client put a second request
//! into the first (request smuggling, RFC 9112 §11.2). So what the RFC allows a recipient to repair
//! is refused here.

use thiserror::Error;

use super::request::Request;

/// What follows a head (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// This many bytes; 0: the next head.
    Length(u64),
    /// Chunks. What comes after them is not trusted: close the connection.
    Chunked,
}

/// Why a request is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FramingError {
    /// A GET, HEAD or TRACE with a body.
    #[error("a request of this method has no body")]
    BodyNotExpected,
    /// `Content-Length` is not a plain number, or there are several.
    #[error("exactly one 'content-length' of digits is required")]
    ContentLength,
    /// Both `Content-Length` and `Transfer-Encoding`.
    #[error("'content-length' and 'transfer-encoding' exclude each other")]
    ContentLengthAndTransferEncoding,
    /// No `Host`, several, or another than that of the target.
    #[error("exactly one 'host' is required, equal to that of the target")]
    Host,
    /// `Authorization` or `Origin` more than once: readers would believe different ones.
    #[error("at most one 'authorization' and one 'origin' are allowed")]
    Twice,
    /// CONNECT, which is for proxies.
    #[error("CONNECT is not supported: this is not a proxy")]
    Method,
    /// A target that is neither a path nor an `http` URL, nor `*` of OPTIONS.
    #[error("the target is neither a path nor an http URL")]
    Target,
    /// `Transfer-Encoding` in HTTP/1.0, or several.
    #[error("exactly one 'transfer-encoding' and HTTP/1.1 are required")]
    TransferEncoding,
    /// Another `Transfer-Encoding` than `chunked`.
    #[error("only the 'transfer-encoding' chunked is supported")]
    TransferEncodingUnknown,
}

impl FramingError {
    /// The status to refuse with: 400, or 501 for valid requests that are not supported.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Method | Self::TransferEncodingUnknown => 501,
            _ => 400,
        }
    }
}

impl Request<'_> {
    /// Where the body ends, if no reader could see another end or another host.
    ///
    /// # Errors
    /// The first reason not to accept the request: answer with [`status`](FramingError::status) and
    /// close the connection (RFC 9112 §6.3, §3.2).
    pub fn framing(&self) -> Result<Framing, FramingError> {
        self.check_host()?;
        if ["authorization", "origin"].iter().any(|name| self.named(name).nth(1).is_some()) {
            return Err(FramingError::Twice);
        }
        let mut encodings = self.named("transfer-encoding");
        let mut lengths = self.named("content-length");
        let (encoding, length) = (encodings.next(), lengths.next());
        if encodings.next().is_some() {
            return Err(FramingError::TransferEncoding);
        }
        if lengths.next().is_some() {
            return Err(FramingError::ContentLength);
        }
        let framing = match (encoding, length) {
            (None, None) => Framing::Length(0),
            (Some(_), Some(_)) => return Err(FramingError::ContentLengthAndTransferEncoding),
            (Some(_), None) if self.version == 0 => return Err(FramingError::TransferEncoding),
            (Some(encoding), None) if encoding.eq_ignore_ascii_case(b"chunked") => Framing::Chunked,
            (Some(_), None) => return Err(FramingError::TransferEncodingUnknown),
            (None, Some(length)) => Framing::Length(number(length)?),
        };
        let has_none = matches!(self.method, "GET" | "HEAD" | "TRACE");
        if has_none && framing != Framing::Length(0) {
            return Err(FramingError::BodyNotExpected);
        }
        Ok(framing)
    }

    /// RFC 9112 §3.2: one Host in HTTP/1.1, at most one before; a URL as target has the same.
    fn check_host(&self) -> Result<(), FramingError> {
        let mut hosts = self.named("host");
        let host = hosts.next();
        if hosts.next().is_some() || (host.is_none() && self.version > 0) {
            return Err(FramingError::Host);
        }
        if host.is_some_and(|host| !is_host(host)) {
            return Err(FramingError::Host);
        }
        if self.method == "CONNECT" {
            return Err(FramingError::Method);
        }
        if self.target.starts_with('/') || (self.target == "*" && self.method == "OPTIONS") {
            return Ok(());
        }
        let (scheme, rest) = self.target.split_once("://").ok_or(FramingError::Target)?;
        let port = match scheme {
            _ if scheme.eq_ignore_ascii_case("http") => ":80",
            _ if scheme.eq_ignore_ascii_case("https") => ":443",
            _ => return Err(FramingError::Target),
        };
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        let plain = |host| without_port(host, port.as_bytes());
        match host {
            Some(host) if plain(host).eq_ignore_ascii_case(plain(authority.as_bytes())) => Ok(()),
            None if !authority.is_empty() => Ok(()),
            _ => Err(FramingError::Host),
        }
    }
}

/// `1*DIGIT` and nothing else: no sign, no list, no blank within.
fn number(text: &[u8]) -> Result<u64, FramingError> {
    let digits = core::str::from_utf8(text).map_err(|_| FramingError::ContentLength)?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(FramingError::ContentLength);
    }
    digits.parse().map_err(|_| FramingError::ContentLength)
}

/// Whether it can only be one host with a port: no blank, comma, path or user.
fn is_host(host: &[u8]) -> bool {
    host.iter().all(|byte| HOST_BYTES.get(usize::from(*byte)) == Some(&true))
}

const HOST_BYTES: [bool; 256] = {
    let mut is_part = [false; 256];
    let mut at = 0;
    while at < is_part.len() {
        is_part[at] = (at as u8).is_ascii_alphanumeric();
        at += 1;
    }
    let mut marks: &[u8] = b"-._~%!$&'()*+;=:[]";
    while let [mark, rest @ ..] = marks {
        is_part[*mark as usize] = true;
        marks = rest;
    }
    is_part
};

fn without_port<'a>(host: &'a [u8], port: &[u8]) -> &'a [u8] {
    host.strip_suffix(port).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ws::handshake::HeadLimits;
    use std::format;

    fn framing(line: &str, headers: &str) -> Result<Framing, FramingError> {
        let head = format!("{line}\r\n{headers}\r\n");
        let parsed = Request::parse(head.as_bytes(), &HeadLimits::default());
        parsed.expect("well-formed").expect("whole").0.framing()
    }

    fn post(headers: &str) -> Result<Framing, FramingError> {
        framing("POST / HTTP/1.1", &format!("host: a\r\n{headers}"))
    }

    #[test]
    fn body_length_is_determined_by_exactly_one_header() {
        assert_eq!(post(""), Ok(Framing::Length(0)));
        assert_eq!(post("content-length: 5\r\n"), Ok(Framing::Length(5)));
        assert_eq!(post("content-length: \t7 \r\n"), Ok(Framing::Length(7)), "blanks around it");
        assert_eq!(post("Transfer-Encoding: Chunked\r\n"), Ok(Framing::Chunked));
    }

    #[test]
    fn body_with_conflicting_lengths_is_rejected() {
        use FramingError::{
            ContentLength as Length, ContentLengthAndTransferEncoding as Both, TransferEncoding,
            TransferEncodingUnknown as Unknown,
        };
        for (headers, error) in [
            ("content-length: 5\r\ntransfer-encoding: chunked\r\n", Both),
            ("transfer-encoding: chunked\r\ncontent-length: 5\r\n", Both),
            ("content-length: 5\r\ncontent-length: 5\r\n", Length),
            ("content-length: 5\r\ncontent-length: 6\r\n", Length),
            ("content-length: 5, 5\r\n", Length),
            ("content-length: +5\r\n", Length),
            ("content-length: -5\r\n", Length),
            ("content-length: 0x5\r\n", Length),
            ("content-length: 5 5\r\n", Length),
            ("content-length:\r\n", Length),
            ("content-length: 18446744073709551616\r\n", Length),
            ("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", TransferEncoding),
            ("transfer-encoding: chunked, chunked\r\n", Unknown),
            ("transfer-encoding: gzip, chunked\r\n", Unknown),
            ("transfer-encoding: identity\r\n", Unknown),
            ("transfer-encoding: xchunked\r\n", Unknown),
            ("transfer-encoding:\r\n", Unknown),
        ] {
            assert_eq!(post(headers), Err(error), "{headers:?}");
        }
        let old = framing("POST / HTTP/1.0", "host: a\r\ntransfer-encoding: chunked\r\n");
        assert_eq!(old, Err(TransferEncoding));
        let get = framing("GET / HTTP/1.1", "host: a\r\ncontent-length: 1\r\n");
        assert_eq!(get, Err(FramingError::BodyNotExpected));
        let get = framing("GET / HTTP/1.1", "host: a\r\ncontent-length: 0\r\n");
        assert_eq!(get, Ok(Framing::Length(0)));
    }

    #[test]
    fn repeated_authorization_or_origin_header_is_rejected() {
        for name in ["authorization", "Origin"] {
            let line = format!("{name}: a\r\n");
            assert_eq!(post(&line), Ok(Framing::Length(0)));
            assert_eq!(post(&line.repeat(2)), Err(FramingError::Twice), "{name}");
        }
    }

    #[test]
    fn exactly_one_valid_host_is_required() {
        let ok = Ok(Framing::Length(0));
        for (line, headers, expected) in [
            ("GET / HTTP/1.1", "", Err(FramingError::Host)),
            ("GET / HTTP/1.0", "", ok),
            ("GET / HTTP/1.1", "host:\r\n", ok),
            ("GET / HTTP/1.1", "host: a\r\nhost: a\r\n", Err(FramingError::Host)),
            ("GET / HTTP/1.0", "host: a\r\nhost: b\r\n", Err(FramingError::Host)),
            ("GET / HTTP/1.1", "host: a, b\r\n", Err(FramingError::Host)),
            ("GET / HTTP/1.1", "host: a/b\r\n", Err(FramingError::Host)),
            ("GET / HTTP/1.1", "host: u@a\r\n", Err(FramingError::Host)),
            ("GET / HTTP/1.1", "host: [::1]:80\r\n", ok),
            ("GET http://a/x HTTP/1.1", "host: a\r\n", ok),
            ("GET HTTP://A:80/x HTTP/1.1", "host: a\r\n", ok),
            ("GET https://a?x HTTP/1.1", "host: a:443\r\n", ok),
            ("GET http://b/x HTTP/1.1", "host: a\r\n", Err(FramingError::Host)),
            ("GET http://u@a/x HTTP/1.1", "host: a\r\n", Err(FramingError::Host)),
            ("GET http://a:81/x HTTP/1.1", "host: a\r\n", Err(FramingError::Host)),
            ("GET http:///x HTTP/1.0", "", Err(FramingError::Host)),
            ("GET ftp://a/x HTTP/1.1", "host: a\r\n", Err(FramingError::Target)),
            ("GET a HTTP/1.1", "host: a\r\n", Err(FramingError::Target)),
            ("GET * HTTP/1.1", "host: a\r\n", Err(FramingError::Target)),
            ("OPTIONS * HTTP/1.1", "host: a\r\n", ok),
            ("CONNECT a:80 HTTP/1.1", "host: a:80\r\n", Err(FramingError::Method)),
        ] {
            assert_eq!(framing(line, headers), expected, "{line} {headers:?}");
        }
        assert_eq!(FramingError::Host.status(), 400);
        assert_eq!(FramingError::TransferEncodingUnknown.status(), 501);
    }
}
