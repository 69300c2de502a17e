//! The two servers: how they are started, found and ended, and how nginx is made to send as much.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::sys::Cpu;
use crate::target::SERVER_CORE;

/// No wait takes longer.
const PATIENCE: Duration = Duration::from_secs(10);
const NGINX: &str = "/usr/sbin/nginx";
const HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// A server, not yet started.
pub(crate) enum Kind {
    /// The page under test.
    Page {
        /// Its binary.
        program: PathBuf,
    },
    /// nginx with one file.
    Nginx {
        /// Its files.
        directory: PathBuf,
        /// A header that makes its responses as long as the page's.
        filler: Option<usize>,
    },
}

/// A server that runs; ended when dropped.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddrV4,
    /// nginx has a process for each core.
    children: Vec<Child>,
}

/// One response, read from the wire.
pub(crate) struct Sample {
    pub(crate) body: Vec<u8>,
    /// With its head.
    pub(crate) bytes: usize,
}

impl Kind {
    /// nginx's configuration, as a user would have it who wants it fast: no log, `sendfile`, head
    /// and file in one packet, connections kept, the file kept open.
    pub(crate) fn config(&self) -> String {
        let Self::Nginx { filler, .. } = self else { return String::new() };
        let header = filler.map_or_else(String::new, |bytes| {
            format!("        add_header X-Filler {};\n", "x".repeat(bytes))
        });
        format!(
            "daemon off;\nmaster_process off;\nworker_processes 1;\nerror_log stderr crit;\n\
             pid DIRECTORY/pid;\nevents {{\n\
             \x20   worker_connections 1024;\n    multi_accept on;\n}}\n\
             http {{\n    access_log off;\n    sendfile on;\n    tcp_nopush on;\n    \
             tcp_nodelay on;\n    keepalive_timeout 65;\n    keepalive_requests 1000000000;\n    \
             open_file_cache max=100 inactive=60s;\n    open_file_cache_valid 60s;\n    \
             default_type text/html;\n    client_body_temp_path DIRECTORY/a;\n    \
             proxy_temp_path DIRECTORY/b;\n    fastcgi_temp_path DIRECTORY/c;\n    \
             uwsgi_temp_path DIRECTORY/d;\n    scgi_temp_path DIRECTORY/e;\n    server {{\n        \
             listen ADDRESS reuseport;\n        root DIRECTORY/root;\n{header}    }}\n}}\n"
        )
    }
}

impl Server {
    /// Starts it, on one core or on all, and waits until it answers.
    pub(crate) fn start(kind: &Kind, is_shared: bool) -> Result<Self> {
        match kind {
            Kind::Page { program } => Self::start_page(program, is_shared),
            Kind::Nginx { directory, .. } => Self::start_nginx(kind, directory, is_shared),
        }
    }

    fn start_page(program: &Path, is_shared: bool) -> Result<Self> {
        let listen = format!("{HOST}:0");
        let mut child = command(program, &["--listen", &listen], is_shared)?
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let stdout = child.stdout.take().context("no output")?;
        let address = SocketAddrV4::new(HOST, 0);
        let mut server = Self { name: "hello_page", address, children: vec![child] };
        let (found, line) = mpsc::channel();
        thread::spawn(move || {
            let mut text = String::new();
            // Nobody waits for it after an error.
            if BufReader::new(stdout).read_line(&mut text).is_ok() {
                let _ = found.send(text);
            }
        });
        let line = line.recv_timeout(PATIENCE).context("hello_page does not say where it is")?;
        let address = line.trim().strip_prefix("listening on http://").context("its address")?;
        server.address = address.parse().with_context(|| format!("address {address:?}"))?;
        server.wait()?;
        Ok(server)
    }

    fn start_nginx(kind: &Kind, directory: &Path, is_shared: bool) -> Result<Self> {
        // It cannot take port 0 and say which.
        let free = TcpListener::bind((HOST, 0))?.local_addr()?;
        let address = SocketAddrV4::new(HOST, free.port());
        let place = directory.to_str().context("the directory's name is not UTF-8")?;
        let text = kind.config().replace("DIRECTORY", place);
        let config = directory.join("nginx.conf");
        fs::write(&config, text.replace("ADDRESS", &address.to_string()))?;
        let config = config.to_string_lossy().into_owned();
        let mut server = Self { name: "nginx", address, children: Vec::new() };
        let processes = if is_shared { thread::available_parallelism()?.get() } else { 1 };
        for _ in 0..processes {
            let arguments = ["-p", place, "-c", &config, "-e", "stderr"];
            let child = command(Path::new(NGINX), &arguments, is_shared)?.spawn();
            server.children.push(child.context("start nginx (Debian's package of that name)")?);
        }
        server.wait()?;
        Ok(server)
    }

    fn wait(&self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while let Err(error) = self.response() {
            ensure!(Instant::now() < until, "{} does not answer: {error:#}", self.name);
            thread::sleep(Duration::from_millis(20));
        }
        // Of two processes both have to listen by now.
        thread::sleep(Duration::from_millis(200));
        Ok(())
    }

    /// What it answers.
    pub(crate) fn response(&self) -> Result<Sample> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
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
        let of = |child: &Child| Ok(Cpu::of(child.id())?.since(&Cpu::default()).0);
        self.children.iter().map(of).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Fails only if it has ended already, which is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// nginx with the sample's body as its file, and a head that makes the response as long.
pub(crate) fn equal_nginx(directory: &Path, sample: &Sample, is_shared: bool) -> Result<Kind> {
    fs::create_dir_all(directory.join("root"))?;
    fs::write(directory.join("root/index.html"), &sample.body)?;
    let plain = Kind::Nginx { directory: directory.to_owned(), filler: None };
    let bytes = Server::start(&plain, is_shared)?.response()?.bytes;
    let around = "X-Filler: \r\n".len();
    let Some(filler) = sample.bytes.checked_sub(bytes + around).filter(|bytes| *bytes > 0) else {
        bail!("nginx answers {bytes} bytes, the page {}", sample.bytes);
    };
    let kind = Kind::Nginx { directory: directory.to_owned(), filler: Some(filler) };
    let now = Server::start(&kind, is_shared)?.response()?.bytes;
    ensure!(now == sample.bytes, "nginx answers {now} bytes, the page {}", sample.bytes);
    Ok(kind)
}

/// Through our own `exec`, which pins itself and asks to die with us before it becomes the server.
fn command(program: &Path, arguments: &[&str], is_shared: bool) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("own path")?);
    command.arg("exec");
    if !is_shared {
        command.args(["--core", &SERVER_CORE.to_string()]);
    }
    command.arg("--").arg(program).args(arguments).stdin(Stdio::null());
    Ok(command)
}
