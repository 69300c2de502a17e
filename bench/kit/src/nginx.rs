//! nginx, in one configuration for speed that all benchmarks share. `simurgh-bench nginx` serves
//! with it for programs outside this crate.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{self, Process};
use crate::{sys, wait};

/// Where Debian installs it.
pub const PROGRAM: &str = "/usr/sbin/nginx";
const WAIT_MAX: Duration = Duration::from_secs(10);
/// nginx cannot listen on port 0, and a free port may be taken before it starts.
const ATTEMPTS: usize = 5;

/// A directory to serve, and the settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// The nginx program.
    pub program: PathBuf,
    /// Has the files below `root`, and nginx writes its own files here.
    pub directory: PathBuf,
    /// Length of a header that makes each response longer.
    pub filler: Option<usize>,
    /// The core that it is pinned to.
    pub core: Option<usize>,
    /// Processes, each with one thread, on one port.
    pub processes: usize,
}

/// A running nginx; ended when dropped.
pub struct Nginx {
    /// The address it listens on.
    pub address: SocketAddrV4,
    /// Its processes, each with one thread.
    pub processes: Vec<Process>,
}

impl Site {
    /// Files in `directory`/root, from one process on `core`.
    pub fn new(directory: &Path, core: Option<usize>) -> Self {
        let (program, directory) = (PathBuf::from(PROGRAM), directory.to_owned());
        Self { program, directory, filler: None, core, processes: 1 }
    }

    /// No log, connections kept open, the files kept open, head and file in one packet; enough
    /// connections for every benchmark, waiting ones included.
    pub fn configuration(&self) -> String {
        let header = self.filler.map_or_else(String::new, |bytes| {
            format!("        add_header X-Filler {};\n", "x".repeat(bytes))
        });
        format!(
            "daemon off;\nmaster_process off;\nworker_processes 1;\nerror_log stderr crit;\n\
             pid DIRECTORY/pid;\nevents {{\n\
             \x20   worker_connections 4096;\n    multi_accept on;\n}}\n\
             http {{\n    access_log off;\n    sendfile on;\n    tcp_nopush on;\n    \
             tcp_nodelay on;\n    keepalive_timeout 3600;\n    keepalive_requests 1000000000;\n    \
             open_file_cache max=100 inactive=60s;\n    open_file_cache_valid 60s;\n    \
             default_type text/html;\n    client_body_temp_path DIRECTORY/a;\n    \
             proxy_temp_path DIRECTORY/b;\n    fastcgi_temp_path DIRECTORY/c;\n    \
             uwsgi_temp_path DIRECTORY/d;\n    scgi_temp_path DIRECTORY/e;\n    server {{\n        \
             listen ADDRESS reuseport backlog=4096;\n        root DIRECTORY/root;\n{header}    \
             }}\n}}\n"
        )
    }
}

impl Nginx {
    /// Starts it and waits until it listens.
    pub fn start(site: &Site) -> Result<Self> {
        ensure!(site.program.is_file(), "{} is not there (nginx)", site.program.display());
        let place = site.directory.to_str().context("the directory's name is not UTF-8")?;
        let text = site.configuration().replace("DIRECTORY", place);
        let file = site.directory.join("nginx.conf");
        for _ in 0..ATTEMPTS {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, free);
            fs::write(&file, text.replace("ADDRESS", &address.to_string()))?;
            let mut nginx = Self { address, processes: Vec::new() };
            for _ in 0..site.processes {
                let mut command = process::command(&site.program, site.core, None)?;
                command.arg("-p").arg(place).arg("-c").arg(&file).args(["-e", "stderr"]);
                nginx.processes.push(Process::start(command.stdout(Stdio::null()))?);
            }
            if nginx.listens()? {
                return Ok(nginx);
            }
        }
        bail!("nginx does not stay, or found no free port")
    }

    /// CPU time of all its threads so far.
    pub fn cpu_ns(&self) -> Result<u64> {
        process::cpu_ns(&self.processes)
    }

    /// Waits until it listens; `false` if it has ended.
    fn listens(&mut self) -> Result<bool> {
        let mut has_ended = false;
        wait::until("nginx listens", WAIT_MAX, Duration::from_millis(20), || {
            has_ended = self.has_ended()?;
            Ok(has_ended || TcpStream::connect(self.address).is_ok())
        })?;
        if self.processes.len() > 1 {
            // It cannot be seen which of them took the connection.
            thread::sleep(Duration::from_millis(200));
        }
        Ok(!has_ended && !self.has_ended()?)
    }

    fn has_ended(&mut self) -> Result<bool> {
        let mut ended = false;
        for process in &mut self.processes {
            ended |= process.status()?.is_some();
        }
        Ok(ended)
    }
}

/// Prints the address and serves until it is killed or the parent ends.
pub fn serve(site: &Site) -> Result<()> {
    sys::die_with_parent()?;
    let mut nginx = Nginx::start(site)?;
    println!("listening on http://{}", nginx.address);
    let process = nginx.processes.first_mut().context("nginx has no process")?;
    bail!("nginx has ended: {}", process.wait()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filler_is_a_header_and_no_more() {
        let plain = Site::new(Path::new("/nowhere"), Some(0));
        let filled = Site { filler: Some(3), ..plain.clone() };
        let (plain, filled) = (plain.configuration(), filled.configuration());
        assert_eq!(filled.replace("        add_header X-Filler xxx;\n", ""), plain);
        assert_eq!(plain.matches('{').count(), plain.matches('}').count());
    }
}
