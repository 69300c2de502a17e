//! The page benchmark: `hello_page`, which renders its page for each request, compared with nginx,
//! which sends a file of the same size with a head of the same size; `simurgh load http` requests
//! both.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::nginx::{Nginx, Site};
use super::tools::{self, Tool};
use simurgh_bench_kit::net::head_length;
use simurgh_bench_kit::process::{self, Process};
use simurgh_bench_kit::rounds::table::{Recipe, read};
use simurgh_bench_kit::rounds::{Bench, Job, Options, Sample, Suite, USUAL};
use simurgh_bench_kit::target::SERVER_CORE;
use simurgh_bench_kit::{stats, wait};

/// Connections at once. With more than `LIMITS_MAX` requests only queue, and there are no limits.
const CONNECTIONS: [usize; 8] = [1, 2, 4, 8, 16, 32, 128, 512];
const LIMITS_MAX: usize = 32;
const WAIT_MAX: Duration = Duration::from_secs(10);

pub(crate) const SUITE: Suite = Suite {
    name: "page",
    about: "The page of examples/hello_page beside nginx",
    jobs: || vec![Job::new("page", run)],
    runs: 7,
    clients: (0, 0),
    order: "for each number of connections nginx and hello_page; the order changes each round",
    recipes,
    ..USUAL
};

fn recipes(_: &Options) -> Result<Vec<Recipe>> {
    let mut all = Vec::new();
    for connections in CONNECTIONS {
        let limits = [("{cpu}", "≤ 15"), ("{rate}", "÷ ≥ 0.8"), ("{spread}", "÷ ≤ 1.2")];
        let limits = limits.map(|(name, limit)| match connections <= LIMITS_MAX {
            true => (name, limit.to_owned()),
            false => (name, String::new()),
        });
        let values = [&limits[..], &[("{c}", connections.to_string())]].concat();
        all.extend(read(include_str!("page.txt"), &values)?);
    }
    Ok(all)
}

/// A running server; ended when dropped.
struct Server {
    address: SocketAddrV4,
    process: Process,
    /// The prefix of its figures.
    side: &'static str,
}

fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let program = bench.program.with_file_name("hello_page");
    ensure!(program.is_file(), "{}: cargo build --release -p hello_page", program.display());
    let mut command = process::command(&program, Some(SERVER_CORE), None)?;
    let mut process = Process::with_output(command.args(["--listen", "127.0.0.1:0"]))?;
    let address = process.line("listening on http://", WAIT_MAX).context("hello_page")?;
    let address = address.parse().with_context(|| format!("address {address:?}"))?;
    wait::until("hello_page", WAIT_MAX, Duration::from_millis(20), || {
        Ok(response(address).is_ok())
    })?;
    let page = Server { address, process, side: "" };
    let Nginx { address, process } = equal_nginx(bench, &response(page.address)?)?;
    // Both run all the time: the one without requests sleeps, so the two figures of a row are
    // seconds apart.
    let mut servers = [Server { address, process, side: "nginx " }, page];
    servers.rotate_left(sample.round % 2);
    for server in &servers {
        ask(bench, server, 8, 1)?;
    }
    let seconds = bench.options.seconds.unwrap_or(bench.options.size(2, 1));
    for connections in CONNECTIONS {
        for server in &servers {
            measure(bench, server, connections, seconds, sample)?;
        }
    }
    Ok(())
}

fn ask(
    bench: &Bench<'_>,
    server: &Server,
    connections: usize,
    seconds: u64,
) -> Result<tools::Figures> {
    let (url, time) = (format!("http://{}/", server.address), Duration::from_secs(seconds));
    tools::run(Tool::Simurgh, &bench.program, &url, connections, time, &bench.scratch)
}

fn measure(
    bench: &Bench<'_>,
    server: &Server,
    connections: usize,
    seconds: u64,
    sample: &mut Sample,
) -> Result<()> {
    std::thread::sleep(Duration::from_millis(100));
    let before = server.process.cpu()?;
    let found = ask(bench, server, connections, seconds)?;
    std::thread::sleep(Duration::from_millis(50));
    let cpu_us = stats::per(server.process.cpu()?.since(&before).0, 1_000) / found.requests;
    let (p50, p99) = found.measured_us.context("no latencies")?;
    let name = |figure: &str| format!("{}c{connections} {figure}", server.side);
    sample.put(name("cpu_us"), cpu_us);
    sample.put(name("per_cpu_s"), 1e6 / cpu_us);
    sample.put(name("spread"), p99 / p50.max(1.0));
    sample.put(name("p50_us"), p50);
    sample.put(name("per_s"), found.requests / found.seconds);
    Ok(())
}

/// The body of the answer to a request, and the bytes of the whole answer.
fn response(server: SocketAddrV4) -> Result<(Vec<u8>, usize)> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(WAIT_MAX))?;
    write!(stream, "GET / HTTP/1.1\r\nHost: {server}\r\n\r\n")?;
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        let count = stream.read(&mut part)?;
        ensure!(count > 0, "closed in the middle of an answer");
        bytes.extend(part.iter().take(count));
        let Some(length) = head_length(&bytes) else { continue };
        let (head, body) = bytes.split_at(length);
        let head = String::from_utf8_lossy(head).to_lowercase();
        ensure!(head.starts_with("http/1.1 200"), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        if body.len() >= length.context("no content-length")?.trim().parse()? {
            return Ok((body.to_vec(), bytes.len()));
        }
    }
}

/// nginx with the body as its file, and a head that makes the response as long.
fn equal_nginx(bench: &Bench<'_>, (body, bytes): &(Vec<u8>, usize)) -> Result<Nginx> {
    let directory = bench.scratch.join("nginx");
    fs::create_dir_all(directory.join("root"))?;
    fs::write(directory.join("root/index.html"), body)?;
    let mut site = Site { directory, filler: None };
    let plain = response(Nginx::start(&site)?.address)?.1;
    let around = "X-Filler: \r\n".len();
    site.filler = bytes.checked_sub(plain + around).filter(|bytes| *bytes > 0);
    let nginx = Nginx::start(&site)?;
    let now = response(nginx.address)?.1;
    if now != *bytes {
        bail!("nginx answers {now} bytes, the page {bytes}");
    }
    Ok(nginx)
}
