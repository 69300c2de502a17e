//! wss:// and https:// against a server of rustls, and certificate errors.

use std::io::{Read, Write};
use std::sync::Arc;

use crate::outside::{
    Peer, Ran, Secure, Server, certificate, close, close_notify, frame, head, run_with,
    secure_server,
};
use simurgh_load::record::{Count, ErrorKind as E, Metric};

const USERS: u64 = 15;

fn echo(mut stream: Secure) {
    let Some(head) = head(&mut stream) else { return };
    let key = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("sec-websocket-key").then(|| value.to_owned())
    });
    let peer = Peer {
        stream: Arc::new(stream.sock.try_clone().unwrap()),
        number: 0,
        key: key.unwrap(),
        path: String::new(),
    };
    stream.write_all(peer.switch().as_bytes()).unwrap();
    let mut fixed = [0; 6];
    while stream.read_exact(&mut fixed).is_ok() {
        let mut payload = vec![0; usize::from(fixed[1] & 0x7f)];
        stream.read_exact(&mut payload).unwrap();
        if fixed[0] & 0x0f == 8 {
            // The client may have closed.
            let _ = stream.write_all(&close(1000));
            return;
        }
        payload.iter_mut().zip(fixed[2..].iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        stream.write_all(&frame(fixed[0] & 0x0f, payload)).unwrap();
    }
}

#[track_caller]
fn users(url: &str, server: &Server, tls: &str, steps: &str) -> Ran {
    run_with(
        &format!(
            "[target]\nurl = \"{url}://{}\"\n{tls}\n[[phase]]\nduration = \"100ms\"\nrate = {}\n\
             [[session]]\nname = \"one\"\nprotocol = \"raw\"\nsteps = [{steps}]",
            server.addr,
            USERS * 10
        ),
        2,
    )
}

const CHAT: &str = "{ connect = \"/\" }, { loop = 3, steps = [{ send = \"hello\", reply = \
true }] }, \
                    { close = true }";

#[test]
fn websocket_users_run_over_tls() {
    let (pem, config) = certificate();
    let server = secure_server(config, echo);
    for tls in [format!("[tls]\nroots = ['''{pem}''']"), "[tls]\ninsecure = true".to_owned()] {
        let ran = users("wss", &server, &tls, CHAT);
        ran.errors_are(&[]);
        ran.users_are(USERS, 0);
        let timed = [Metric::Connect, Metric::Upgrade, Metric::Message].map(|m| ran.timed(m));
        assert_eq!(timed, [USERS, USERS, 3 * USERS]);
        // Bytes are those within TLS: the answer to the upgrade, three frames and a close.
        assert_eq!(ran.count(Count::BytesIn), USERS * (129 + 3 * 7 + 4), "{}", ran.text());
    }
}

#[test]
fn https_requests_reuse_their_connection() {
    let (_, config) = certificate();
    let server = secure_server(config, |mut stream| {
        while head(&mut stream).is_some() {
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            stream.write_all(answer).unwrap();
        }
    });
    let steps = "{ loop = 4, steps = [{ get = \"/\", status = 200 }] }";
    let ran = users("https", &server, "[tls]\ninsecure = true", steps);
    ran.errors_are(&[]);
    ran.users_are(USERS, 0);
    assert_eq!((ran.timed(Metric::Http), ran.count(Count::Connects)), (4 * USERS, USERS));
}

#[test]
fn untrusted_certificate_is_refused_with_advice() {
    let (_, config) = certificate();
    let server = secure_server(config, |mut stream| {
        assert_eq!(head(&mut stream), None, "nothing is said to a server that is not trusted");
    });
    let ran = users("wss", &server, "", CHAT);
    ran.errors_are(&[(E::Tls, USERS)]);
    ran.users_are(0, USERS);
    assert_eq!(ran.count(Count::Connects), 0);
    let details = ran.record.details(E::Tls);
    assert!(details.iter().any(|text| text.contains("insecure")), "{details:?}");
}

#[test]
fn server_without_tls_and_closing_server_have_different_errors() {
    let plain = Server::new(|mut peer| {
        peer.send("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
        peer.drain();
    });
    let ran = users("wss", &plain, "[tls]\ninsecure = true", CHAT);
    ran.errors_are(&[(E::Tls, USERS)]);
    ran.users_are(0, USERS);
    let silent = Server::new(|peer| {
        let mut some = [0; 64];
        let _ = (&*peer.stream).read(&mut some);
    });
    let ran = users("wss", &silent, "[tls]\ninsecure = true", CHAT);
    ran.errors_are(&[(E::Tls, USERS)]);
    ran.users_are(0, USERS);
}

#[test]
fn broken_tls_stream_is_a_lost_connection() {
    let (_, config) = certificate();
    let server = secure_server(config, |mut stream| {
        let mut first = [0; 1];
        let _ = stream.read(&mut first);
        // Plain bytes instead of records.
        let _ = stream.sock.write_all(b"this is no record");
        let mut rest = [0; 1024];
        while stream.sock.read(&mut rest).is_ok_and(|n| n > 0) {}
    });
    let ran = users("wss", &server, "[tls]\ninsecure = true", CHAT);
    ran.errors_are(&[(E::ConnectionReset, USERS)]);
    ran.users_are(0, USERS);
    assert_eq!(ran.count(Count::RequestsUnanswered), USERS);
}

/// The server waits for the client's end before it sends a FIN (RFC 8446 §6.1).
#[test]
fn close_notify_ends_a_stream_like_a_fin() {
    let (_, config) = certificate();
    let tls = "[tls]\ninsecure = true";
    let server = secure_server(config.clone(), |mut stream| {
        if head(&mut stream).is_some() {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nall until the end").unwrap();
            close_notify(stream);
        }
    });
    let ran = users("https", &server, tls, "{ get = \"/\", status = 200 }");
    ran.errors_are(&[]);
    ran.users_are(USERS, 0);
    assert!(ran.record.times(Metric::Http).unwrap().max() < 1_500_000, "{}", ran.text());
    let server = secure_server(config, |mut stream| {
        let Some(head) = head(&mut stream) else { return };
        let (_, key) = head.split_once("Sec-WebSocket-Key: ").unwrap();
        let key = key.lines().next().unwrap().to_owned();
        let sock = Arc::new(stream.sock.try_clone().unwrap());
        let peer = Peer { stream: sock, number: 0, key, path: String::new() };
        stream.write_all(peer.switch().as_bytes()).unwrap();
        close_notify(stream);
    });
    let ran = users("wss", &server, tls, "{ connect = \"/\" }, { receive = \"60s\" }");
    ran.errors_are(&[(E::EndOfStream, USERS)]);
    ran.users_are(0, USERS);
    assert!(ran.took.as_secs() < 30, "{:?}", ran.took);
}
