//! The two servers: start, address and end, and an nginx response of the same size.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use simurgh_bench_kit::net::head_length;
use simurgh_bench_kit::nginx::{Nginx, Site};
use simurgh_bench_kit::process::{self, Process};
use simurgh_bench_kit::target::SERVER_CORE;
use simurgh_bench_kit::wait;

const WAIT_MAX: Duration = Duration::from_secs(10);
const HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// A server that is not started yet.
pub(crate) enum Kind {
    Page {
        program: PathBuf,
    },
    /// nginx with one file.
    Nginx(Site),
}

/// A running server; ended when dropped.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddrV4,
    /// nginx has a process for each core.
    processes: Vec<Process>,
}

pub(crate) struct Sample {
    pub(crate) body: Vec<u8>,
    pub(crate) bytes: usize,
}

impl Kind {
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
                let Nginx { address, processes } = Nginx::start(site)?;
                Self { name: "nginx", address, processes }
            }
        };
        server.wait()?;
        Ok(server)
    }

    fn start_page(program: &Path, is_shared: bool) -> Result<Self> {
        let mut command = process::command(program, server_core(is_shared), None)?;
        let mut process = Process::with_output(command.args(["--listen", &format!("{HOST}:0")]))?;
        let address = process.line("listening on http://", WAIT_MAX).context("hello_page")?;
        let address = address.parse().with_context(|| format!("address {address:?}"))?;
        Ok(Self { name: "hello_page", address, processes: vec![process] })
    }

    fn wait(&self) -> Result<()> {
        wait::until(self.name, WAIT_MAX, Duration::from_millis(20), || Ok(self.response().is_ok()))
    }

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
            let Some(length) = head_length(&bytes) else { continue };
            let (head, body) = bytes.split_at(length);
            let head = String::from_utf8_lossy(head).to_lowercase();
            ensure!(head.starts_with("http/1.1 200"), "{head}");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
            if body.len() >= length.context("no content-length")?.trim().parse()? {
                return Ok(Sample { body: body.to_vec(), bytes: bytes.len() });
            }
        }
    }

    pub(crate) fn cpu_ns(&self) -> Result<u64> {
        process::cpu_ns(&self.processes)
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
