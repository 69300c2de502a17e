//! The two servers: how they are started, found and ended, and how nginx is made to send as much.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use simurgh_bench_kit::children::{self, Children};
use simurgh_bench_kit::nginx::{Nginx, Site};
use simurgh_bench_kit::target::SERVER_CORE;

/// No wait takes longer.
const WAIT_MAX: Duration = Duration::from_secs(10);
const HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// A server, not yet started.
pub(crate) enum Kind {
    /// The page under test.
    Page {
        /// Its binary.
        program: PathBuf,
    },
    /// nginx with one file.
    Nginx(Site),
}

/// A server that runs; ended when dropped.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddrV4,
    /// nginx has a process for each core.
    children: Children,
}

/// One response, read from the wire.
pub(crate) struct Sample {
    pub(crate) body: Vec<u8>,
    /// With its head.
    pub(crate) bytes: usize,
}

impl Kind {
    /// nginx's configuration.
    pub(crate) fn configuration(&self) -> String {
        match self {
            Self::Page { .. } => String::new(),
            Self::Nginx(site) => site.configuration(),
        }
    }
}

impl Server {
    /// Starts it, on one core or on all, and waits until it answers.
    pub(crate) fn start(kind: &Kind, is_shared: bool) -> Result<Self> {
        let server = match kind {
            Kind::Page { program } => Self::start_page(program, is_shared)?,
            Kind::Nginx(site) => {
                let Nginx { address, children } = Nginx::start(site)?;
                Self { name: "nginx", address, children }
            }
        };
        server.wait()?;
        Ok(server)
    }

    fn start_page(program: &Path, is_shared: bool) -> Result<Self> {
        let mut child = children::command(program, server_core(is_shared), None)?
            .args(["--listen", &format!("{HOST}:0")])
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let stdout = child.stdout.take().context("no output")?;
        let address = SocketAddrV4::new(HOST, 0);
        let mut server = Self { name: "hello_page", address, children: Children::default() };
        server.children.push(child);
        let (found, line) = mpsc::channel();
        thread::spawn(move || {
            let mut text = String::new();
            // Nobody waits for it after an error.
            if BufReader::new(stdout).read_line(&mut text).is_ok() {
                let _ = found.send(text);
            }
        });
        let line = line.recv_timeout(WAIT_MAX).context("hello_page does not say where it is")?;
        let address = line.trim().strip_prefix("listening on http://").context("its address")?;
        server.address = address.parse().with_context(|| format!("address {address:?}"))?;
        Ok(server)
    }

    fn wait(&self) -> Result<()> {
        let until = Instant::now() + WAIT_MAX;
        while let Err(error) = self.response() {
            ensure!(Instant::now() < until, "{} does not answer: {error:#}", self.name);
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// What it answers.
    pub(crate) fn response(&self) -> Result<Sample> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        write!(stream, "GET / HTTP/1.1\r\nHost: {}\r\n\r\n", self.address)?;
        let mut bytes = Vec::new();
        let mut part = [0; 4096];
        loop {
            let count = stream.read(&mut part)?;
            ensure!(count > 0, "closed in the middle of an answer");
            bytes.extend(part.iter().take(count));
            let head = bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4);
            let Some((head, body)) = head.and_then(|at| bytes.split_at_checked(at)) else {
                continue;
            };
            let head = String::from_utf8_lossy(head).to_lowercase();
            ensure!(head.starts_with("http/1.1 200"), "{head}");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
            if body.len() >= length.context("no content-length")?.trim().parse()? {
                return Ok(Sample { body: body.to_vec(), bytes: bytes.len() });
            }
        }
    }

    /// CPU time of all its threads so far.
    pub(crate) fn cpu_ns(&self) -> Result<u64> {
        self.children.cpu_ns()
    }
}

/// nginx with the sample's body as its file, and a head that makes the response as long.
pub(crate) fn equal_nginx(directory: &Path, sample: &Sample, is_shared: bool) -> Result<Kind> {
    fs::create_dir_all(directory.join("root"))?;
    fs::write(directory.join("root/index.html"), &sample.body)?;
    let processes = if is_shared { thread::available_parallelism()?.get() } else { 1 };
    let site = Site { processes, ..Site::new(directory, server_core(is_shared)) };
    let bytes = Server::start(&Kind::Nginx(site.clone()), is_shared)?.response()?.bytes;
    let around = "X-Filler: \r\n".len();
    let Some(filler) = sample.bytes.checked_sub(bytes + around).filter(|bytes| *bytes > 0) else {
        bail!("nginx answers {bytes} bytes, the page {}", sample.bytes);
    };
    let kind = Kind::Nginx(Site { filler: Some(filler), ..site });
    let now = Server::start(&kind, is_shared)?.response()?.bytes;
    ensure!(now == sample.bytes, "nginx answers {now} bytes, the page {}", sample.bytes);
    Ok(kind)
}

fn server_core(is_shared: bool) -> Option<usize> {
    (!is_shared).then_some(SERVER_CORE)
}
