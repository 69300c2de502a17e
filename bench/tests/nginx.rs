//! The one nginx of all benchmarks, which a command serves for programs outside this crate.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_types,
    reason = "a test, without shards"
)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A directory and a process, removed at the end.
struct Served(PathBuf, Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.1.kill();
        let _ = self.1.wait();
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn ask(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn nginx_is_served_by_a_command_and_ends_with_it() {
    if !Path::new("/usr/sbin/nginx").is_file() {
        eprintln!("SKIPPED: there is no nginx");
        return;
    }
    let directory = std::env::temp_dir().join(format!("simurgh-nginx-{}", std::process::id()));
    fs::create_dir_all(directory.join("root")).unwrap();
    fs::write(directory.join("root/index.html"), "the file").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_simurgh-bench"));
    command.args(["nginx", "--directory"]).arg(&directory).stdout(Stdio::piped());
    let mut served = Served(directory, command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(served.1.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").expect(&line).to_owned();
    let answer = ask(&address).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nthe file"),
        "{answer}"
    );

    served.1.kill().unwrap();
    served.1.wait().unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while ask(&address).is_ok() {
        assert!(Instant::now() < until, "nginx has outlived the command");
        std::thread::sleep(Duration::from_millis(20));
    }
}
