//! Regression test: the admin address used up all descriptors. The main port then lost its HTTP
//! connections, too, and logged that ten times a second.

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::support::{Server, directory, simurgh};

#[test]
fn admin_connections_take_no_descriptors_from_the_main_port() {
    let dir = directory(&[]);
    let script = dir.path().join("few");
    let program = simurgh();
    let text = format!("#!/bin/sh\nulimit -n 600\nexec '{}' \"$@\"\n", program.display());
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let args = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--drain-time", "0s"];
    let mut server = Server::start_program(&script, dir, &args, 1);
    let line = server.logged("serving metrics and the observer");
    let admin = line.trim().rsplit_once("127.0.0.1:").unwrap().1;
    let digits: String = admin.chars().take_while(char::is_ascii_digit).collect();
    let admin = format!("127.0.0.1:{digits}");
    let crowd: Vec<_> = (0..650).map(|_| TcpStream::connect(&admin).unwrap()).collect();
    for n in 0..40 {
        assert_eq!(server.get("/healthz"), 200, "the {n}th");
        std::thread::sleep(Duration::from_millis(25));
    }
    drop(crowd);
    server.signal("TERM");
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.lines().count() <= 8, "{log}");
}
