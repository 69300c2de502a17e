//! `simurgh load http` as a binary: flags, output, files, exit statuses; and figures that match the
//! log of a real nginx.

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::engine::until;
use crate::support::{Server, directory, run, simurgh};
use serde_json::Value;

fn http<'a>(url: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    [&["load", "http", url], flags].concat()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn http_benchmark_prints_like_wrk_and_writes_all_figures() {
    let server = Server::start("", &["--listen", "127.0.0.1:0", "--log", "warn"]);
    let url = format!("http://{}/healthz", server.addresses[0]);
    let dir = directory(&[]);
    let flags = ["-c", "3", "-t", "2", "-d", "500ms", "--latency", "--json", "out.json"];
    let ran = run(dir.path(), &http(&url, &flags));
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines[0], format!("Running 0.50s test @ {url}"));
    assert_eq!(lines[1], "  2 threads and 3 connections");
    assert_eq!(lines[2], "  Thread Stats   Avg      Stdev     Max   +/- Stdev");
    for (line, start) in [
        (3, "    Latency  "),
        (4, "    Req/Sec  "),
        (5, "  Latency Distribution"),
        (6, "     50% "),
        (9, "     99% "),
    ] {
        assert!(lines[line].starts_with(start), "{start:?} is not in {:?}", lines[line]);
    }
    let value = |start: &str| {
        let line = lines.iter().find_map(|line| line.strip_prefix(start)).expect(start);
        line.trim().to_owned()
    };
    let report = json(&dir.path().join("out.json"));
    let rate = report["requests_per_second"].as_f64().unwrap();
    assert_eq!(value("Requests/sec:"), format!("{rate:.2}"));
    assert!(value("Transfer/sec:").ends_with('B'));
    let requests = report["requests"].as_u64().unwrap();
    assert!(requests > 50 && report["statuses"]["200"] == requests, "{report}");
    assert_eq!(report["latency_us"]["count"], requests);
    // HdrHistogram's V2 encoding, in base64.
    assert!(report["latency_histogram"].as_str().unwrap().starts_with("HIST"), "{report}");
    assert_eq!(report["errors"], serde_json::json!({}));
}

#[test]
fn sweep_writes_table_chart_page_and_json() {
    let server = Server::start("", &["--listen", "127.0.0.1:0", "--log", "warn"]);
    let url = format!("http://{}/healthz?<b>", server.addresses[0]);
    let dir = directory(&[]);
    let flags = ["--sweep", "1,2,4,8", "-d", "200ms", "--json", "out.json", "--html", "out.html"];
    let ran = run(dir.path(), &http(&url, &flags));
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let table: Vec<&str> = ran.stdout.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(table.len(), 6, "{}", ran.stdout);
    assert!(table[0].starts_with("| connections | average latency | request / second | p50"));
    assert!(ran.stdout.contains("Saturates at ") || ran.stdout.contains("Not saturated:"));
    let report = json(&dir.path().join("out.json"));
    let rows = report["rows"].as_array().unwrap();
    let connections: Vec<u64> =
        rows.iter().map(|row| row["connections"].as_u64().unwrap()).collect();
    assert_eq!(connections, [1, 2, 4, 8]);
    for row in rows {
        // Little's law: on an idle machine, connections hardly wait for the generator.
        let deviation = row["little_deviation"].as_f64().unwrap();
        assert!((-0.5..0.05).contains(&deviation), "{row}");
    }
    let page = std::fs::read_to_string(dir.path().join("out.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("healthz?&lt;b&gt;"));
    assert!(!page.contains("<script") && !page.contains("<b>"));
}

#[test]
fn invalid_benchmark_flags_are_named_and_nothing_is_sent() {
    let dir = directory(&[("no.pem", "no PEM")]);
    let url = "http://127.0.0.1:1/";
    for (url, flags, words) in [
        ("ftp://127.0.0.1/", &[][..], "not of the schemes"),
        ("127.0.0.1/", &[], "not an absolute URL"),
        ("ws://127.0.0.1/", &[], "a WebSocket URL"),
        ("http://no-such-host.invalid/", &[], "--map no-such-host.invalid=ADDRESS"),
        (url, &["-c", "0"], "from 1 to"),
        (url, &["-c", "2", "-t", "3"], "-t must not exceed -c"),
        (url, &["-d", "10x"], "time unit"),
        (url, &["-R", "0"], "rate"),
        (url, &["-H", "no colon"], "NAME: VALUE"),
        (url, &["-H", "Content-Length: 5"], "follows from the body"),
        (url, &["--method", "a b"], "not an HTTP method"),
        (url, &["--body", "@missing"], "cannot read missing"),
        (url, &["--sweep", "1,x"], "from 1 to"),
        (url, &["--sweep", "1,2", "-c", "3"], "cannot be used with"),
        (url, &["--html", "a.html"], "--sweep"),
        ("https://127.0.0.1:1/", &["--roots", "no.pem"], "no certificate"),
    ] {
        let ran = run(dir.path(), &http(url, flags));
        assert_eq!(ran.status.code(), Some(2), "{flags:?}: {ran:?}");
        assert!(ran.stderr.contains(words), "{words:?} is not in\n{}", ran.stderr);
    }
    let ran = run(dir.path(), &http(url, &["-d", "100ms"]));
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let words = "cannot connect to 127.0.0.1:1: connection refused";
    assert!(ran.stderr.contains(words), "{}", ran.stderr);
}

#[test]
fn malformed_response_fails_with_its_reason() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            use std::io::Write;
            // Fails if the client has disconnected.
            let _ = stream.unwrap().write_all(b"220 mail.example.org ESMTP\r\n");
        }
    });
    let dir = directory(&[]);
    let ran = run(dir.path(), &http(&url, &["-d", "300ms", "-c", "2"]));
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(ran.stdout.contains("Socket errors: connect 0, read "), "{}", ran.stdout);
    assert!(ran.stderr.contains("no request was answered"), "{}", ran.stderr);
}

#[test]
fn first_signal_ends_the_benchmark_with_its_results() {
    let server = Server::start("", &["--listen", "127.0.0.1:0", "--log", "warn"]);
    let url = format!("http://{}/healthz", server.addresses[0]);
    for (flags, wanted) in [
        (&["-d", "1h"][..], "Interrupted before 1h"),
        (&["-d", "1h", "--sweep", "1,2"], "| connections | average latency"),
    ] {
        let before = server.metric("simurgh_reads_total");
        let child = Command::new(simurgh())
            .args(http(&url, flags))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until("requests come", || {
            (server.metric("simurgh_reads_total") > before + 1_000).then_some(())
        });
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
        let ended = child.wait_with_output().unwrap();
        let text = String::from_utf8(ended.stdout).unwrap();
        assert_eq!(ended.status.code(), Some(0), "{text}");
        assert!(text.contains(wanted) && text.contains("Requests/sec:"), "{text}");
    }
}

#[test]
fn connections_above_the_descriptor_limit_need_threads_or_fail() {
    let server = Server::start("", &["--listen", "127.0.0.1:0", "--log", "warn"]);
    let url = format!("http://{}/healthz", server.addresses[0]);
    let limited = |flags: &str| {
        let program = simurgh();
        let line = format!("ulimit -n 256; {} load http {url} {flags}", program.display());
        Command::new("sh").args(["-c", &line]).output().unwrap()
    };
    let ended = limited("-c 600 -d 500ms");
    let text = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert!(text.contains(" 3 threads and 600 connections"), "{text}");
    assert!(!text.contains("Socket errors"), "{text}");
    let ended = limited("-c 600 -t 1 -d 500ms");
    let text = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(text.contains("take -t 3, or raise the limit"), "{text}");
}

const NGINX: &str = "/usr/sbin/nginx";

/// nginx in one process, with a page of 2,404 bytes and its log; killed when dropped.
struct Nginx {
    child: Child,
    dir: tempfile::TempDir,
    address: String,
}

impl Nginx {
    fn start(http: &str) -> Self {
        let page = "x".repeat(2404);
        // nginx cannot choose a free port, so the port may be in use by now.
        for _ in 0..5 {
            let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let dir = directory(&[("page.html", &page)]);
            let at = dir.path().display();
            let conf = format!(
                "daemon off; master_process off; error_log {at}/error.log; pid {at}/pid;\n\
                 events {{ worker_connections 512; }}\n\
                 http {{ log_format short '$connection $status $bytes_sent';\n\
                 access_log {at}/access.log short;\n\
                 client_body_temp_path {at}/1; proxy_temp_path {at}/2; fastcgi_temp_path {at}/3;\n\
                 uwsgi_temp_path {at}/4; scgi_temp_path {at}/5;\n\
                 {http}\n\
                 server {{ listen {free}; root {at}; }} }}"
            );
            std::fs::write(dir.path().join("nginx.conf"), conf).unwrap();
            let child = Command::new(NGINX)
                .args(["-e", "stderr", "-c"])
                .arg(dir.path().join("nginx.conf"))
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut nginx = Self { child, dir, address: free.to_string() };
            let until = Instant::now() + crate::support::WAIT;
            while Instant::now() < until && nginx.child.try_wait().unwrap().is_none() {
                if TcpStream::connect(&nginx.address).is_ok() {
                    return nginx;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        panic!("nginx does not listen")
    }

    /// Ends it and returns its log: the connection, status and bytes of each response.
    fn log(mut self) -> Vec<(u64, u16, u64)> {
        let pid = self.child.id().to_string();
        // SIGQUIT completes the log first.
        assert!(Command::new("kill").args(["-s", "QUIT", &pid]).status().unwrap().success());
        self.child.wait().unwrap();
        let text = std::fs::read_to_string(self.dir.path().join("access.log")).unwrap();
        let number = |word: Option<&str>| word.and_then(|word| word.parse::<u64>().ok()).unwrap();
        text.lines()
            .map(|line| {
                let mut words = line.split(' ');
                let (one, two, three) = (words.next(), words.next(), words.next());
                (number(one), number(two) as u16, number(three))
            })
            .collect()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "needs nginx"]
fn counted_requests_equal_the_nginx_log() {
    // Each connection is closed after 100 requests.
    let nginx = Nginx::start("keepalive_requests 100;");
    let dir = directory(&[]);
    let url = format!("http://{}/page.html", nginx.address);
    let ran = run(dir.path(), &http(&url, &["-c", "8", "-d", "700ms", "--json", "out.json"]));
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let report = json(&dir.path().join("out.json"));
    let log = nginx.log();
    let served = log.iter().filter(|(_, status, _)| *status == 200).count() as u64;
    let requests = report["requests"].as_u64().unwrap();
    // The difference is the requests in flight at the end.
    assert!(served >= requests && served - requests <= 8, "{served}: {report}");
    assert_eq!(report["errors"], serde_json::json!({}), "{report}");
    let bytes: u64 = log.iter().map(|(_, _, bytes)| bytes).sum();
    let read = report["bytes_read"].as_u64().unwrap();
    assert!(read <= bytes && bytes - read <= 8 * 3000, "{bytes}: {report}");
    let connections: BTreeSet<u64> = log.iter().map(|(connection, ..)| *connection).collect();
    let reconnects = report["reconnects"].as_u64().unwrap();
    assert!(reconnects >= requests / 100 - 8 && reconnects <= requests / 100, "{report}");
    let opened = reconnects + 8;
    assert!(opened.abs_diff(connections.len() as u64) <= 8, "{connections:?}: {report}");
}
