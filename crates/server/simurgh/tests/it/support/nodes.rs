//! Several servers of this process as nodes of one cluster; a thread advances the loopback's clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use simurgh::cluster::{ClusterConfig, Prefix};
use simurgh::{Builder, Cluster};
use simurgh_loopback::{Network, NetworkConfig, UNIX_MS};

pub struct Engine {
    pub network: Network,
    pub prefix: Prefix,
    has_ended: Arc<AtomicBool>,
    clock: Option<JoinHandle<()>>,
}

impl Engine {
    pub fn start() -> Self {
        let network = Network::new(1, NetworkConfig::default());
        let has_ended = Arc::new(AtomicBool::new(false));
        let (turned, is_over, began) = (network.clone(), Arc::clone(&has_ended), Instant::now());
        // Its wall clock is that of the nodes, which use it to find what is too old.
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let ahead = unix - Duration::from_millis(UNIX_MS);
        let clock = std::thread::spawn(move || {
            while !is_over.load(Relaxed) {
                turned.advance((ahead + began.elapsed()).as_nanos() as u64);
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let prefix = Prefix::new("t").unwrap();
        Self { network, prefix, has_ended, clock: Some(clock) }
    }

    pub fn node(&self, builder: Builder, name: &str) -> Builder {
        self.node_by(builder, name, |cluster| cluster)
    }

    /// As `node`, with other settings.
    pub fn node_by(
        &self,
        builder: Builder,
        name: &str,
        set: impl FnOnce(Cluster) -> Cluster,
    ) -> Builder {
        let config = ClusterConfig::new(self.prefix.clone(), name);
        let adapter = self.network.adapter(&self.prefix);
        builder.cluster(set(Cluster::new(config, move |_| adapter).required(super::WAIT_MAX)))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.has_ended.store(true, Relaxed);
        if let Some(clock) = self.clock.take() {
            let _ = clock.join();
        }
    }
}
