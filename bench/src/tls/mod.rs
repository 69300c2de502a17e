//! What TLS costs: `simurgh serve` without it, with it, and with the record layer of rustls, in
//! turn, with the clients and phases of the suite `server`.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use simurgh_bench_kit::rounds::{Bench, Job, Sample, Suite, USUAL, table};
use simurgh_bench_kit::stats;
use simurgh_bench_kit::sys;
use simurgh_bench_kit::target::{CLIENT_CORE, Target};
use simurgh_tls::rustls::client::Resumption;
use simurgh_tls::rustls::crypto::{CryptoProvider, ring};
use simurgh_tls::rustls::pki_types::pem::PemObject;
use simurgh_tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use simurgh_tls::rustls::server::NoServerSessionStorage;
use simurgh_tls::rustls::{
    CipherSuite, ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection,
    version,
};

use crate::server::measured;

mod storm;

const MEASURES: [&str; 7] = ["memory", "spaced", "burst", "heartbeat", "connect", "turn", "storm"];
/// Handshakes in memory, of which the median counts.
const HANDSHAKES: usize = 400;

pub(crate) const SUITE: Suite = Suite {
    name: "tls",
    about: "The cost of TLS, beside rustls as it comes",
    jobs: || MEASURES.map(|row| Job::new(row, |_, _| Ok(()))).into(),
    runs: 5,
    measure,
    order: "plain, TLS, rustls, plain, …; ÷ mean of the two plain runs around",
    recipes: |_| table::read(include_str!("table.txt"), &[]),
    ..USUAL
};

struct Certificate {
    chain: String,
    key: String,
    client: Arc<ClientConfig>,
}

fn certificate(folder: &Path) -> Result<Certificate> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()])?;
    let (chain, key) = (folder.join("chain.pem"), folder.join("key.pem"));
    fs::write(&chain, made.cert.pem())?;
    fs::write(&key, made.signing_key.serialize_pem())?;
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone())?;
    let mut client = ClientConfig::builder_with_provider(Arc::new(aes_128()))
        .with_protocol_versions(&[&version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.resumption = Resumption::disabled();
    simurgh_tls::prepare_client(&mut client);
    let text = |path: &Path| path.to_str().map(str::to_owned).context("a path of text");
    Ok(Certificate { chain: text(&chain)?, key: text(&key)?, client: Arc::new(client) })
}

fn aes_128() -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider.cipher_suites.retain(|it| it.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256);
    provider
}

/// The table `[tls]` of a server.
fn settings(certificate: &Certificate, record_layer: &str) -> String {
    let Certificate { chain, key, .. } = certificate;
    format!(
        "\n[tls]\nlisten = \"127.77.0.1:0\"\ncertificate = \"{chain}\"\nkey = \"{key}\"\n\
         record_layer = \"{record_layer}\"\n"
    )
}

fn measure(_: &Suite, bench: &Bench<'_>) -> Result<Vec<Sample>> {
    sys::pin(CLIENT_CORE)?;
    let certificate = certificate(&bench.scratch)?;
    let plain = Target::simurgh(&bench.program, 1)?;
    let with = |record_layer| {
        let settings = settings(&certificate, record_layer);
        plain.clone().with_tls(settings, Arc::clone(&certificate.client))
    };
    let targets = [("", with("simurgh")), ("rustls ", with("rustls"))];
    let log = bench.scratch.join("tls-log");
    let shown = |name: &str, target: &Target| {
        let (begun, run) = (Instant::now(), measured(target, bench.options, &log));
        let seconds = begun.elapsed().as_secs_f64();
        eprintln!("{name}: {seconds:.0} s, {} faults", run.faults.len());
        run
    };
    let mut before = shown("plain", &plain);
    let mut samples = Vec::new();
    for round in 1..=bench.options.runs.unwrap_or(SUITE.runs) {
        let mut sample = Sample { round, load_average: f64::NAN, ..Sample::default() };
        sample.put("bare_handshake_us", bare_handshake_us(&certificate)?);
        if bench.options.wants("storm") {
            storm::run(&targets[0].1, &log, &mut sample)?;
        }
        let runs = targets.each_ref().map(|(name, target)| shown(&format!("tls {name}"), target));
        let after = shown("plain", &plain);
        for ((prefix, _), run) in targets.iter().zip(&runs) {
            add(&mut sample, prefix, run, (&before, &after));
        }
        before = after;
        samples.push(sample);
    }
    Ok(samples)
}

/// Adds the figures of a run with TLS, and as `plain …` the means of those without around it.
fn add(sample: &mut Sample, prefix: &str, run: &Sample, (before, after): (&Sample, &Sample)) {
    for (name, value) in &run.figures {
        sample.put(format!("{prefix}{name}"), *value);
    }
    sample.notes.extend(run.notes.iter().map(|it| format!("{prefix}tls: {it}")));
    for it in [run, before, after] {
        sample.faults.extend(it.faults.iter().cloned());
    }
    for (name, first) in &before.figures {
        let second = after.figures.get(name).unwrap_or(first);
        let plain = f64::midpoint(*first, *second);
        sample.put(format!("plain {name}"), plain);
        let Some(value) = run.figures.get(name) else { continue };
        match name.as_str() {
            "user_bytes" => sample.put(format!("{prefix}beyond_bytes"), value - plain),
            "connect_ns" => sample.put(format!("{prefix}handshake_us"), (value - plain) / 1e3),
            _ => {}
        }
    }
}

/// CPU time of a server's side of a full handshake with rustls in memory, microseconds: median.
fn bare_handshake_us(certificate: &Certificate) -> Result<f64> {
    let chain = CertificateDer::from_pem_file(&certificate.chain)?;
    let key = PrivateKeyDer::from_pem_file(&certificate.key)?;
    let mut server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)?;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.ticketer = ring::Ticketer::new()?;
    let server = Arc::new(server);
    let mut times = Vec::new();
    for _ in 0..HANDSHAKES {
        let name = "localhost".try_into()?;
        let mut client = ClientConnection::new(Arc::clone(&certificate.client), name)?;
        let mut hello = Vec::new();
        client.write_tls(&mut hello)?;
        let begun = Instant::now();
        let mut connection = ServerConnection::new(Arc::clone(&server))?;
        connection.read_tls(&mut &hello[..])?;
        connection.process_new_packets()?;
        let mut flight = Vec::new();
        while connection.wants_write() {
            connection.write_tls(&mut flight)?;
        }
        let first = begun.elapsed();
        client.read_tls(&mut &flight[..])?;
        client.process_new_packets()?;
        let mut finished = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut finished)?;
        }
        let begun = Instant::now();
        connection.read_tls(&mut &finished[..])?;
        connection.process_new_packets()?;
        let mut tickets = Vec::new();
        while connection.wants_write() {
            connection.write_tls(&mut tickets)?;
        }
        times.push((first + begun.elapsed()).as_secs_f64() * 1e6);
        black_box(connection);
    }
    stats::median(&times).context("no handshake")
}
