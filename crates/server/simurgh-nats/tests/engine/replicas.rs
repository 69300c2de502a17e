//! A stream on three servers, whose leader is killed.
#![allow(clippy::disallowed_types, reason = "a test has no reactor")]

use std::net::TcpListener;
use std::time::Duration;

use simurgh_cluster::adapter::NotStored;
use simurgh_cluster::{Adapter as _, Event};
use simurgh_nats::{Config, Replicas, StreamsConfig};

use crate::support::{Engine, Node, operator, prefix};

struct Servers(Vec<Engine>);

impl Servers {
    fn start() -> Self {
        // Each needs the ports of the others when it starts.
        let free = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = free.map(|it| it.local_addr().unwrap().port());
        let routes = ports.map(|it| format!("\"nats://127.0.0.1:{it}\"")).join(", ");
        let server = |at: usize| {
            Engine::start(&format!(
                "server_name: s{at}\njetstream {{ store_dir: \"kept\" }}\n\
                 cluster {{ name: c, listen: \"127.0.0.1:{}\", routes = [{routes}] }}",
                ports[at]
            ))
        };
        Self((0..3).map(server).collect())
    }

    fn node(&self, id: u64) -> Node {
        let servers = self.0.iter().map(|it| it.address().parse().unwrap()).collect();
        let mut config = Config::new(servers, prefix(), "test");
        let replicas = Replicas::Three;
        config.streams =
            Some(StreamsConfig { replicas, count_max: 10_000, ..StreamsConfig::default() });
        Node::start(id, config)
    }

    /// The index of the stream's leader.
    fn leader(&self) -> usize {
        let mut left = 100;
        loop {
            let port = self.0[0].port;
            let info = operator::ask(port, "STREAM.INFO.P_H0", &serde_json::Value::Null);
            let leader = info.as_ref().and_then(|it| it["cluster"]["leader"].as_str());
            if let Some(at) = leader.and_then(|it| it.strip_prefix('s')?.parse().ok()) {
                return at;
            }
            left -= 1;
            assert!(left > 0, "nobody leads: {info:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

#[test]
#[ignore = "needs nats-server"]
fn a_stream_on_three_servers_keeps_what_it_confirmed_when_its_leader_is_killed() {
    let mut servers = Servers::start();
    let (mut one, mut other) = (servers.node(1), servers.node(2));
    let epoch = one.keeps();
    assert_eq!(other.keeps(), epoch);
    let words = one.adapter.measures().keeping.unwrap();
    assert!(words.contains("of 3 servers, of which one may be away"), "{words}");
    let mut tickets = Vec::new();
    let mut is_killed = false;
    for n in 0..1_200 {
        let text = format!("{n}");
        tickets.push((text.clone(), one.store("t", &text)));
        one.pass(Duration::from_millis(1));
        if n == 600 {
            let leader = servers.leader();
            servers.0[leader].kill();
            is_killed = true;
        }
    }
    assert!(is_killed);
    let mut confirmed = Vec::new();
    let (mut unconfirmed, mut refused) = (0, Vec::new());
    for (text, ticket) in tickets {
        match one.answer(ticket) {
            Event::Stored { seq, .. } => confirmed.push((seq, text)),
            Event::NotStored { why: NotStored::Unconfirmed, .. } => unconfirmed += 1,
            Event::NotStored { why: NotStored::Refused(_), .. } => refused.push(text),
            other => panic!("{other:?}"),
        }
    }
    println!("{} confirmed, {unconfirmed} not, {} refused", confirmed.len(), refused.len());
    assert!(confirmed.len() >= 600, "{}", confirmed.len());
    assert_eq!((one.keeps(), other.keeps()), (epoch, epoch), "it is what it was");
    for from_leader in [true, false] {
        let kept = other.all("t", from_leader);
        let missing = confirmed.iter().filter(|it| !kept.contains(it)).count();
        // A copy may lag behind.
        assert!(missing == 0 || !from_leader, "{missing} of {} are missing", confirmed.len());
        let mut texts: Vec<&String> = kept.iter().map(|it| &it.1).collect();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), kept.len(), "none is there twice");
        assert!(refused.iter().all(|it| !texts.contains(&it)), "one was refused, and is there");
    }
    // Two of three are enough.
    one.stored("t", "after");
}
