//! `<http>` and its children.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use simurgh_load_scenario::{Act, Answer, Http, HttpAuth, Step, Template, Url};

use super::requests::Subst;
use super::templates::latin1;
use super::{Lower, given};
use crate::subst;
use crate::xml::Element;

const CONTENT_TYPE: &str = "application/x-www-form-urlencoded";

impl Lower<'_> {
    pub(super) fn http(
        &mut self,
        element: &Element,
        subst: Subst,
        answer: Answer,
        steps: &mut Vec<Step>,
    ) {
        if let Some(oauth) = element.children_named("oauth").next() {
            let what = "<oauth> is not supported";
            return self.wrong(oauth.line, what, "sign the request beforehand");
        }
        let method = element.value("method").unwrap_or("GET").to_owned();
        let Some(url) = self.url(element, subst) else { return };
        let body = self.body(element, subst, &method);
        let mut headers = self.headers(element, subst);
        if let Some(server) = self.session.server.as_deref().filter(|_| self.options.proxy) {
            let host = server.split_once("://").map_or(server, |(_, host)| host);
            headers.push(("Host".to_owned(), Template::literal(host)));
        }
        let has = |headers: &[(String, Template)], wanted: &str| {
            headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted))
        };
        if body.is_some() && !has(&headers, "content-type") {
            let text = given(element, "content_type").unwrap_or(CONTENT_TYPE);
            let line = element.line_of("content_type");
            headers.push(("Content-Type".to_owned(), self.template(text, subst.head, line)));
        } else if body.is_none() {
            self.ignore(element, "content_type", "there is no body");
        }
        if let Some(date) = given(element, "if_modified_since") {
            let line = element.line_of("if_modified_since");
            headers.push(("If-Modified-Since".to_owned(), self.template(date, subst.head, line)));
        }
        if let Some(soap) = element.children_named("soap").next() {
            let action = format!("\"{}\"", soap.value("action").unwrap_or_default());
            headers.push(("SOAPAction".to_owned(), self.template(&action, subst.head, soap.line)));
        }
        let cookies = self.cookies(element, subst);
        let auth = element.children_named("www_authenticate").next();
        let auth = auth.map(|auth| self.auth(auth, subst));
        let version_1_0 = element.value("version") == Some("1.0");
        let status = Vec::new();
        let http = Http { method, url, version_1_0, headers, body, cookies, auth, status, answer };
        steps.push(Step { line: element.line, act: Act::Http(Box::new(http)) });
    }

    /// The URL, with `--map` applied; a new server is added.
    fn url(&mut self, element: &Element, subst: Subst) -> Option<Template> {
        // A blank would end the URL.
        let url = self.wanted(element, "url").replace(' ', "%20");
        let line = element.line_of("url");
        if self.options.proxy {
            let url = self.proxied(url, line)?;
            return Some(self.template(&url, subst.head, line));
        }
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let scheme = scheme.to_ascii_lowercase();
        let tls = scheme == "https";
        if !tls && scheme != "http" {
            return Some(self.template(&url, subst.head, line));
        }
        let server = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if subst.head && server.contains("%%") {
            let what = "the server of this `url` is known only during the run";
            self.warn(line, what, "it must then be one that the file names elsewhere");
            return Some(self.template(&url, true, line));
        }
        let Ok(parsed) = Url::parse(&url) else {
            let what = format!("`url` of <http> names no server: \"{url}\"");
            return self.refuse(line, what, "for example http://127.0.0.1:8080/path");
        };
        let target = self.other_server(parsed.host, parsed.port, tls, line)?;
        let target = self.servers.targets.get(target)?;
        let port = target.address.port();
        let host = if target.host.contains(':') {
            format!("[{}]", target.host)
        } else {
            target.host.clone()
        };
        let credentials = parsed.credentials.map_or(String::new(), |user| format!("{user}@"));
        let usual = if tls { 443 } else { 80 };
        let port = if port == usual { String::new() } else { format!(":{port}") };
        let url = format!("{scheme}://{credentials}{host}{port}{}", parsed.target);
        Some(self.template(&url, subst.head, line))
    }

    /// The whole URL for a proxy; without a server, it has that of the session's last one.
    fn proxied(&mut self, url: String, line: u32) -> Option<String> {
        if url.starts_with("http") {
            let after = url.find("://").map_or(url.len(), |at| at + 3);
            let rest = url.get(after..).unwrap_or_default();
            let end = after + rest.find(['/', '?', '#']).unwrap_or(rest.len());
            self.session.server = url.get(..end).map(ToOwned::to_owned);
            return Some(url);
        }
        if let Some(server) = &self.session.server {
            return Some(format!("{server}{url}"));
        }
        let what = format!("`url` of <http> names no server for the proxy: \"{url}\"");
        self.refuse(line, what, "begin with a whole URL, for example http://example.org/")
    }

    fn body(&mut self, element: &Element, subst: Subst, method: &str) -> Option<Template> {
        if matches!(method, "GET" | "HEAD" | "OPTIONS") {
            for name in ["contents", "contents_from_file"] {
                self.ignore(element, name, "GET, HEAD and OPTIONS have no body, as in Tsung");
            }
            return None;
        }
        if let Some(file) = given(element, "contents_from_file") {
            let line = element.line_of("contents_from_file");
            let bytes = self.file(file, line)?;
            let text: String = bytes.into_iter().map(char::from).collect();
            return Some(self.bytes_template(&text, subst.body, line));
        }
        let contents = element.value("contents").unwrap_or_default();
        Some(self.template(contents, subst.body, element.line_of("contents")))
    }

    pub(super) fn headers(&mut self, element: &Element, subst: Subst) -> Vec<(String, Template)> {
        let mut headers = Vec::new();
        for header in element.children_named("http_header") {
            let name = self.wanted(header, "name").to_owned();
            let line = header.line_of("value");
            let value = header.value("value").unwrap_or_default();
            if name.contains([':', ' ', '\r', '\n']) || value.contains(['\r', '\n']) {
                let what = format!("<http_header> `{name}` is not a header");
                self.wrong(header.line, what, "neither name nor value may hold a line break");
                continue;
            }
            let value = match header.value("encoding") {
                None | Some("none" | "") => self.template(value, subst.head, line),
                Some("base64") => {
                    if subst.head && subst::pieces(value).0.len() > 1 {
                        let what = "<http_header> in base64 with a variable in it is not supported";
                        self.wrong(header.line_of("encoding"), what, "");
                    }
                    let bytes = latin1(value).unwrap_or_else(|| value.as_bytes().to_vec());
                    Template::literal(&STANDARD.encode(bytes))
                }
                Some(other) => {
                    let what = format!("`encoding` of <http_header> cannot be \"{other}\"");
                    self.wrong(header.line_of("encoding"), what, "one of: none, base64");
                    continue;
                }
            };
            headers.push((name, value));
        }
        in_order(headers, subst)
    }

    fn cookies(&mut self, element: &Element, subst: Subst) -> Vec<(String, Template)> {
        let mut cookies = Vec::new();
        for cookie in element.children_named("add_cookie") {
            let key = self.wanted(cookie, "key").to_owned();
            for name in ["domain", "path"] {
                self.ignore(cookie, name, "the cookie is sent with this request");
            }
            let value = cookie.value("value").unwrap_or_default();
            cookies.push((key, self.template(value, subst.head, cookie.line_of("value"))));
        }
        in_order(cookies, subst)
    }

    fn auth(&mut self, auth: &Element, subst: Subst) -> HttpAuth {
        for name in ["cnonce", "nc"] {
            self.ignore(auth, name, "it is made anew for each request");
        }
        let digest = auth.value("type") == Some("digest");
        let (user, password) = (self.wanted(auth, "userid"), self.wanted(auth, "passwd"));
        let user = self.template(user, subst.head, auth.line_of("userid"));
        let password = self.template(password, subst.head, auth.line_of("passwd"));
        let mut field = |name: &str| {
            if !digest {
                self.ignore(auth, name, "it is for type=\"digest\"");
                return None;
            }
            let value = given(auth, name)?;
            Some(self.template(value, subst.head, auth.line_of(name)))
        };
        let (realm, nonce, opaque) = (field("realm"), field("nonce"), field("opaque"));
        let qop = given(auth, "qop").map(ToOwned::to_owned);
        if qop.as_deref().is_some_and(|qop| qop.contains("%%")) {
            let what = "`qop` of <www_authenticate> with a variable in it is not supported";
            self.wrong(auth.line_of("qop"), what, "write `auth`");
        }
        HttpAuth { digest, user, password, realm, nonce, opaque, qop }
    }
}

/// In the order of Tsung: reversed, except where values are put in.
fn in_order<T>(mut all: Vec<T>, subst: Subst) -> Vec<T> {
    if !subst.head {
        all.reverse();
    }
    all
}
