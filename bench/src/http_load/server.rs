//! nginx with static files and nothing else, in one process on the server's core.

use std::fs;
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::stats;
use crate::sys::Cpu;
use crate::target::SERVER_CORE;

/// Killed when dropped.
pub(super) struct Nginx {
    child: Child,
    /// Where it listens.
    pub(super) address: SocketAddrV4,
}

impl Nginx {
    /// Serves these files, each of so many bytes, out of a directory below `scratch`.
    pub(super) fn start(program: &Path, scratch: &Path, files: &[(&str, usize)]) -> Result<Self> {
        let root = scratch.join("www");
        fs::create_dir_all(&root)?;
        for (name, bytes) in files {
            fs::write(root.join(name), "x".repeat(*bytes))?;
        }
        // nginx takes no port 0: a free one is asked for, and may be lost again in between.
        for _ in 0..5 {
            let free = TcpListener::bind("127.77.0.1:0")?.local_addr()?;
            let address: SocketAddrV4 = free.to_string().parse()?;
            let conf = scratch.join("nginx.conf");
            fs::write(&conf, configuration(scratch, &root, address))?;
            let child = Command::new(std::env::current_exe().context("own path")?)
                .args(["exec", "--core", &SERVER_CORE.to_string(), "--"])
                .arg(program)
                .arg("-c")
                .arg(&conf)
                .args(["-e", "stderr"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .context("start nginx")?;
            let mut nginx = Self { child, address };
            if nginx.listens()? {
                return Ok(nginx);
            }
        }
        bail!("nginx found no free port")
    }

    /// Waits until it does; `false` if it has ended.
    fn listens(&mut self) -> Result<bool> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(self.address).is_err() {
            if self.child.try_wait()?.is_some() {
                return Ok(false);
            }
            if Instant::now() > deadline {
                bail!("nginx does not listen");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(true)
    }

    /// CPU seconds so far.
    pub(super) fn cpu(&self) -> Result<f64> {
        let spent = Cpu::of(self.child.id())?;
        Ok(stats::per(spent.since(&Cpu::default()).0, 1_000_000_000))
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Fails only if it has ended already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One process, no log, connections that are never closed.
fn configuration(scratch: &Path, root: &Path, address: SocketAddrV4) -> String {
    let (scratch, root) = (scratch.display(), root.display());
    format!(
        "daemon off; master_process off; error_log stderr; pid {scratch}/nginx.pid;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n\
           access_log off; keepalive_requests 1000000000; keepalive_timeout 3600;\n\
           client_body_temp_path {scratch}/body; proxy_temp_path {scratch}/proxy;\n\
           fastcgi_temp_path {scratch}/fastcgi; uwsgi_temp_path {scratch}/uwsgi;\n\
           scgi_temp_path {scratch}/scgi;\n\
           server {{ listen {address} backlog=4096; root {root}; }}\n\
         }}\n"
    )
}
