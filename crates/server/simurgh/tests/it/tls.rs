//! Everything that the server serves, over TLS.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use simurgh::axum::http::HeaderValue;
use simurgh::tls::{RecordLayer, TlsConfig};
use simurgh::{
    Builder, ChannelRoute, Connect, Endpoint, Join, LongPoll, Outcome, Payload, ShardContext,
    UserSocket,
};
use tempfile::TempDir;
use tungstenite::{Message, WebSocket};

use crate::support::{Handles, WAIT_MAX, metric, until};

struct Scene {
    root: TempDir,
    endpoint: Endpoint,
    client: Arc<ClientConfig>,
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

impl Scene {
    fn new(builder: Builder, change: impl FnOnce(&mut TlsConfig)) -> Self {
        let root = TempDir::new().unwrap();
        let client = Arc::new(renew(&root));
        let mut tls = certificate(&root);
        tls.record_layer = RecordLayer::Simurgh;
        change(&mut tls);
        let endpoint = builder.listen("127.0.0.1:0").tls(tls).start().unwrap();
        Self { root, endpoint, client }
    }

    fn connect(&self) -> Stream {
        self.connect_with(&self.client)
    }

    fn connect_with(&self, client: &Arc<ClientConfig>) -> Stream {
        let stream = TcpStream::connect(self.endpoint.addresses()[1]).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.set_nodelay(true).unwrap();
        let name = "localhost".try_into().unwrap();
        StreamOwned::new(ClientConnection::new(Arc::clone(client), name).unwrap(), stream)
    }

    /// The answer to a request on a connection of its own.
    fn ask(&self, line: &str, headers: &str, body: &str) -> (String, Vec<u8>) {
        let mut stream = self.connect();
        let length = body.len();
        let head = format!("{line} HTTP/1.1\r\nhost: localhost\r\n{headers}connection: close\r\n");
        let request = format!("{head}content-length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
        (String::from_utf8(answer[..end].to_vec()).unwrap(), answer[end + 4..].to_vec())
    }

    fn socket(&self, stream: Stream, origin: &str) -> tungstenite::Result<WebSocket<Stream>> {
        let port = self.endpoint.addresses()[1].port();
        let request = tungstenite::http::Request::builder()
            .uri(format!("wss://localhost:{port}/socket/websocket?vsn=2.0.0"))
            .header("host", format!("localhost:{port}"))
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", tungstenite::handshake::client::generate_key())
            .header("origin", origin.replace("PORT", &port.to_string()))
            .body(())
            .unwrap();
        let answer = tungstenite::client(request, stream);
        answer.map(|(socket, _)| socket).map_err(|error| match error {
            tungstenite::HandshakeError::Failure(error) => error,
            tungstenite::HandshakeError::Interrupted(_) => unreachable!("it blocks"),
        })
    }
}

fn paths(root: &TempDir) -> (PathBuf, PathBuf) {
    (root.path().join("chain.pem"), root.path().join("key.pem"))
}

/// With the certificate of [`renew`].
pub(crate) fn certificate(root: &TempDir) -> TlsConfig {
    let (chain, key) = paths(root);
    TlsConfig::new("127.0.0.1:0".parse().unwrap(), chain, key)
}

/// Writes a new certificate, and returns what a client needs to accept it alone.
pub(crate) fn renew(root: &TempDir) -> ClientConfig {
    let certificate = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let (chain, key) = paths(root);
    fs::write(chain, certificate.cert.pem()).unwrap();
    fs::write(key, certificate.signing_key.serialize_pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.cert.der().clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    // A resumed session shows no certificate.
    config.resumption = Resumption::disabled();
    config
}

fn room(ctx: &mut ShardContext<'_>, event: &str, payload: Payload<'_>) -> Outcome {
    match event {
        "all" => {
            ctx.broadcast("all", payload.into_owned());
            Outcome::NoReply
        }
        "who" => Outcome::ok(json!({"peer": ctx.assigns::<String>()})),
        _ => Outcome::ok(payload.into_owned()),
    }
}

fn echo() -> Builder {
    let route = ChannelRoute::on_shard("room:*", |_, _| Join::ok(Handles(room)));
    Endpoint::builder().socket(UserSocket::new("/socket").longpoll(LongPoll::new()).channel(route))
}

fn say(socket: &mut WebSocket<Stream>, message: &Value) {
    socket.send(Message::text(message.to_string())).unwrap();
}

fn hear(socket: &mut WebSocket<Stream>) -> Value {
    match socket.read().unwrap() {
        Message::Text(text) => serde_json::from_str(&text).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn joins(socket: &mut WebSocket<Stream>) {
    say(socket, &json!(["1", "1", "room:1", "phx_join", {}]));
    assert_eq!(hear(socket)[4]["status"], "ok");
}

const PAGE: &str = "https://localhost:PORT";

#[test]
fn sockets_talk_over_each_record_layer() {
    for record_layer in [RecordLayer::Simurgh, RecordLayer::Rustls] {
        let scene = Scene::new(echo(), |tls| tls.record_layer = record_layer);
        let mut sockets = [0; 2].map(|_| scene.socket(scene.connect(), PAGE).unwrap());
        sockets.iter_mut().for_each(joins);
        let long = "x".repeat(100_000);
        for text in ["short", &long] {
            say(&mut sockets[0], &json!(["1", "2", "room:1", "echo", {"text": text}]));
            assert_eq!(hear(&mut sockets[0])[4]["response"]["text"], text);
            say(&mut sockets[1], &json!(["1", "3", "room:1", "all", {"text": text}]));
            for socket in &mut sockets {
                assert_eq!(hear(socket)[4]["text"], text);
            }
        }
        assert_eq!(metric(&scene.endpoint, "simurgh_sockets"), 2);
        for mut socket in sockets {
            socket.close(None).unwrap();
            while socket.read().is_ok() {}
        }
    }
}

/// With the policy `conn`: the scheme is that of the connection.
#[test]
fn page_of_the_same_host_may_connect_only_by_its_own_scheme() {
    let scene = Scene::new(
        echo().configure(|config| config.check_origin = Some(simurgh::CheckOrigin::Conn)),
        |_| {},
    );
    assert!(scene.socket(scene.connect(), PAGE).is_ok());
    for other in ["http://localhost:PORT", "https://localhost", "https://other:PORT"] {
        assert!(scene.socket(scene.connect(), other).is_err(), "{other}");
    }
}

#[test]
fn pages_files_and_long_polls_are_served() {
    let files = TempDir::new().unwrap();
    let long = "0123456789abcdef".repeat(200_000);
    fs::write(files.path().join("long.txt"), &long).unwrap();
    let policy = HeaderValue::from_static("default-src 'self'");
    let router = simurgh::http::static_files(files.path(), policy).unwrap();
    let scene = Scene::new(echo().http(router), |_| {});
    let (head, body) = scene.ask("GET /long.txt", "", "");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(body == long.as_bytes(), "{} bytes", body.len());
    assert!(scene.ask("GET /nothing", "", "").0.starts_with("HTTP/1.1 404"));
    assert!(scene.ask("GET /metrics", "", "").0.starts_with("HTTP/1.1 200"));
    let origin = format!("origin: https://localhost:{}\r\n", scene.endpoint.addresses()[1].port());
    let (_, body) = scene.ask("GET /socket/longpoll?vsn=2.0.0", &origin, "");
    let opened: Value = serde_json::from_slice(&body).unwrap();
    let token = opened["token"].as_str().unwrap();
    let path = format!("/socket/longpoll?vsn=2.0.0&token={token}");
    let join = r#"["1","1","room:1","phx_join",{}]"#;
    scene.ask(&format!("POST {path}"), &origin, join);
    let (_, body) = scene.ask(&format!("GET {path}"), &origin, "");
    let polled: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(polled["status"], 200, "{polled}");
    assert!(polled["messages"][0].as_str().unwrap().contains("phx_reply"), "{polled}");
}

/// It has had an answer of the HTTP side before.
#[test]
fn kept_connection_can_be_upgraded() {
    let scene = Scene::new(echo(), |_| {});
    let mut stream = scene.connect();
    for _ in 0..3 {
        stream.write_all(b"GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut answer = [0; 4096];
        let bytes = stream.read(&mut answer).unwrap();
        let text = String::from_utf8_lossy(&answer[..bytes]).into_owned();
        assert!(text.starts_with("HTTP/1.1 404"), "{text}");
        let length = text.split("content-length: ").nth(1).unwrap();
        let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
        assert!(text.ends_with("\r\n\r\n") && length == 0 || bytes > length, "{text}");
    }
    let mut socket = scene.socket(stream, PAGE).unwrap();
    joins(&mut socket);
    say(&mut socket, &json!(["1", "2", "room:1", "echo", {"n": 1}]));
    assert_eq!(hear(&mut socket)[4]["response"], json!({"n": 1}));
}

#[test]
fn renewed_certificate_is_for_new_connections_and_the_others_stay() {
    let scene = Scene::new(echo(), |_| {});
    let mut old = scene.socket(scene.connect(), PAGE).unwrap();
    joins(&mut old);
    let renewed = Arc::new(renew(&scene.root));
    scene.endpoint.reload_certificates().unwrap();
    let mut new = scene.socket(scene.connect_with(&renewed), PAGE).unwrap();
    joins(&mut new);
    assert!(scene.socket(scene.connect(), PAGE).is_err(), "it knows the old one alone");
    say(&mut old, &json!(["1", "2", "room:1", "all", {"n": 1}]));
    assert_eq!([hear(&mut old), hear(&mut new)].map(|it| it[4]["n"].clone()), [json!(1), json!(1)]);
}

#[test]
fn front_page_names_wss_and_the_observer_shows_handshakes() {
    let scene = Scene::new(echo().front_page("<p>ws://{{host}}/socket</p>"), |_| {});
    let (_, page) = scene.ask("GET /", "", "");
    let page = String::from_utf8(page).unwrap();
    assert!(page.contains("<p>wss://localhost/socket</p>"), "{page}");
    let mut tls = Value::Null;
    until("the figures have the first handshake", || {
        let (_, body) = scene.ask("GET /observer/api/overview", "", "");
        tls = serde_json::from_slice::<Value>(&body).unwrap()["tls"].take();
        tls["handshakes"].as_u64().unwrap() > 0
    });
    assert_eq!((&tls["certificate"], &tls["handshakes_1_2"]), (&json!("localhost"), &json!(0)));
    assert!(tls["expires_in_s"].as_f64().unwrap() > 0.0, "{tls}");
}

/// As the plain listener does: a proxy that passes TLS on sends the header before the handshake.
#[test]
fn proxy_header_before_the_handshake_names_the_client() {
    let whoami = UserSocket::new("/socket")
        .connect_on_shard(|info| Connect::ok().assign(info.peer().to_string()))
        .channel(ChannelRoute::on_shard("room:*", |_, _| Join::ok(Handles(room))));
    let scene = |trusted: &str| {
        let builder = Endpoint::builder().socket(whoami.clone()).configure(|config| {
            config.trusted_proxies = vec![trusted.parse().unwrap()];
            config.proxy_protocol = true;
        });
        Scene::new(builder, |_| {})
    };
    let trusting = scene("127.0.0.0/8");
    let behind = |scene: &Scene, header: &[u8]| {
        let mut stream = scene.connect();
        // In two parts, as a header may be cut anywhere.
        let (one, two) = header.split_at(header.len() / 2);
        stream.sock.write_all(one).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        stream.sock.write_all(two).unwrap();
        scene.socket(stream, PAGE)
    };
    let peer = |scene: &Scene, header: &[u8]| {
        let mut socket = behind(scene, header).unwrap();
        joins(&mut socket);
        say(&mut socket, &json!(["1", "2", "room:1", "who", {}]));
        hear(&mut socket)[4]["response"]["peer"].as_str().unwrap().to_owned()
    };
    let v1 = b"PROXY TCP4 198.51.100.7 203.0.113.1 5000 443\r\n";
    assert_eq!(peer(&trusting, v1), "198.51.100.7:5000");
    let mut v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    v2.extend_from_slice(&[198, 51, 100, 8, 203, 0, 113, 1, 0x13, 0x88, 0, 80]);
    assert_eq!(peer(&trusting, &v2), "198.51.100.8:5000");
    assert!(peer(&trusting, b"PROXY UNKNOWN\r\n").starts_with("127.0.0.1:"));
    for wrong in [&b""[..], b"PROXY TCP4 nonsense\r\n"] {
        assert!(behind(&trusting, wrong).is_err());
    }
    let wary = scene("192.0.2.1/32");
    assert!(peer(&wary, b"").starts_with("127.0.0.1:"), "others send none");
    assert!(behind(&wary, v1).is_err(), "nor may they");
}

#[test]
fn plain_listener_refuses_tls_with_a_readable_answer() {
    let scene = Scene::new(echo(), |_| {});
    let stream = TcpStream::connect(scene.endpoint.addresses()[0]).unwrap();
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::clone(&scene.client), name).unwrap();
    let error = StreamOwned::new(connection, stream).write_all(b"x").unwrap_err();
    assert!(!error.to_string().contains("timed out"), "{error}");
}

#[test]
fn handshakes_are_counted_by_version_and_resumption() {
    let scene = Scene::new(echo(), |_| {});
    let ask = |client: &Arc<ClientConfig>| {
        let mut stream = scene.connect_with(client);
        let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    };
    let mut resuming = ClientConfig::clone(&scene.client);
    resuming.resumption = Resumption::default();
    let resuming = Arc::new(resuming);
    (0..2).for_each(|_| ask(&resuming));
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(paths(&scene.root).0).unwrap()).unwrap();
    let old = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap();
    ask(&Arc::new(old.with_root_certificates(roots).with_no_client_auth()));
    let mut plain = TcpStream::connect(scene.endpoint.addresses()[1]).unwrap();
    plain.set_read_timeout(Some(WAIT_MAX)).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    let counts = ["handshakes", "handshakes_1_2", "resumed", "failed", "refused"]
        .map(|name| metric(&scene.endpoint, &format!("simurgh_tls_{name}_total")));
    assert_eq!(counts, [3, 1, 1, 1, 0]);
}
