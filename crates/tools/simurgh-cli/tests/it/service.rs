//! The messages of `serve` to a service manager: a socket in place of systemd's.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use crate::support::{Server, directory, own, run, simurgh};
use serde_json::json;

const WAIT: Duration = Duration::from_secs(20);

/// The manager's socket.
struct Manager(UnixDatagram);

impl Manager {
    fn at(address: &SocketAddr) -> Self {
        let socket = UnixDatagram::bind_addr(address).unwrap();
        socket.set_read_timeout(Some(WAIT)).unwrap();
        Self(socket)
    }

    #[track_caller]
    fn next(&self) -> Vec<String> {
        let mut buffer = [0; 4096];
        let count = self.0.recv(&mut buffer).expect("a message");
        String::from_utf8_lossy(&buffer[..count]).lines().map(str::to_owned).collect()
    }

    /// The next message with this line; skips those before it.
    #[track_caller]
    fn receives(&self, line: &str) -> Vec<String> {
        let start = Instant::now();
        while start.elapsed() < WAIT {
            let message = self.next();
            if message.iter().any(|it| it == line) {
                return message;
            }
        }
        panic!("no {line}")
    }
}

const QUICK: [&str; 6] =
    ["--listen", "127.0.0.1:0", "--drain-time", "200ms", "--close-timeout", "300ms"];

#[test]
fn service_manager_gets_ready_reloading_and_stopping_with_the_drain_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = Manager::at(&SocketAddr::from_pathname(&path).unwrap());
    let env = [("NOTIFY_SOCKET", path.to_str().unwrap())];
    let args = [&QUICK[..], &["--shards", "3"]].concat();
    let server = Server::start_with_env(&simurgh(), directory(&[]), &args, 1, &env);
    let address = &server.addresses[0];
    let ready = manager.next();
    assert_eq!(ready, ["READY=1", &format!("STATUS=listening on http://{address}, 3 shards")]);
    let mut client = server.client();
    client.join("rooms:a", json!({}));
    server.signal("HUP");
    let reloading = manager.receives("RELOADING=1");
    assert!(reloading[1].starts_with("MONOTONIC_USEC="), "{reloading:?}");
    assert_eq!(manager.next(), ["READY=1"]);
    server.signal("TERM");
    let stopping = manager.next();
    // 200 ms, 300 ms and the margin of 10 s.
    let expected = ["STOPPING=1", "EXTEND_TIMEOUT_USEC=10500000", "STATUS=draining within 500ms"];
    assert_eq!(stopping, expected);
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0));
    assert!(!log.contains("NOTIFY_SOCKET"), "{log}");
}

#[test]
fn server_accepts_connections_once_it_reports_ready() {
    let name = format!("simurgh-test-{}", std::process::id());
    let manager = Manager::at(&SocketAddr::from_abstract_name(&name).unwrap());
    let env = [("NOTIFY_SOCKET", format!("@{name}"))];
    let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
    // Its standard output is not read before: the messages to the manager must be enough.
    let child = std::process::Command::new(simurgh())
        .args(["serve", "--listen", "127.0.0.1:0"])
        .current_dir(std::env::temp_dir())
        .envs(env)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn();
    let mut child = child.unwrap();
    let ready = manager.next();
    let address = ready[1].strip_prefix("STATUS=listening on http://").unwrap();
    let address = address.split(',').next().unwrap().to_owned();
    let reached = TcpStream::connect(&address);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(ready[0], "READY=1");
    assert!(reached.is_ok(), "{address}: {reached:?}");
}

#[test]
fn a_watchdog_gets_no_message_while_a_shard_is_blocked() {
    let name = format!("simurgh-watchdog-{}", std::process::id());
    let manager = Manager::at(&SocketAddr::from_abstract_name(&name).unwrap());
    let socket = format!("@{name}");
    let env = [("NOTIFY_SOCKET", socket.as_str()), ("WATCHDOG_USEC", "400000")];
    let args = [&QUICK[..], &["--shards", "2"]].concat();
    let server = Server::start_with_env(&own(), directory(&[]), &args, 1, &env);
    manager.receives("READY=1");
    for _ in 0..3 {
        assert_eq!(manager.next(), ["WATCHDOG=1"]);
    }
    let mut client = server.client();
    client.join("echo:a", json!({}));
    client.send("echo:a", "hold", json!(2000));
    let held = Instant::now();
    let mut longest = Duration::ZERO;
    let mut last = Instant::now();
    while held.elapsed() < Duration::from_secs(3) {
        assert_eq!(manager.next(), ["WATCHDOG=1"]);
        longest = longest.max(last.elapsed());
        last = Instant::now();
    }
    // Polled every 200 ms: in two seconds at least one passes without a message.
    assert!(longest > Duration::from_secs(1), "the longest silence was {longest:?}");
    server.signal("TERM");
    manager.receives("STOPPING=1");
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("the shard does not respond"), "{log}");
}

#[test]
fn missing_service_manager_is_logged_and_server_continues() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nobody");
    let env = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "soon")];
    let server = Server::start_with_env(&simurgh(), directory(&[]), &QUICK, 1, &env);
    assert_eq!(server.get("/healthz"), 200);
    server.signal("TERM");
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0));
    assert!(log.contains("cannot send to the service manager (NOTIFY_SOCKET)"), "{log}");
}

#[test]
fn service_manager_is_told_which_process_has_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = Manager::at(&SocketAddr::from_pathname(&path).unwrap());
    let env = [("NOTIFY_SOCKET", path.to_str().unwrap())];
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let args = ["--listen", &listen, "--drain-time", "200ms"];
    let server = Server::start_with_env(&simurgh(), directory(&[]), &args, 1, &env);
    manager.receives("READY=1");
    let mut client = server.client();
    client.join("rooms:a", json!({}));
    let restarted = run(std::env::temp_dir().as_path(), &["restart", "--listen", &listen]);
    assert!(restarted.status.success(), "{restarted:?}");
    let pid = restarted.stdout.split_whitespace().nth(1).unwrap().to_owned();
    // Only the main process may send the rest.
    assert_eq!(manager.next(), [format!("MAINPID={pid}")]);
    assert_eq!(manager.next()[0], "READY=1");
    let next = TcpStream::connect(&listen);
    drop(client);
    let killed = std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    assert!(killed.success(), "the new process has ended");
    manager.receives("STOPPING=1");
    // Both write the same log.
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(next.is_ok(), "{next:?}");
    assert!(!log.contains("STOPPING"), "{log}");
}

#[test]
fn restart_without_a_server_fails_and_names_what_to_do() {
    let listen = format!("127.0.0.1:{}", free_port());
    let ran = run(std::env::temp_dir().as_path(), &["restart", "--listen", &listen]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(ran.stderr.contains("simurgh serve"), "{ran:?}");
}

/// The manager has opened the socket, and given it the number 3.
#[test]
fn server_listens_on_the_socket_of_its_manager() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // A client that comes before the server is started is served, too.
    let mut early = TcpStream::connect(address).unwrap();
    let program = simurgh();
    let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"";
    let child = std::process::Command::new("sh")
        .args(["-c", script, program.to_str().unwrap(), "serve", "--shards", "2", "--listen"])
        .arg(address.to_string())
        .current_dir(std::env::temp_dir())
        .stdin(std::os::fd::OwnedFd::from(listener))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn();
    let mut child = child.unwrap();
    let request = format!("GET /healthz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    early.set_read_timeout(Some(WAIT)).unwrap();
    early.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    let read = early.read_to_string(&mut answer);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(read.is_ok() && answer.starts_with("HTTP/1.1 200"), "{read:?} {answer}");
}

/// A port that was free a moment ago: a server that is taken over has to be known by its address.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
