//! The requirements of every adapter, with a nats-server and a proxy before each node.

use std::thread;
use std::time::Duration;

use adapter_tests::{Fault, Harness, Tried};
use simurgh_cluster::{Adapter, Prefix};
use simurgh_nats::{Config, NatsAdapter, StreamsConfig};

use crate::support::proxy::Proxy;
use crate::support::{Engine, STORE, runtime};

struct Nats {
    engine: Engine,
    proxies: Vec<Proxy>,
}

impl Nats {
    fn start() -> Self {
        Self { engine: Engine::start(STORE), proxies: vec![] }
    }
}

impl Harness for Nats {
    fn adapter(&mut self, prefix: &Prefix) -> Box<dyn Adapter> {
        let proxy = Proxy::to(self.engine.port());
        let server = format!("127.0.0.1:{}", proxy.port).parse().unwrap();
        self.proxies.push(proxy);
        let mut config = Config::new(vec![server], prefix.clone(), "contract");
        config.streams = Some(StreamsConfig { has_log: true, ..StreamsConfig::default() });
        Box::new(NatsAdapter::new(config, runtime().handle().clone()))
    }

    fn pass(&mut self, time: Duration) {
        thread::sleep(time);
    }

    fn inject(&mut self, fault: Fault) -> Tried {
        match fault {
            Fault::Cut(node) => self.proxies[node].cut(),
            Fault::Mend(node) => self.proxies[node].mend(),
            Fault::Reset(node) => self.proxies[node].reset(),
            Fault::Freeze => self.engine.freeze(),
            Fault::Thaw => self.engine.thaw(),
            Fault::Kill => self.engine.kill(),
            Fault::Restart => self.engine.restart(),
            Fault::RestartEmpty => {
                self.engine.lose_store();
                self.engine.restart();
            }
        }
        Ok(())
    }

    fn keeps(&self) -> bool {
        true
    }
}

adapter_tests::contract_tests!(
    #[ignore = "needs nats-server"]
    Nats::start()
);
