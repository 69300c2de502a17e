//! The broker between the nodes: a nats-server, on the clients' core.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use simurgh_bench_kit::process::{self, Process};
use simurgh_bench_kit::rounds::Bench;
use simurgh_bench_kit::sys::Cpu;
use simurgh_bench_kit::target::CLIENT_CORE;
use simurgh_bench_kit::wait;

/// Names the program, also for the tests.
const VARIABLE: &str = "SIMURGH_NATS_SERVER";
/// The time limit of a start.
const STARTS: Duration = Duration::from_secs(10);

pub(super) struct Broker {
    program: PathBuf,
    log: PathBuf,
    /// The directory of its store; `None` if it keeps nothing.
    store: Option<PathBuf>,
    /// The address, which stays the same after a restart.
    pub(super) address: SocketAddr,
    /// `None` after a crash.
    process: Option<Process>,
}

impl Broker {
    /// A new broker that keeps nothing, on a free port.
    pub(super) fn start(bench: &Bench<'_>) -> Result<Self> {
        Self::start_with(bench, None)
    }

    /// A new broker with JetStream, with an empty store in files.
    pub(super) fn keeping(bench: &Bench<'_>) -> Result<Self> {
        let store = bench.scratch.join("store");
        match fs::remove_dir_all(&store) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        Self::start_with(bench, Some(store))
    }

    fn start_with(bench: &Bench<'_>, store: Option<PathBuf>) -> Result<Self> {
        let program = std::env::var_os(VARIABLE).map(PathBuf::from).with_context(|| {
            format!("{VARIABLE} names no nats-server: `cargo xtask engine` installs one")
        })?;
        ensure!(program.is_file(), "{VARIABLE} is {}, which is no file", program.display());
        let directory = bench.scratch.join("broker");
        fs::create_dir_all(&directory)?;
        let place = directory.display().to_string();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let log = bench.scratch.join("broker-log");
        let mut broker = Self { program, log, store, address, process: None };
        let pid = broker.spawn(&["-p", "-1", "--ports_file_dir", &place])?;
        let file = directory.join(format!("nats-server_{pid}.ports"));
        until("the broker tells its port", || {
            Ok(port(&file).inspect(|port| broker.address.set_port(*port)).is_some())
        })?;
        Ok(broker)
    }

    pub(super) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Kills it, like a crash.
    pub(super) fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again on the same address, and waits until it accepts connections.
    pub(super) fn start_again(&mut self) -> Result<()> {
        let port = self.address.port().to_string();
        self.spawn(&["-p", &port])?;
        let second = Duration::from_secs(1);
        until("the broker listens again", || {
            Ok(TcpStream::connect_timeout(&self.address, second).is_ok())
        })
    }

    fn spawn(&mut self, arguments: &[&str]) -> Result<u32> {
        let store =
            self.store.iter().flat_map(|it| ["-js".as_ref(), "-sd".as_ref(), it.as_os_str()]);
        let process = Process::start(
            process::command(&self.program, Some(CLIENT_CORE), None)?
                .args(["-a", "127.0.0.1"])
                .args(store)
                .args(arguments)
                .stderr(File::options().create(true).append(true).open(&self.log)?),
        )?;
        Ok(self.process.insert(process).pid())
    }

    fn process(&self) -> Result<&Process> {
        self.process.as_ref().context("the broker does not run")
    }

    pub(super) fn cpu(&self) -> Result<Cpu> {
        self.process()?.cpu()
    }

    /// Stops or continues it.
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        self.process()?.signal(signal)
    }
}

fn until(what: &str, is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    wait::until(what, STARTS, Duration::from_millis(20), is_so)
}

fn port(file: &Path) -> Option<u16> {
    let ports: Value = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
    ports.get("nats")?.get(0)?.as_str()?.rsplit_once(':')?.1.parse().ok()
}
