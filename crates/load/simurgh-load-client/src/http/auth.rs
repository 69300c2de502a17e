//! Credentials: basic (RFC 7617) and digest with MD5 (RFC 7616).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::md5_hex;

/// The value of an `Authorization` header with a user and a password (RFC 7617 §2).
#[must_use]
pub fn basic(user: &[u8], password: &[u8]) -> String {
    let pair = [user, b":", password].concat();
    format!("Basic {}", STANDARD.encode(pair))
}

/// The fields of `WWW-Authenticate: Digest` (RFC 7616 §3.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Challenge {
    /// Name of the protected area.
    pub realm: String,
    /// The server's nonce.
    pub nonce: String,
    /// Sent back unchanged.
    pub opaque: Option<String>,
    /// The server offers `qop=auth`; without it the form of RFC 2069 is used.
    pub qop_auth: bool,
    /// `algorithm=MD5-sess`, in place of `MD5`.
    pub session: bool,
    /// Only the nonce was too old: the password is right, the request is to be repeated.
    pub stale: bool,
}

impl Challenge {
    /// Reads the value of one `WWW-Authenticate` header. `None`: not a digest challenge that MD5
    /// can answer (another scheme, another algorithm, `qop=auth-int` alone).
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(value);
        let text = text.trim_start();
        let scheme = text.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("digest "))?;
        let mut challenge = Self::default();
        let (mut is_md5, mut only_other_qop) = (true, false);
        for (name, value) in params(text.get(scheme.len()..)?, b',') {
            match name.to_ascii_lowercase().as_str() {
                "realm" => challenge.realm = value,
                "nonce" => challenge.nonce = value,
                "opaque" => challenge.opaque = Some(value),
                "stale" => challenge.stale = value.eq_ignore_ascii_case("true"),
                "algorithm" => {
                    challenge.session = value.eq_ignore_ascii_case("md5-sess");
                    is_md5 = challenge.session || value.eq_ignore_ascii_case("md5");
                }
                "qop" => {
                    let mut offered = value.split(',');
                    challenge.qop_auth = offered.any(|qop| qop.trim().eq_ignore_ascii_case("auth"));
                    only_other_qop = !challenge.qop_auth;
                }
                _ => {}
            }
        }
        (is_md5 && !only_other_qop && !challenge.nonce.is_empty()).then_some(challenge)
    }
}

/// The `name=value` pairs of a header's value, unquoted, separated by `separator`.
///
/// Lenient: a pair without `=` has an empty value, and an open quote reaches to the end.
pub fn params(text: &str, separator: u8) -> impl Iterator<Item = (&str, String)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches([separator as char, ' ', '\t']);
        if rest.is_empty() {
            return None;
        }
        let (pair, after) = rest.split_at(end_of_pair(rest.as_bytes(), separator));
        rest = after;
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((name.trim(), unquoted(value.trim())))
    })
}

fn end_of_pair(bytes: &[u8], separator: u8) -> usize {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            byte if *byte == separator && !quoted => return at,
            _ => {}
        }
    }
    bytes.len()
}

fn unquoted(value: &str) -> String {
    let Some(inner) = value.strip_prefix('"') else { return value.to_owned() };
    let inner = inner.strip_suffix('"').unwrap_or(inner);
    let mut out = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(char) = chars.next() {
        out.extend(if char == '\\' { chars.next() } else { Some(char) });
    }
    out
}

/// The inputs of a digest response.
#[derive(Clone, Copy, Debug)]
pub struct DigestAnswer<'a> {
    /// The server's challenge.
    pub challenge: &'a Challenge,
    /// The user.
    pub user: &'a str,
    /// The password; not sent.
    pub password: &'a [u8],
    /// The request's method.
    pub method: &'a str,
    /// The request's target, as in the request line.
    pub target: &'a str,
    /// How often this nonce has been used, including this time: 1 and up.
    pub count: u32,
    /// The client's nonce; random, in any printable form without quotes.
    pub cnonce: &'a str,
}

impl DigestAnswer<'_> {
    /// The value of the `Authorization` header (RFC 7616 §3.4).
    #[must_use]
    pub fn header(&self) -> String {
        let Self { challenge, user, target, cnonce, .. } = *self;
        let mut value = format!(
            "Digest username={}, realm={}, nonce={}, uri={}, response=\"{}\"",
            quoted(user),
            quoted(&challenge.realm),
            quoted(&challenge.nonce),
            quoted(target),
            self.response(),
        );
        if challenge.session {
            value.push_str(", algorithm=MD5-sess");
        }
        if let Some(opaque) = &challenge.opaque {
            value.push_str(", opaque=");
            value.push_str(&quoted(opaque));
        }
        if challenge.qop_auth {
            value.push_str(&format!(", qop=auth, nc={:08x}", self.count));
        }
        if challenge.qop_auth || challenge.session {
            value.push_str(&format!(", cnonce={}", quoted(cnonce)));
        }
        value
    }

    fn response(&self) -> String {
        let Self { challenge, user, password, method, target, count, cnonce } = *self;
        let Challenge { realm, nonce, .. } = challenge;
        let secret = [user.as_bytes(), b":", realm.as_bytes(), b":", password].concat();
        let mut secret = md5_hex(&secret);
        if challenge.session {
            secret = md5_hex(format!("{secret}:{nonce}:{cnonce}").as_bytes());
        }
        let request = md5_hex(format!("{method}:{target}").as_bytes());
        let all = match challenge.qop_auth {
            true => format!("{secret}:{nonce}:{count:08x}:{cnonce}:auth:{request}"),
            false => format!("{secret}:{nonce}:{request}"),
        };
        md5_hex(all.as_bytes())
    }
}

/// Quotes a text; characters that would end or forge the header are replaced.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            char if char.is_control() => out.push(' '),
            char => out.push(char),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn basic_auth_matches_the_example_of_rfc_7617() {
        assert_eq!(basic(b"Aladdin", b"open sesame"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert_eq!(basic(b"test", "123\u{a3}".as_bytes()), "Basic dGVzdDoxMjPCow==");
    }

    #[test]
    fn digest_auth_matches_the_example_of_rfc_7616_3_9_1() {
        let challenge = Challenge::parse(
            br#"Digest realm="http-auth@example.org", qop="auth, auth-int", algorithm=MD5,
            nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v",
            opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS""#,
        )
        .unwrap();
        let answer = DigestAnswer {
            challenge: &challenge,
            user: "Mufasa",
            password: b"Circle of Life",
            method: "GET",
            target: "/dir/index.html",
            count: 1,
            cnonce: "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ",
        };
        let header = answer.header();
        assert!(header.contains(r#"response="8ca523f5e9506fed4657c9700eebdbec""#), "{header}");
        assert!(header.contains("qop=auth, nc=00000001, cnonce="), "{header}");
        assert!(header.contains(r#"opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS""#));
    }

    #[test]
    fn digest_auth_matches_the_examples_of_rfc_2617_and_rfc_2069() {
        let mut challenge = Challenge {
            realm: "testrealm@host.com".to_owned(),
            nonce: "dcd98b7102dd2f0e8b11d0f600bfb0c093".to_owned(),
            opaque: Some("5ccc069c403ebaf9f0171e9517f40e41".to_owned()),
            qop_auth: true,
            ..Challenge::default()
        };
        let answer = |challenge: &Challenge, password: &[u8]| {
            let (user, method, target) = ("Mufasa", "GET", "/dir/index.html");
            DigestAnswer { challenge, user, password, method, target, count: 1, cnonce: "0a4f113b" }
                .header()
        };
        let with_qop = answer(&challenge, b"Circle Of Life");
        assert!(with_qop.contains("6629fae49393a05397450978507c4ef1"), "{with_qop}");
        challenge.qop_auth = false;
        let without = answer(&challenge, b"CircleOfLife");
        // The erratum of RFC 2069 §2.4.
        assert!(without.contains("1949323746fe6a43ef61f9606e7febea"), "{without}");
        assert!(!without.contains("nc=") && !without.contains("cnonce"), "{without}");
    }

    #[test]
    fn only_digest_challenges_with_md5_are_accepted() {
        let parse = |text: &str| Challenge::parse(text.as_bytes());
        assert!(parse(r#"DIGEST nonce="n", stale=TRUE"#).unwrap().stale);
        assert!(parse(r#"Digest nonce=n, algorithm="MD5-sess""#).unwrap().session);
        let odd = parse(r#"Digest realm="a, \"b\" = c", nonce="n=="#).unwrap();
        assert_eq!((odd.realm.as_str(), odd.nonce.as_str()), (r#"a, "b" = c"#, "n=="));
        for none in [
            "",
            "Basic realm=x",
            "Digest",
            "Digest realm=x",
            "Digest nonce=n, algorithm=SHA-256",
            "Digest nonce=n, qop=auth-int",
            "Digestnonce=n",
        ] {
            assert_eq!(parse(none), None, "{none}");
        }
    }

    #[test]
    fn user_name_cannot_inject_a_header() {
        let challenge = Challenge { nonce: "n".to_owned(), ..Challenge::default() };
        let answer = DigestAnswer {
            challenge: &challenge,
            user: "a\"\r\nx: y\\",
            password: b"",
            method: "GET",
            target: "/",
            count: 1,
            cnonce: "",
        };
        let header = answer.header();
        assert!(header.starts_with(r#"Digest username="a\"  x: y\\", "#), "{header}");
    }
}
