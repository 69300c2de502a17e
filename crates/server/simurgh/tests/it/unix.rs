//! Unix sockets: for a proxy on this machine, and for operators.
#![allow(clippy::disallowed_types, reason = "these sockets never meet a shard's table")]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::json;
use simurgh::{
    Builder, ChannelRoute, Connect, Endpoint, Join, LongPoll, Outcome, Payload, ShardContext,
    UserSocket,
};
use tempfile::TempDir;
use tungstenite::Message;

use crate::support::{Handles, WAIT_MAX, raw};

type Peers = Arc<Mutex<Vec<String>>>;

/// Notes the addresses of its clients.
fn noting(peers: &Peers) -> Builder {
    let peers = Arc::clone(peers);
    let user_socket = UserSocket::new("/socket")
        .connect_on_shard(move |request| {
            peers.lock().unwrap().push(request.peer().ip().to_string());
            Connect::ok()
        })
        .longpoll(LongPoll::new())
        .channel(ChannelRoute::on_shard("room:*", |_, _| Join::ok(Handles(echo))));
    Endpoint::builder().socket(user_socket).configure(|config| config.shards = 2)
}

fn builder() -> Builder {
    noting(&Peers::default())
}

fn echo(_: &mut ShardContext<'_>, _: &str, payload: Payload<'_>) -> Outcome {
    Outcome::ok(payload.into_owned())
}

fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream
}

fn get(path: &Path, target: &str) -> String {
    let mut stream = connect(path);
    let request = format!("GET {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn sockets_pages_and_long_polls_are_served_without_an_address() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("simurgh.sock");
    let peers = Peers::default();
    let unix = vec![path.clone()];
    let endpoint = noting(&peers).configure(|config| config.listen_unix = unix).start().unwrap();
    assert_eq!(endpoint.urls().collect::<Vec<_>>(), [format!("unix:{}", path.display())]);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    for head in ["", "PROXY TCP4 198.51.100.7 0.0.0.0 5000 0\r\n"] {
        let mut stream = connect(&path);
        stream.write_all(head.as_bytes()).unwrap();
        let url = "ws://localhost/socket/websocket?vsn=2.0.0";
        let (mut socket, _) = tungstenite::client(url, stream).unwrap();
        let join = json!(["1", "1", "room:1", "phx_join", {}]);
        socket.send(Message::text(join.to_string())).unwrap();
        assert!(socket.read().unwrap().to_text().unwrap().contains(r#""status":"ok""#));
    }
    assert_eq!(*peers.lock().unwrap(), ["127.0.0.1", "198.51.100.7"]);
    assert!(get(&path, "/metrics").starts_with("HTTP/1.1 200"));
    let opened = get(&path, "/socket/longpoll?vsn=2.0.0");
    assert!(opened.contains(r#""status":410"#), "{opened}");
    drop(endpoint);
    assert!(!path.exists(), "the path is removed");
}

#[test]
fn path_of_an_ended_server_is_taken_over_and_that_of_a_running_one_is_not() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("simurgh.sock");
    drop(UnixListener::bind(&path).unwrap());
    let start = || builder().configure(|config| config.listen_unix = vec![path.clone()]).start();
    let endpoint = start().unwrap();
    let error = start().unwrap_err().to_string();
    assert!(error.contains("simurgh.sock") && error.contains("in use"), "{error}");
    assert!(get(&path, "/nothing").starts_with("HTTP/1.1 404"));
    drop(endpoint);
    fs::write(&path, "a file").unwrap();
    assert!(start().is_err(), "a file is not replaced");
}

#[test]
fn operators_are_served_on_a_path_of_their_own() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("admin.sock");
    let endpoint = builder()
        .listen("127.0.0.1:0")
        .configure(|config| config.admin_listen_unix = Some(path.clone()))
        .start()
        .unwrap();
    assert!(get(&path, "/metrics").contains("simurgh_sockets"));
    let public = raw::ask(endpoint.addresses()[0], "GET /metrics", "", "");
    assert_eq!(public.status, 404, "they moved");
}
