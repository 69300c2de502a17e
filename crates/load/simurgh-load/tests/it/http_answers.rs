//! Answers that are compressed or long, and cookies of HTTP and WebSocket together.

use std::io::Write as _;
use std::sync::{Arc, Mutex};

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use simurgh_load::http::{Event, Head, Kept};
use simurgh_load::record::{Count, ErrorKind, Warning};

use crate::outside::{Server, frame, lock, of, run};

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn zlib(body: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn deflate(body: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

/// The searched body, and whether it is only a part.
fn searched(headers: &str, body: &[u8]) -> (Vec<u8>, bool) {
    let mut kept = Kept::new(100);
    let head = format!("HTTP/1.1 200 OK\r\n{headers}\r\n");
    let head = Head { status: 200, version_1_0: false, bytes: head.as_bytes() };
    kept.take(&Event::Head(head));
    kept.take(&Event::Body(body));
    kept.decompress();
    let (whole, head_bytes) = kept.whole();
    (whole[head_bytes..].to_vec(), kept.is_cut())
}

#[test]
fn compressed_bodies_are_searched_uncompressed() {
    let body = b"token=abc\n";
    let cut = &gzip(body)[..20];
    let twice = [gzip(b"token="), gzip(b"abc\n")].concat();
    let long = gzip(&[b'x'; 5000]);
    let table: [(&str, &[u8], &[u8], bool); 14] = [
        ("", body, body, false),
        ("Content-Encoding: identity\r\n", body, body, false),
        ("content-encoding: GZIP\r\n", &gzip(body), body, false),
        ("Content-Encoding: x-gzip\r\n", &gzip(body), body, false),
        ("Content-Encoding: gzip\r\n", &twice, body, false),
        ("Content-Encoding: deflate\r\n", &zlib(body), body, false),
        ("Content-Encoding: deflate\r\n", &deflate(body), body, false),
        ("Content-Encoding: gzip\r\n", b"", b"", false),
        ("Content-Encoding: br\r\n", b"?", b"?", true),
        ("Content-Encoding: gzip, br\r\n", b"?", b"?", true),
        ("Content-Encoding: gzip\r\n", b"?", b"", true),
        ("Content-Encoding: gzip\r\n", &long, &[b'x'; 100], true),
        ("", &[b'x'; 101], &[b'x'; 100], true),
        ("", &[b'x'; 100], &[b'x'; 100], false),
    ];
    for (headers, sent, wanted, is_cut) in table {
        let found = searched(headers, sent);
        assert_eq!(found, (wanted.to_vec(), is_cut), "{headers}{sent:?}");
    }
    assert!(searched("Content-Encoding: gzip\r\n", cut).1);
}

#[test]
fn values_are_captured_from_compressed_responses() {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let server = Server::new({
        let heads = Arc::clone(&heads);
        move |mut peer| {
            while let Some(head) = peer.head() {
                lock(&heads).push(head);
                let body = gzip(b"token=abc\n");
                let length = body.len();
                peer.send(format!(
                    "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {length}\r\n\r\n"
                ));
                peer.send(body);
            }
        }
    });
    let steps = "steps = [{ get = \"/\", capture = { t = { regex = \"token=(.*)$\" } }, \
                 check = \"abc$\" }, { get = \"/{{t}}\" }]";
    let ran = run(&of(server.addr, 1, "raw", "", steps).replace("ws://", "http://"));
    ran.errors_are(&[]);
    assert!(lock(&heads)[1].starts_with("GET /abc HTTP/1.1\r\n"), "{heads:?}");
    assert_eq!((ran.count(Count::Matches), ran.count(Count::AnswersCut)), (1, 0));
}

#[test]
fn partly_searched_response_causes_a_warning() {
    let server = Server::new(|mut peer| {
        while peer.head().is_some() {
            let body = vec![b'x'; 5 << 20];
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len() + 3));
            peer.send(body);
            peer.send("end");
        }
    });
    let steps =
        "steps = [{ get = \"/\", capture = { t = { regex = \"(end)\" } } }, { get = \"/\" }]";
    let ran = run(&of(server.addr, 1, "raw", "", steps).replace("ws://", "http://"));
    ran.errors_are(&[(ErrorKind::CaptureEmpty, 1)]);
    assert_eq!(ran.count(Count::AnswersCut), 1, "the second answer is not searched");
    let warnings = ran.record.warnings();
    assert!(warnings.contains(&Warning::AnswersCut { count: 1 }), "{warnings:?}");
}

#[test]
fn cookies_are_sent_with_upgrades_and_stored_from_their_responses() {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let server = Server::new({
        let heads = Arc::clone(&heads);
        move |mut peer| {
            while let Some(head) = peer.head() {
                let is_upgrade = head.contains("Upgrade: websocket");
                lock(&heads).push(head);
                if is_upgrade {
                    let accept = peer.switch();
                    peer.send(accept.replace("\r\n\r\n", "\r\nSet-Cookie: b=2; Path=/\r\n\r\n"));
                    peer.frame();
                    peer.send(frame(8, [3, 232]));
                    return;
                }
                peer.send("HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n");
            }
        }
    });
    let steps = "steps = [{ get = \"/\" }, { connect = \"/socket\" }, { close = 1000 }, \
                 { connect = \"/socket\", headers = { Cookie = \"own=1\" } }, { close = 1000 }, \
                 { get = \"/last\" }]";
    let ran = run(&of(server.addr, 1, "raw", "", steps));
    ran.errors_are(&[]);
    let cookies: Vec<String> = lock(&heads)
        .iter()
        .map(|head| {
            let lines = head.lines().filter(|line| line.to_lowercase().starts_with("cookie: "));
            lines.collect::<Vec<&str>>().join("|")
        })
        .collect();
    assert_eq!(cookies, ["", "Cookie: a=1", "Cookie: own=1", "Cookie: a=1; b=2"]);
}
