//! The page from outside: HTTP over a socket.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_types)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use simurgh::Endpoint;

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(other, _)| *other == name).map(|(_, value)| value).next()
    }

    fn cookie(&self) -> String {
        self.header("set-cookie").unwrap().split(';').next().unwrap().to_owned()
    }

    fn token(&self) -> &str {
        let (_, rest) = self.body.split_once("name=\"csrf-token\" content=\"").unwrap();
        rest.split('"').next().unwrap()
    }
}

fn server() -> Endpoint {
    Endpoint::builder().http(hello_page::router()).listen("127.0.0.1:0").start().unwrap()
}

fn ask(server: &Endpoint, request: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(server.addresses()[0]).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let length = match body {
        "" => String::new(),
        body => format!("content-length: {}\r\n", body.len()),
    };
    let (line, headers) = request.split_once('\n').unwrap_or((request, ""));
    let head = format!("{line} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}{length}\r\n");
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

#[test]
fn page_is_complete_and_has_the_expected_size() {
    let server = server();
    let page = ask(&server, "GET /", "");
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!((2_300..2_500).contains(&page.body.len()), "{} bytes", page.body.len());
    let text = &page.body;
    for part in [
        "<!DOCTYPE html>",
        "<title>Hello · Simurgh</title>",
        "<a href=\"/\" aria-current=\"page\">Home</a>",
        "<h1>",
        "load &#38; measures",
        "<footer",
        "</html>",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains("class=\"flash\""), "nothing to say yet");
    assert!(!text.contains("http://") && !text.contains("https://"), "nothing from elsewhere");
}

#[test]
fn page_has_cache_and_security_headers() {
    let server = server();
    let page = ask(&server, "GET /", "");
    for (name, value) in [
        ("cache-control", "max-age=0, private, must-revalidate"),
        ("x-frame-options", "DENY"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "strict-origin-when-cross-origin"),
    ] {
        assert_eq!(page.header(name), Some(value), "{name}");
    }
    assert!(page.header("content-security-policy").unwrap().contains("frame-ancestors 'none'"));
    let id = page.header("x-request-id").unwrap();
    assert_eq!(id.len(), 20);
    assert_ne!(ask(&server, "GET /", "").header("x-request-id"), Some(id));
    let given = "a-request-id-of-a-proxy";
    let page = ask(&server, &format!("GET /\nx-request-id: {given}\r\n"), "");
    assert_eq!(page.header("x-request-id"), Some(given));
}

/// Two requests get two pages: the token is masked anew.
#[test]
fn page_is_rendered_anew_for_each_request() {
    let server = server();
    let first = ask(&server, "GET /", "");
    let again = ask(&server, &format!("GET /\ncookie: {}\r\n", first.cookie()), "");
    assert_eq!(again.header("set-cookie"), None, "the session is there already");
    assert_ne!(first.token(), again.token());
    assert_eq!(first.body.len(), again.body.len());
}

#[test]
fn form_of_this_session_is_accepted_and_flash_is_shown_once() {
    let server = server();
    let page = ask(&server, "GET /", "");
    let form = format!("_csrf_token={}&name=Ada+%3Cb%3E", page.token());
    let sent = ask(&server, &format!("POST /greeting\ncookie: {}\r\n", page.cookie()), &form);
    assert_eq!((sent.status, sent.header("location")), (303, Some("/")));
    let shown = ask(&server, &format!("GET /\ncookie: {}\r\n", sent.cookie()), "");
    let flash = "<p class=\"flash\" role=\"status\">Hello, Ada &#60;b&#62;!</p>";
    assert!(shown.body.contains(flash), "{}", shown.body);
    let after = ask(&server, &format!("GET /\ncookie: {}\r\n", shown.cookie()), "");
    assert!(!after.body.contains("class=\"flash\""), "shown once");
}

#[test]
fn a_form_of_another_session_is_refused() {
    let server = server();
    let (mine, other) = (ask(&server, "GET /", ""), ask(&server, "GET /", ""));
    let form = format!("_csrf_token={}&name=x", other.token());
    let own = format!("POST /greeting\ncookie: {}\r\n", mine.cookie());
    assert_eq!(ask(&server, &own, &form).status, 403);
    assert_eq!(ask(&server, "POST /greeting", &form).status, 403, "no session");
    assert_eq!(ask(&server, &own, "name=x").status, 400, "no token");
    let forged = own.replace("_csrf_token=", "_csrf_token=A");
    assert_eq!(ask(&server, &forged, &form).status, 403, "a cookie that was changed");
}
