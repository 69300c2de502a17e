//! nginx, in one configuration for speed that all benchmarks share.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use simurgh_bench_kit::process::{self, Process};
use simurgh_bench_kit::sys::Cpu;
use simurgh_bench_kit::target::SERVER_CORE;
use simurgh_bench_kit::wait;

/// Where Debian installs it.
const PROGRAM: &str = "/usr/sbin/nginx";
const WAIT_MAX: Duration = Duration::from_secs(10);
/// nginx cannot listen on port 0, and a free port may be taken before it starts.
const ATTEMPTS: usize = 5;

/// A directory to serve, and the settings.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Site {
    /// Has the files below `root`, and nginx writes its own files here.
    pub(super) directory: PathBuf,
    /// Length of a header that makes each response longer.
    pub(super) filler: Option<usize>,
}

/// A running nginx with one process, on the server's core; ended when dropped.
pub(super) struct Nginx {
    /// The address it listens on.
    pub(super) address: SocketAddrV4,
    /// Its process, which has one thread.
    pub(super) process: Process,
}

impl Site {
    /// No log, connections kept open, the files kept open, head and file in one packet; enough
    /// connections for every benchmark, waiting ones included.
    pub(super) fn configuration(&self) -> String {
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
    pub(super) fn start(site: &Site) -> Result<Self> {
        let program = Path::new(PROGRAM);
        ensure!(program.is_file(), "{PROGRAM} is not there (nginx)");
        let place = site.directory.to_str().context("the directory's name is not UTF-8")?;
        let text = site.configuration().replace("DIRECTORY", place);
        let file = site.directory.join("nginx.conf");
        for _ in 0..ATTEMPTS {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, free);
            fs::write(&file, text.replace("ADDRESS", &address.to_string()))?;
            let mut command = process::command(program, Some(SERVER_CORE), None)?;
            command.arg("-p").arg(place).arg("-c").arg(&file).args(["-e", "stderr"]);
            let process = Process::start(command.stdout(Stdio::null()))?;
            let mut nginx = Self { address, process };
            if nginx.listens()? {
                return Ok(nginx);
            }
        }
        bail!("nginx does not stay, or found no free port")
    }

    /// CPU time of its thread so far.
    pub(super) fn cpu_ns(&self) -> Result<u64> {
        Ok(self.process.cpu()?.since(&Cpu::default()).0)
    }

    /// Waits until it listens; `false` if it has ended.
    fn listens(&mut self) -> Result<bool> {
        let mut has_ended = false;
        wait::until("nginx listens", WAIT_MAX, Duration::from_millis(20), || {
            has_ended = self.process.status()?.is_some();
            Ok(has_ended || TcpStream::connect(self.address).is_ok())
        })?;
        Ok(!has_ended && self.process.status()?.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nginx_filler_adds_only_a_header() {
        let plain = Site { directory: "/nowhere".into(), filler: None };
        let filled = Site { filler: Some(3), ..plain.clone() };
        let (plain, filled) = (plain.configuration(), filled.configuration());
        assert_eq!(filled.replace("        add_header X-Filler xxx;\n", ""), plain);
        assert_eq!(plain.matches('{').count(), plain.matches('}').count());
    }
}
