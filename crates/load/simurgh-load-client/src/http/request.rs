//! Writes requests.

use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

use super::framing::tokens;

/// Characters encoded in a target, and outside of Tsung's dialect bytes over 0x7f too: most servers
/// refuse them.
const TARGET: AsciiSet = CONTROLS.add(b' ');

/// One request.
///
/// Requests contain values of servers, so bytes that would end a line early (control characters,
/// and blanks in the target) are made harmless. In the target they are percent-encoded, and in a
/// header's value they become blanks. A header whose name is not a token is left out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// For example `GET`; anything but a token becomes `GET`.
    pub method: &'a str,
    /// Path and query; an empty one becomes `/`.
    pub target: &'a [u8],
    /// The server's name for `Host`, without brackets if it is an IPv6 address.
    pub host: &'a str,
    /// The port for `Host`; `None`: not named, as for the scheme's own port, and in Tsung always.
    pub port: Option<u16>,
    /// HTTP/1.0 instead of 1.1.
    pub version_1_0: bool,
    /// The connection is to be used again; sent only where it is not the version's default.
    pub keep_alive: bool,
    /// `User-Agent`.
    pub user_agent: Option<&'a str>,
    /// Further headers. One that is named as one of ours (`Host`, `User-Agent`, `Cookie`,
    /// `Authorization`, `Connection`) replaces it; `Transfer-Encoding` and a wrong
    /// `Content-Length` are left out.
    pub headers: &'a [(&'a str, &'a [u8])],
    /// Value of `Cookie`; see [`super::Jar::write`]. Empty: none.
    pub cookies: &'a [u8],
    /// Value of `Authorization`; see [`super::basic`] and [`super::DigestAnswer`].
    pub authorization: Option<&'a str>,
    /// The body. Without one, methods that usually have one send a length of 0.
    pub body: Option<&'a [u8]>,
    /// As Tsung writes it: bytes over 0x7f of the target are sent unchanged, there is no
    /// `Connection`, and a `Cookie` or `Authorization` in `headers` is sent beside ours.
    pub tsung: bool,
}

/// Headers with a fixed place in a request, in Tsung's order; the others follow `Cookie`.
const PLACED: [&str; 6] =
    ["If-Modified-Since", "Host", "User-Agent", "Content-Type", "Content-Length", "SOAPAction"];

/// Whether a header says that no other request follows on its connection (RFC 9112 §9.6).
#[must_use]
pub fn asks_to_close(name: &str, value: &[u8]) -> bool {
    name.eq_ignore_ascii_case("connection")
        && tokens(value).any(|token| token.eq_ignore_ascii_case(b"close"))
}

impl Request<'_> {
    /// Appends the request to `out`. The headers are in the order of Tsung.
    pub fn write(&self, out: &mut Vec<u8>) {
        let body = self.body.unwrap_or_default();
        out.reserve(160 + self.target.len() + self.cookies.len() + body.len());
        self.write_line(out);
        self.write_own("If-Modified-Since", out);
        if !self.write_own("Host", out) {
            out.extend_from_slice(b"Host: ");
            self.write_host(out);
            out.extend_from_slice(b"\r\n");
        }
        if !self.write_own("User-Agent", out)
            && let Some(agent) = self.user_agent
        {
            write_header(out, "User-Agent", agent.as_bytes());
        }
        if !self.tsung && self.own("connection").is_none() {
            match (self.version_1_0, self.keep_alive) {
                (false, false) => out.extend_from_slice(b"Connection: close\r\n"),
                (true, true) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
                _ => {}
            }
        }
        self.write_own("Content-Type", out);
        let mut length = itoa::Buffer::new();
        let length = length.format(body.len());
        let is_right = self.own("content-length") == Some(length.as_bytes());
        if is_right || self.body.is_some() || matches!(self.method, "POST" | "PUT" | "PATCH") {
            write_header(out, "Content-Length", length.as_bytes());
        }
        if let Some(value) = self.authorization.filter(|_| self.has_none_of("authorization")) {
            write_header(out, "Authorization", value.as_bytes());
        }
        self.write_own("SOAPAction", out);
        if !self.cookies.is_empty() && self.has_none_of("cookie") {
            write_header(out, "Cookie", self.cookies);
        }
        let is_placed = |name: &str| PLACED.iter().any(|one| one.eq_ignore_ascii_case(name));
        for (name, value) in self.headers.iter().filter(|(name, _)| !is_placed(name)) {
            if is_token(name.as_bytes()) && !name.eq_ignore_ascii_case("transfer-encoding") {
                write_header(out, name, value);
            }
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(body);
    }

    fn write_line(&self, out: &mut Vec<u8>) {
        let method = if is_token(self.method.as_bytes()) { self.method } else { "GET" };
        out.extend_from_slice(method.as_bytes());
        out.push(b' ');
        if self.target.is_empty() {
            out.push(b'/');
        }
        let is_sent = |byte: &u8| self.tsung && !byte.is_ascii();
        for part in self.target.chunk_by(|a, b| is_sent(a) == is_sent(b)) {
            if part.first().is_some_and(is_sent) {
                out.extend_from_slice(part);
                continue;
            }
            out.extend(percent_encode(part, &TARGET).flat_map(str::bytes));
        }
        let version: &[u8] = if self.version_1_0 { b" HTTP/1.0\r\n" } else { b" HTTP/1.1\r\n" };
        out.extend_from_slice(version);
    }

    fn write_host(&self, out: &mut Vec<u8>) {
        let (open, close): (&[u8], &[u8]) =
            if self.host.contains(':') { (b"[", b"]") } else { (b"", b"") };
        out.extend_from_slice(open);
        write_value(out, self.host.as_bytes());
        out.extend_from_slice(close);
        if let Some(port) = self.port {
            out.push(b':');
            out.extend_from_slice(itoa::Buffer::new().format(port).as_bytes());
        }
    }

    /// The first header of the scenario with this name.
    fn own(&self, wanted: &str) -> Option<&[u8]> {
        let is_it = |(name, _): &&(&str, &[u8])| name.eq_ignore_ascii_case(wanted);
        self.headers.iter().find(is_it).map(|(_, value)| *value)
    }

    /// Writes the scenario's header of this name in its fixed place, if there is one.
    fn write_own(&self, name: &str, out: &mut Vec<u8>) -> bool {
        let own = self.own(name);
        own.inspect(|value| write_header(out, name, value)).is_some()
    }

    /// Whether ours is sent: it is not replaced by one of the scenario.
    fn has_none_of(&self, name: &str) -> bool {
        self.tsung || self.own(name).is_none()
    }
}

fn write_header(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    write_value(out, value);
    out.extend_from_slice(b"\r\n");
}

fn write_value(out: &mut Vec<u8>, value: &[u8]) {
    let harmless = |byte: &u8| if is_control(*byte) { b' ' } else { *byte };
    out.extend(value.iter().map(harmless));
}

fn is_control(byte: u8) -> bool {
    (byte < b' ' && byte != b'\t') || byte == 0x7f
}

/// Whether a text is a token, as names of headers and methods are (RFC 9110 §5.6.2).
pub fn is_token(text: &[u8]) -> bool {
    let is_tchar = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_tchar)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(request: &Request<'_>) -> String {
        let mut out = Vec::new();
        request.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    const PLAIN: Request<'static> = Request {
        method: "GET",
        target: b"/a?b=c",
        host: "example.org",
        port: None,
        version_1_0: false,
        keep_alive: true,
        user_agent: None,
        headers: &[],
        cookies: b"",
        authorization: None,
        body: None,
        tsung: false,
    };

    #[test]
    fn minimal_request_has_only_the_required_headers() {
        assert_eq!(written(&PLAIN), "GET /a?b=c HTTP/1.1\r\nHost: example.org\r\n\r\n");
        let closing = Request { keep_alive: false, ..PLAIN };
        assert_eq!(
            written(&closing),
            "GET /a?b=c HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n"
        );
    }

    #[test]
    fn http_1_0_closes_the_connection_by_default() {
        let old = Request { version_1_0: true, keep_alive: false, ..PLAIN };
        assert_eq!(written(&old), "GET /a?b=c HTTP/1.0\r\nHost: example.org\r\n\r\n");
        let kept = Request { version_1_0: true, ..PLAIN };
        assert!(written(&kept).contains("\r\nConnection: keep-alive\r\n"));
    }

    #[test]
    fn full_request_has_its_headers_in_order() {
        let full = Request {
            method: "POST",
            target: b"",
            host: "::1",
            port: Some(4000),
            user_agent: Some("UA-A/1"),
            headers: &[("X-Sub", b"a\tb"), ("Content-Type", b"text/plain")],
            cookies: b"a=1; b=2",
            authorization: Some("Basic eDp5"),
            body: Some(b"hello"),
            ..PLAIN
        };
        let wanted = "POST / HTTP/1.1\r\nHost: [::1]:4000\r\nUser-Agent: UA-A/1\r\n\
            Content-Type: text/plain\r\nContent-Length: 5\r\nAuthorization: Basic eDp5\r\n\
            Cookie: a=1; b=2\r\nX-Sub: a\tb\r\n\r\nhello";
        assert_eq!(written(&full), wanted);
    }

    #[test]
    fn scenario_headers_replace_default_headers() {
        let own = Request {
            user_agent: Some("ours"),
            cookies: b"ours=1",
            authorization: Some("ours"),
            headers: &[
                ("host", b"other"),
                ("USER-AGENT", b"theirs"),
                ("cookie", b"theirs=1"),
                ("authorization", b"theirs"),
                ("connection", b"close"),
                ("content-length", b"7"),
                ("Transfer-Encoding", b"chunked"),
            ],
            ..PLAIN
        };
        let wanted = "GET /a?b=c HTTP/1.1\r\nHost: other\r\nUser-Agent: theirs\r\n\
            cookie: theirs=1\r\nauthorization: theirs\r\nconnection: close\r\n\r\n";
        assert_eq!(written(&own), wanted);
    }

    #[test]
    fn content_length_is_sent_only_if_required() {
        let length = |method: &'static str, body| {
            let text = written(&Request { method, body, ..PLAIN });
            text.split("Content-Length: ")
                .nth(1)
                .map(|rest| rest.split('\r').next().unwrap().to_owned())
        };
        assert_eq!(length("GET", None), None);
        assert_eq!(length("POST", None).as_deref(), Some("0"));
        assert_eq!(length("PUT", None).as_deref(), Some("0"));
        assert_eq!(length("DELETE", None), None);
        assert_eq!(length("GET", Some(&[0x20; 1234][..])).as_deref(), Some("1234"));
    }

    #[test]
    fn request_values_cannot_inject_lines() {
        let evil = Request {
            method: "GET / HTTP/1.1\r\nX:",
            target: "/a b\r\nX: 1\u{e9}%20".as_bytes(),
            host: "h\r\nx",
            headers: &[("X", b"1\r\nY: 2\0"), ("bad name", b"3"), ("", b"4"), ("a:b", b"5")],
            ..PLAIN
        };
        let wanted =
            "GET /a%20b%0D%0AX:%201%C3%A9%20 HTTP/1.1\r\nHost: h  x\r\nX: 1  Y: 2 \r\n\r\n";
        assert_eq!(written(&evil), wanted);
    }
}
