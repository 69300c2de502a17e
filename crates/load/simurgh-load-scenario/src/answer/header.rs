//! Finds headers, and fields of headers.

use simurgh_load_client::http::{header_values, params};

/// A compiled [`crate::Find::Header`]: a header, or one field of it.
#[derive(Clone, Debug)]
pub(super) struct HeaderPath {
    name: String,
    field: Option<String>,
}

impl HeaderPath {
    pub(super) fn new(text: &str) -> Result<Self, String> {
        let (name, field) = match text.split_once('/') {
            Some((name, field)) => (name, Some(field)),
            None => (text, None),
        };
        if name.trim().is_empty() || field.is_some_and(|field| field.trim().is_empty()) {
            return Err(format!("'{text}' names no header: write 'location' or 'set-cookie/id'"));
        }
        Ok(Self { name: name.trim().to_owned(), field: field.map(|field| field.trim().to_owned()) })
    }

    pub(super) fn find(&self, head: &[u8]) -> Vec<String> {
        let values = header_values(head, &self.name).map(unfolded);
        match &self.field {
            None => values.collect(),
            Some(field) => values.filter_map(|value| self.field_of(&value, field)).collect(),
        }
    }

    fn field_of(&self, value: &str, field: &str) -> Option<String> {
        let is_challenge = ["www-authenticate", "proxy-authenticate", "authentication-info"]
            .iter()
            .any(|name| self.name.eq_ignore_ascii_case(name));
        let (value, separator) = match is_challenge {
            // The scheme comes before the first field.
            true => (without_scheme(value), b','),
            false => (value, b';'),
        };
        let mut found = None;
        for (name, value) in params(value, separator) {
            if name == field {
                return Some(value);
            }
            if found.is_none() && name.eq_ignore_ascii_case(field) {
                found = Some(value);
            }
        }
        found
    }
}

/// A value on one line.
fn unfolded(value: &[u8]) -> String {
    String::from_utf8_lossy(value).lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

fn without_scheme(value: &str) -> &str {
    match value.trim_start().split_once(' ') {
        Some((scheme, rest)) if !scheme.contains('=') => rest,
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"HTTP/1.1 200 a: b\r\nContent-Type: text/html; charset=\"utf-8\"\r\n\
        Set-Cookie: sid=abc=; Path=/; Expires=Thu, 01 Jan 2031 00:00:00 GMT\r\n\
        set-cookie: SID=2;HttpOnly\r\nX-Empty:\r\n\
        WWW-Authenticate: Digest realm=\"a, b\", nonce=\"n1\"\r\n\
        Authentication-Info: nextnonce=\"n2\", qop=auth\r\nLocation: /next?a=b;c\r\n\r\n";

    #[test]
    fn response_headers_and_their_fields_are_found() {
        let table: [(&str, &[&str]); 14] = [
            ("location", &["/next?a=b;c"]),
            ("LOCATION", &["/next?a=b;c"]),
            ("content-type", &["text/html; charset=\"utf-8\""]),
            ("content-type/charset", &["utf-8"]),
            ("set-cookie/sid", &["abc=", "2"]),
            ("set-cookie/SID", &["abc=", "2"]),
            ("set-cookie/expires", &["Thu, 01 Jan 2031 00:00:00 GMT"]),
            ("set-cookie/HttpOnly", &[""]),
            ("www-authenticate/realm", &["a, b"]),
            ("www-authenticate/nonce", &["n1"]),
            ("authentication-info/nextnonce", &["n2"]),
            ("x-empty", &[""]),
            ("x-none", &[]),
            ("http/1.1 200 a", &[]),
        ];
        for (path, wanted) in table {
            assert_eq!(HeaderPath::new(path).unwrap().find(HEAD), wanted, "{path}");
        }
        let folded = b"HTTP/1.1 200 OK\r\nX-A: a\r\n\tX-B: b\r\n  c\r\nX-D: d\r\n\r\n";
        for (path, wanted) in [("x-a", &["a X-B: b c"][..]), ("x-b", &[]), ("x-d", &["d"])] {
            assert_eq!(HeaderPath::new(path).unwrap().find(folded), wanted, "{path}");
        }
        assert!(HeaderPath::new("").is_err() && HeaderPath::new("a/").is_err());
    }
}
