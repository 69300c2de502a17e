//! The handshake, with both roles against each other and with what real clients send.
use super::*;
use std::borrow::ToOwned;
use std::format;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// The request of RFC 6455 §1.2, its headers in the order and case given there.
const RFC_REQUEST: &str = "GET /chat HTTP/1.1\r\n\
    Host: server.example.com\r\n\
    Upgrade: websocket\r\n\
    Connection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Origin: http://example.com\r\n\
    Sec-WebSocket-Protocol: chat, superchat\r\n\
    Sec-WebSocket-Version: 13\r\n\r\n";

fn parse(head: &str) -> Request<'_> {
    let parsed = Request::parse(head.as_bytes(), &HeadLimits::default());
    let (request, head_bytes) = parsed.expect("well-formed").expect("whole");
    assert_eq!(head_bytes, head.len());
    request
}

fn get(target: &str, headers: &str) -> String {
    format!("GET {target} HTTP/1.1\r\n{headers}\r\n")
}

#[test]
fn rfc_6455_example_request_is_parsed_and_answered() {
    let request = parse(RFC_REQUEST);
    assert_eq!((request.method, request.path(), request.query()), ("GET", "/chat", ""));
    assert_eq!(request.header("ORIGIN"), Some(&b"http://example.com"[..]));
    assert_eq!(request.headers().count(), 7);
    let upgrade = Upgrade { key: KEY, expects_continue: false };
    assert_eq!(check_upgrade(&request), Ok(upgrade));
    assert_eq!(accept_key(KEY), ACCEPT.as_bytes());
    let mut out = b"before".to_vec();
    write_accept(&upgrade, Some("chat"), None, &mut out);
    let expected = format!(
        "beforeHTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-accept: {ACCEPT}\r\nsec-websocket-protocol: chat\r\n\r\n"
    );
    assert_eq!(String::from_utf8(out), Ok(expected));
}

#[test]
fn incomplete_request_head_needs_more_bytes() {
    let limits = HeadLimits::default();
    for cut in 0..RFC_REQUEST.len() {
        let parsed = Request::parse(&RFC_REQUEST.as_bytes()[..cut], &limits);
        assert!(matches!(parsed, Ok(None)), "cut at {cut}");
    }
    let more = format!("{RFC_REQUEST}\u{1}frames");
    let (_, head_bytes) = Request::parse(more.as_bytes(), &limits).unwrap().unwrap();
    assert_eq!(head_bytes, RFC_REQUEST.len());
}

#[test]
fn request_head_is_limited_in_bytes_and_headers() {
    let limits =
        HeadLimits { bytes_max: RFC_REQUEST.len(), headers_max: 7, ..HeadLimits::default() };
    let bytes = RFC_REQUEST.as_bytes();
    assert!(Request::parse(bytes, &limits).unwrap().is_some(), "both limits are inclusive");
    let short = HeadLimits { bytes_max: bytes.len() - 1, ..limits };
    assert!(Request::parse(&bytes[..bytes.len() - 2], &short).unwrap().is_none());
    for len in [bytes.len() - 1, bytes.len()] {
        let parsed = Request::parse(&bytes[..len], &short);
        assert_eq!(parsed.err(), Some(HeadError::TooLarge), "the same however it comes");
    }
    let few = HeadLimits { headers_max: 6, ..limits };
    assert_eq!(Request::parse(bytes, &few).err(), Some(HeadError::TooManyHeaders));
    assert_eq!(HeadError::TooManyHeaders.status(), 431);
    let many = HeadLimits { headers_max: usize::MAX, ..HeadLimits::default() };
    assert!(Request::parse(bytes, &many).unwrap().is_some());
    let hundred = get("/", &"a: b\r\n".repeat(100));
    assert!(Request::parse(hundred.as_bytes(), &many).unwrap().is_some());
    let more = get("/", &"a: b\r\n".repeat(101));
    assert_eq!(Request::parse(more.as_bytes(), &many).err(), Some(HeadError::TooManyHeaders));
}

#[test]
fn request_target_length_is_limited() {
    let limits = HeadLimits { target_bytes_max: 5, bytes_max: 40, ..HeadLimits::default() };
    assert!(Request::parse(get("/1234", "").as_bytes(), &limits).unwrap().is_some());
    let long = get("/12345", "");
    assert_eq!(Request::parse(long.as_bytes(), &limits).err(), Some(HeadError::TargetTooLong));
    // A line without an end, and a head without one.
    let line = "GET /".to_owned() + &"a".repeat(40);
    assert_eq!(Request::parse(line.as_bytes(), &limits).err(), Some(HeadError::TargetTooLong));
    let head = get("/", &"a: b\r\n".repeat(10));
    assert_eq!(Request::parse(head.as_bytes(), &limits).err(), Some(HeadError::TooLarge));
    assert_eq!(HeadError::TargetTooLong.status(), 414);
}

#[test]
fn line_feed_after_the_head_belongs_to_the_following_data() {
    for lines in ["", "\r\n\r\n"] {
        let head = format!("{lines}{}", get("/", "host: a\r\n"));
        let bytes = format!("{head}one\ntwo\n");
        let (_, length) =
            Request::parse(bytes.as_bytes(), &HeadLimits::default()).unwrap().unwrap();
        assert_eq!(length, head.len());
    }
}

#[test]
fn request_other_than_http_1_is_malformed() {
    let limits = HeadLimits::default();
    for bad in [
        "\u{16}\u{3}\u{1}\u{2}",
        "PRI * HTTP/2.0\r\n\r\n",
        "GET / HTTP/1.2\r\n\r\n",
        "GET /\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : h\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\nx: \u{1}\r\n\r\n",
        "GET / HTTP/1.1\nhost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\n",
        "GET / HTTP/1.1\r\nhost: a\rx: b\r\n\r\n",
        "\nGET / HTTP/1.1\r\n\r\n",
    ] {
        let parsed = Request::parse(bad.as_bytes(), &limits);
        assert_eq!(parsed.err(), Some(HeadError::Malformed), "{bad:?}");
    }
    assert_eq!(HeadError::Malformed.status(), 400);
}

/// A server that refused at the first wrong byte has answered already: if a later read changed the
/// answer, the status would depend on how the bytes were cut.
#[test]
fn refusal_stays_the_same_as_more_bytes_arrive() {
    let limits = HeadLimits { bytes_max: 200, headers_max: 4, target_bytes_max: 20 };
    let headers = "a: b\r\n".repeat(5);
    let long = "x".repeat(200);
    for (head, refusal) in [
        (format!("GET / HTTP/1.1\r\n{headers}b: c\n"), HeadError::TooManyHeaders),
        (format!("GET / HTTP/1.1\r\n{headers}\r\n"), HeadError::TooManyHeaders),
        (format!("GET / HTTP/1.1\r\na: b\n{headers}"), HeadError::Malformed),
        (format!("GET / HTTP/1.1\r\nx: {long}\n{headers}"), HeadError::TooLarge),
        (format!("GET / HTTP/1.1\r\na: b\n{long}"), HeadError::Malformed),
        (format!("GET /{long} HTTP/1.1\na: b\r\n"), HeadError::TargetTooLong),
        (format!("GET /{} HTTP/1.1\r\na\n", "x".repeat(20)), HeadError::Malformed),
        (format!("GET /{} HTTP/1.1\r\n\r\n\n", "x".repeat(20)), HeadError::TargetTooLong),
        ("\r\n\nGET / HTTP/1.1\r\n\r\n".to_owned(), HeadError::Malformed),
    ] {
        let verdict = |cut: usize| Request::parse(&head.as_bytes()[..cut], &limits).err();
        let first = (0..=head.len()).find_map(verdict);
        assert_eq!(first, Some(refusal), "{head:?}");
        let refused = (0..=head.len()).map(verdict).skip_while(Option::is_none);
        assert!(refused.into_iter().all(|next| next == first), "{head:?}");
    }
}

#[test]
fn target_is_split_into_path_and_query() {
    for (target, path, query) in [
        ("/socket/websocket?vsn=2.0.0&a=b", "/socket/websocket", "vsn=2.0.0&a=b"),
        ("/", "/", ""),
        ("/a?", "/a", ""),
        ("/a?b?c", "/a", "b?c"),
        ("/a?u=http://h/x", "/a", "u=http://h/x"),
        ("/http://h/x", "/http://h/x", ""),
        ("http://h:80/a/b?c", "/a/b", "c"),
        ("ws://h?c", "/", "c"),
        ("https://h", "/", ""),
        ("*", "*", ""),
    ] {
        let head = get(target, "");
        let request = parse(&head);
        assert_eq!((request.path(), request.query()), (path, query), "{target}");
    }
}

#[test]
fn list_values_span_all_headers_of_a_name() {
    let head = get("/", "X: a,, b\r\ny: z\r\nx:\r\nx: c ,\td\r\n");
    let request = parse(&head);
    assert_eq!(request.header_tokens("x").collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    assert_eq!(request.header("x"), Some(&b"a,, b"[..]));
    assert_eq!(request.header("none"), None);
}

#[test]
fn incomplete_upgrade_error_names_the_missing_part() {
    let whole = [
        "Host: h",
        "Upgrade: WebSocket",
        "Connection: keep-alive, Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ];
    let check = |start: &str, lines: &[&str]| {
        let head = format!("{start}\r\n{}\r\n\r\n", lines.join("\r\n"));
        check_upgrade(&parse(&head)).map(|upgrade| upgrade.key.to_owned())
    };
    assert_eq!(check("GET / HTTP/1.1", &whole), Ok(KEY.to_owned()));
    assert_eq!(check("POST / HTTP/1.1", &whole), Err(UpgradeError::Method));
    assert_eq!(check("get / HTTP/1.1", &whole), Err(UpgradeError::Method));
    assert_eq!(check("GET / HTTP/1.0", &whole), Err(UpgradeError::Version));
    let lacks = [
        UpgradeError::Host,
        UpgradeError::Upgrade,
        UpgradeError::Connection,
        UpgradeError::WebSocketVersion,
        UpgradeError::Key,
    ];
    for (line, lack) in lacks.into_iter().enumerate() {
        let mut lines = whole.to_vec();
        lines.remove(line);
        assert_eq!(check("GET / HTTP/1.1", &lines), Err(lack));
        assert_eq!(lack.status(), 400);
    }
    for (line, bad, lack) in [
        (0, "Host: a\r\nHost: b", UpgradeError::Host),
        (1, "Upgrade: h2c", UpgradeError::Upgrade),
        (2, "Connection: keep-alive", UpgradeError::Connection),
        (3, "Sec-WebSocket-Version: 8", UpgradeError::WebSocketVersion),
        (4, "Sec-WebSocket-Key:", UpgradeError::Key),
        (4, "Sec-WebSocket-Key: c2hvcnQ=", UpgradeError::Key),
        (4, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ", UpgradeError::Key),
        (4, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZSEh", UpgradeError::Key),
        (4, "Sec-WebSocket-Key: !!!!!!!!!!!!!!!!!!!!!!==", UpgradeError::Key),
    ] {
        let mut lines = whole;
        lines[line] = bad;
        assert_eq!(check("GET / HTTP/1.1", &lines), Err(lack), "{bad}");
    }
}

fn offer(
    offered: &[&str],
    configured: &[&str],
    auth_token: bool,
) -> Result<(Option<String>, Option<String>), NoCommonSubprotocol> {
    let headers: Vec<String> =
        offered.iter().map(|value| format!("sec-websocket-protocol: {value}\r\n")).collect();
    let head = get("/", &headers.concat());
    let negotiated = negotiate(&parse(&head), configured, auth_token)?;
    Ok((negotiated.subprotocol.map(ToString::to_string), negotiated.token))
}

#[test]
fn first_configured_subprotocol_that_is_offered_wins() {
    let picked = |name: &str| Ok((Some(name.to_owned()), None));
    assert_eq!(offer(&["b, a"], &["a", "b"], false), picked("a"));
    assert_eq!(offer(&["b"], &["a", "b"], false), picked("b"));
    assert_eq!(offer(&["c", "b"], &["a", "b"], false), picked("b"));
    assert_eq!(offer(&[], &["a"], false), Ok((None, None)));
    assert_eq!(offer(&["x, y"], &[], false), Ok((None, None)), "no list: ignored");
    assert_eq!(offer(&["x, A"], &["a"], false), Err(NoCommonSubprotocol));
    assert_eq!(NoCommonSubprotocol.status(), 403);
}

#[test]
fn auth_token_is_extracted_from_the_offered_subprotocols() {
    let token = |offered: &str| offer(&[offered], &[], true);
    let phoenix = |token: &str| Ok((Some("phoenix".to_owned()), Some(token.to_owned())));
    // "a?~>b ÿ" needs both characters in which the two alphabets differ.
    for encoded in ["YT9-PmIgw78", "YT9+PmIgw78", "YT9+PmIgw78=", "YT9-PmIgw78="] {
        let offered = format!("phoenix, base64url.bearer.phx.{encoded}");
        assert_eq!(token(&offered), phoenix("a?~>b ÿ"), "{encoded}");
    }
    assert_eq!(token("base64url.bearer.phx.MTIz, phoenix"), phoenix("123"));
    assert_eq!(token("base64url.bearer.phx.MTIz"), Ok((None, Some("123".to_owned()))));
    assert_eq!(token("phoenix"), Ok((Some("phoenix".to_owned()), None)));
    assert_eq!(token("other"), Err(NoCommonSubprotocol));
    let two = "phoenix, base64url.bearer.phx.MTIz, base64url.bearer.phx.NDU2";
    assert_eq!(token(two), Ok((Some("phoenix".to_owned()), None)), "one of two is none");
    for bad in ["*", "YQ==YQ==", "_w", "A"] {
        let offered = format!("phoenix, base64url.bearer.phx.{bad}");
        assert_eq!(token(&offered), Ok((Some("phoenix".to_owned()), None)), "{bad}");
    }
    let off = offer(&["phoenix, base64url.bearer.phx.MTIz"], &["phoenix"], false);
    assert_eq!(off, Ok((Some("phoenix".to_owned()), None)), "not asked for, not read");
    let both = offer(&["mine, base64url.bearer.phx.MTIz"], &["mine"], true);
    assert_eq!(both, Ok((Some("mine".to_owned()), Some("123".to_owned()))));
}

#[test]
fn refusal_is_a_whole_response_safe_from_header_injection() {
    let mut out = Vec::new();
    let headers = [
        ("retry-after", "5"),
        ("x", "a\r\nset-cookie: forged"),
        ("y: forged\r\nz", "a"),
        ("", "a"),
    ];
    write_refusal(503, &headers, "full", &mut out);
    assert_eq!(
        String::from_utf8(out).as_deref(),
        Ok("HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 4\r\n\
            retry-after: 5\r\n\r\nfull")
    );
    let mut out = Vec::new();
    write_refusal(403, &[], "", &mut out);
    assert!(out.starts_with(b"HTTP/1.1 403 Forbidden\r\n"));
    assert!(out.ends_with(b"content-length: 0\r\n\r\n"));
}

#[test]
fn client_handshake_is_accepted_by_the_server() {
    let key = client_key(*b"the sample nonce");
    assert_eq!(key, KEY);
    let client = ClientRequest {
        host: "127.0.0.1:4000",
        target: "/socket/websocket?vsn=2.0.0",
        origin: Some("http://127.0.0.1:4000"),
        subprotocols: &["phoenix", "base64url.bearer.phx.MTIz"],
        key: &key,
        deflate: true,
        headers: &[("x-trace", "1"), ("x-bad", "a\nb")],
    };
    let mut sent = Vec::new();
    client.write(&mut sent);
    let sent = String::from_utf8(sent).unwrap();
    let request = parse(&sent);
    assert_eq!((request.target, request.headers().count()), (client.target, 9));
    let upgrade = check_upgrade(&request).unwrap();
    let negotiated = negotiate(&request, &[], true).unwrap();
    assert_eq!(negotiated.token.as_deref(), Some("123"));
    let mut answer = Vec::new();
    let deflate = accept_deflate(&request);
    write_accept(&upgrade, negotiated.subprotocol, deflate, &mut answer);
    for cut in 0..answer.len() {
        assert_eq!(check_response(&answer[..cut], &key, client.subprotocols, true), Ok(None));
    }
    let response = Response { status: 101, subprotocol: Some("phoenix"), deflate: true };
    let expected = (response, answer.len());
    answer.extend_from_slice(b"\x81\x00");
    assert_eq!(check_response(&answer, &key, client.subprotocols, true), Ok(Some(expected)));
    let not_offered = check_response(&answer, &key, client.subprotocols, false);
    assert_eq!(not_offered, Err(HandshakeError::Extension));
}

#[test]
fn client_rejects_invalid_handshake_responses() {
    let answer = |status: &str, lines: &[&str]| {
        format!("HTTP/1.1 {status}\r\n{}\r\n\r\n", lines.join("\r\n"))
    };
    let check = |answer: &str| {
        check_response(answer.as_bytes(), KEY, &["a"], true)
            .map(|done| done.map(|(response, _)| response.status))
    };
    let accept = format!("Sec-WebSocket-Accept: {ACCEPT}");
    let good = vec!["Upgrade: websocket", "Connection: Upgrade", accept.as_str()];
    assert_eq!(check(&answer("101 x", &good)), Ok(Some(101)));
    assert_eq!(check(&answer("403 Forbidden", &["content-length: 0"])), Ok(Some(403)));
    for (line, error) in
        [(0, HandshakeError::Upgrade), (1, HandshakeError::Connection), (2, HandshakeError::Accept)]
    {
        let mut lines = good.clone();
        lines.remove(line);
        assert_eq!(check(&answer("101 x", &lines)), Err(error));
    }
    for (extra, error) in [
        ("Sec-WebSocket-Extensions: permessage-deflate", HandshakeError::Extension),
        ("Sec-WebSocket-Extensions: x-webkit-deflate-frame", HandshakeError::Extension),
        ("Sec-WebSocket-Protocol: b", HandshakeError::Subprotocol),
        (accept.as_str(), HandshakeError::Accept),
    ] {
        let mut lines = good.clone();
        lines.push(extra);
        assert_eq!(check(&answer("101 x", &lines)), Err(error), "{extra}");
    }
    let other = answer("101 x", &good);
    assert_eq!(check_response(other.as_bytes(), "other", &[], false), Err(HandshakeError::Accept));
    assert_eq!(check("SSH-2.0-x\r\n"), Err(HandshakeError::Head(HeadError::Malformed)));
    let endless = format!("HTTP/1.1 101 x\r\nx: {}", "y".repeat(16 * 1024));
    assert_eq!(check(&endless), Err(HandshakeError::Head(HeadError::TooLarge)));
}

#[test]
fn first_acceptable_offer_of_deflate_is_accepted() {
    let answer = |offers: &[&str]| {
        let lines = offers.iter().map(|it| format!("Sec-WebSocket-Extensions: {it}\r\n"));
        let head = get("/", &lines.collect::<String>());
        accept_deflate(&parse(&head))
    };
    let plain = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
    let narrow = format!("{plain}; server_max_window_bits=12");
    for offer in [
        "permessage-deflate",
        "permessage-deflate; client_max_window_bits",
        "permessage-deflate;client_max_window_bits=8 ; server_no_context_takeover",
        "foo, permessage-deflate; client_no_context_takeover",
        "foo; a=\", permessage-deflate; x\\\"\", permessage-deflate",
        "permessage-deflate; unknown, permessage-deflate",
        "permessage-deflate; server_max_window_bits=8, permessage-deflate",
    ] {
        assert_eq!(answer(&[offer]), Some(plain), "{offer}");
    }
    assert_eq!(answer(&["foo", "permessage-deflate"]), Some(plain));
    for bits in ["12", "15", "\"13\""] {
        let offer = format!("permessage-deflate; server_max_window_bits={bits}");
        assert_eq!(answer(&[&offer]), Some(&*narrow), "{offer}");
    }
    for parameters in [
        "unknown",
        "server_max_window_bits",
        "server_max_window_bits=9",
        "server_max_window_bits=7",
        "server_max_window_bits=16",
        "server_max_window_bits=012",
        "server_max_window_bits=12; server_max_window_bits=12",
        "server_no_context_takeover; server_no_context_takeover",
        "client_no_context_takeover=1",
        "client_max_window_bits=x",
        "client_max_window_bits; client_max_window_bits=9",
        "",
    ] {
        let offer = format!("permessage-deflate; {parameters}");
        assert_eq!(answer(&[&offer]), None, "{offer}");
    }
    assert_eq!(answer(&["permessage-deflate-2, x-webkit-deflate-frame, ,"]), None);
    assert_eq!(answer(&[]), None);
}
