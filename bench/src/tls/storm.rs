//! Many handshakes at once, and the heartbeats of a client that was there before.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use simurgh_bench_kit::net;
use simurgh_bench_kit::rounds::Sample;
use simurgh_bench_kit::target::Target;
use simurgh_tls::rustls::ClientConfig;
use simurgh_tls::{Handshake, Progress};

use crate::fairness::probe::{Activity, Probe};

const CLIENTS: usize = 6_000;
const WAIT_MAX: Duration = Duration::from_secs(20);

struct Client {
    stream: TcpStream,
    handshake: Handshake,
    hello: Vec<u8>,
}

/// All clients are connected before the first sends its ClientHello; then all send theirs at once.
pub(super) fn run(target: &Target, log: &Path, sample: &mut Sample) -> Result<()> {
    let server = target.start(log)?;
    let (address, config) = server.entrance();
    let config = config.context("a target with TLS")?;
    let probe = Probe::start(server.address, Activity::Heartbeat)?;
    let hellos = (0..CLIENTS).map(|_| hello(&config)).collect::<Result<Vec<_>>>()?;
    let mut clients = Vec::new();
    for (at, (handshake, hello)) in hellos.into_iter().enumerate() {
        let stream = TcpStream::from(net::dial(address, at, true)?);
        stream.set_read_timeout(Some(WAIT_MAX))?;
        clients.push(Client { stream, handshake, hello });
    }
    let cpu = server.cpu()?;
    let begun = Instant::now();
    for client in &mut clients {
        client.stream.write_all(&client.hello)?;
    }
    let mut refused = 0;
    for client in &mut clients {
        refused += usize::from(finish(client).is_err());
    }
    let until = begun + WAIT_MAX;
    while server.sum("simurgh_tls_handshakes_total")? < (CLIENTS - refused) as f64 {
        ensure!(Instant::now() < until, "handshakes are missing");
        std::thread::sleep(Duration::from_millis(10));
    }
    let ended = Instant::now();
    sample.put("storm_s", ended.duration_since(begun).as_secs_f64());
    sample.put("storm_cpu_us", server.spent(&cpu)? as f64 / 1e3 / CLIENTS as f64);
    sample.put_count("storm_refused", refused);
    sample.put("storm_turn_ms", server.sum("simurgh_shard_turn_cpu_max_seconds")? * 1e3);
    probe.end()?.put(sample, "storm heartbeat", begun, ended);
    Ok(())
}

fn hello(config: &Arc<ClientConfig>) -> Result<(Handshake, Vec<u8>)> {
    let mut hello = Vec::new();
    let handshake = Handshake::client(config, "localhost".try_into()?, &mut hello)?;
    Ok((handshake, hello))
}

fn finish(client: &mut Client) -> Result<()> {
    let mut buffer = [0; 4096];
    loop {
        let bytes = client.stream.read(&mut buffer)?;
        ensure!(bytes > 0, "the server closed");
        let mut answer = Vec::new();
        let input = buffer.get(..bytes).unwrap_or_default();
        let progress = client.handshake.receive(input, &mut answer)?;
        client.stream.write_all(&answer)?;
        if progress == Progress::Done {
            return Ok(());
        }
    }
}
