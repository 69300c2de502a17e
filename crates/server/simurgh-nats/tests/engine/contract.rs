//! What every adapter must do, with a nats-server and a proxy before each node.

use std::thread;
use std::time::Duration;

use adapter_tests::{Harness, Unsupported};
use simurgh_cluster::{Adapter, Prefix};
use simurgh_nats::{Config, Keeping, NatsAdapter};

use crate::support::proxy::Proxy;
use crate::support::{Engine, JETSTREAM, is_at_least, runtime};

struct Nats {
    engine: Engine,
    proxies: Vec<Proxy>,
}

impl Nats {
    fn start() -> Option<Self> {
        Some(Self { engine: Engine::start(JETSTREAM)?, proxies: vec![] })
    }
}

impl Harness for Nats {
    fn adapter(&mut self, prefix: &Prefix) -> Box<dyn Adapter> {
        let proxy = Proxy::to(self.engine.port);
        let server = format!("127.0.0.1:{}", proxy.port).parse().unwrap();
        self.proxies.push(proxy);
        let mut config = Config::new(vec![server], prefix.clone(), "contract");
        config.keeping = Some(Keeping::default());
        Box::new(NatsAdapter::new(config, runtime().handle().clone()))
    }

    fn pass(&mut self, time: Duration) {
        thread::sleep(time);
    }

    fn cut(&mut self, node: usize) -> Result<(), Unsupported> {
        self.proxies[node].cut();
        Ok(())
    }

    fn mend(&mut self, node: usize) -> Result<(), Unsupported> {
        self.proxies[node].mend();
        Ok(())
    }

    fn reset(&mut self, node: usize) -> Result<(), Unsupported> {
        self.proxies[node].reset();
        Ok(())
    }

    fn freeze(&mut self) -> Result<(), Unsupported> {
        self.engine.freeze();
        Ok(())
    }

    fn thaw(&mut self) -> Result<(), Unsupported> {
        self.engine.thaw();
        Ok(())
    }

    fn kill(&mut self) -> Result<(), Unsupported> {
        self.engine.kill();
        Ok(())
    }

    fn restart(&mut self) -> Result<(), Unsupported> {
        self.engine.restart();
        Ok(())
    }

    fn restart_empty(&mut self) -> Result<(), Unsupported> {
        self.engine.forget();
        self.engine.restart();
        Ok(())
    }

    /// An engine that is too old keeps nothing: those cases are skipped.
    fn keeps(&self) -> bool {
        is_at_least(11)
    }
}

adapter_tests::contract_tests!(match Nats::start() {
    Some(harness) => harness,
    // It says so itself.
    None => return,
});
