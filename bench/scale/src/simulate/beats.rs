//! Beats, by the code that decides when they are: calm, and after all links were gone.

use simurgh_cluster::{Beat, Hello, NodeId, Peers, PeersConfig, SplitMix64};

use super::chance::Chance;

const SECOND: u64 = 1_000_000_000;
/// Turns of the simulated clock.
const STEP: u64 = 10_000_000;
/// How long nodes take to have a link again: 100 ms · 2^k up to 5 s.
const LINKED: u64 = 5 * SECOND;

/// What nodes say to all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said {
    /// How many nodes.
    pub nodes: usize,
    /// Envelopes a second that each hears while nothing happens.
    pub calm: f64,
    /// All hellos and beats in the ten seconds after all links were gone, each heard by all.
    pub back: usize,
    /// The most of them in 200 ms.
    pub burst: usize,
}

impl Said {
    /// The most envelopes that all nodes together are handed in a second after that.
    pub fn burst_copies(&self) -> f64 {
        5.0 * self.burst as f64 * (self.nodes as f64 - 1.0)
    }
}

struct World {
    peers: Vec<Peers>,
    is_up: Vec<bool>,
}

fn beat(at: usize) -> Beat {
    Beat {
        id: NodeId(at as u64 + 1),
        name: format!("node-{at}").into(),
        version: "0".into(),
        envelopes: (1, 1),
        sockets: 0,
        is_draining: false,
        unix_ms: 0,
    }
}

impl World {
    fn tell(&mut self, from: usize, is_hello: bool, now_ns: u64) {
        let beat = beat(from);
        for (at, peers) in self.peers.iter_mut().enumerate() {
            if at == from || !self.is_up.get(at).copied().unwrap_or_default() {
                continue;
            }
            match is_hello {
                true => {
                    let hello = Hello { beat: beat.clone(), settings: Vec::new() };
                    peers.hello(&hello, now_ns, 0);
                }
                false => peers.heard(&beat, now_ns, 0),
            }
        }
    }

    /// All that is due; how many envelopes.
    fn beats(&mut self, now_ns: u64) -> usize {
        let due: Vec<usize> = self
            .peers
            .iter_mut()
            .enumerate()
            .filter_map(|(at, peers)| peers.beat_due(now_ns).then_some(at))
            .collect();
        for at in &due {
            self.tell(*at, false, now_ns);
        }
        for peers in &mut self.peers {
            peers.tick(now_ns);
            while peers.poll_event().is_some() {}
        }
        due.len()
    }
}

/// So many nodes for 20 s, then without links, then for 10 s more.
pub fn run(nodes: usize, seed: u64) -> Said {
    let mut chance = SplitMix64::new(seed);
    let new = |at: usize| {
        Peers::new(beat(at).id, &format!("node-{at}"), PeersConfig::default(), seed ^ at as u64)
    };
    let mut world = World { peers: (0..nodes).map(new).collect(), is_up: vec![true; nodes] };
    world.peers.iter_mut().for_each(|it| it.link_up(0));
    // The first ones are hellos: all know each other, and the answers are over.
    for at in 0..nodes {
        world.tell(at, true, 0);
    }
    let (mut calm, mut now) = (0, 0);
    while now < 20 * SECOND {
        now += STEP;
        let said = world.beats(now);
        calm += if now > 4 * SECOND { said } else { 0 };
    }
    world.peers.iter_mut().for_each(|it| it.link_down(now));
    world.is_up.fill(false);
    let linked: Vec<u64> = (0..nodes).map(|_| now + chance.below(LINKED)).collect();
    let end = now + 10 * SECOND;
    let mut said = Vec::new();
    while now < end {
        now += STEP;
        let mut envelopes = 0;
        for (at, linked) in linked.iter().enumerate() {
            if *linked <= now && *linked + STEP > now {
                if let Some(is_up) = world.is_up.get_mut(at) {
                    *is_up = true;
                }
                if let Some(peers) = world.peers.get_mut(at) {
                    peers.link_up(now);
                }
                world.tell(at, true, now);
                envelopes += 1;
            }
        }
        said.push(envelopes + world.beats(now));
    }
    let burst = said.windows(20).map(|it| it.iter().sum()).max().unwrap_or_default();
    let each = if nodes > 1 { (nodes - 1) as f64 / nodes as f64 } else { 0.0 };
    Said { nodes, calm: calm as f64 / 16.0 * each, back: said.iter().sum(), burst }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_hears_half_as_many_beats_a_second_as_there_are_others() {
        for nodes in [10, 60] {
            let said = run(nodes, 3);
            let expected = (nodes as f64 - 1.0) / 2.0;
            assert!((said.calm - expected).abs() < 0.05 * expected, "{said:?} {expected}");
        }
    }

    /// Each hello is answered by a beat of everybody who is there, but not more often than each
    /// 100 ms: so it is not nodes × nodes envelopes.
    #[test]
    fn nodes_that_all_come_back_do_not_answer_each_of_them() {
        let said = run(100, 3);
        assert!(said.back >= 200, "{said:?}");
        // 5 s of hellos at one beat each 100 ms at the most, and the calm beats behind them.
        assert!(said.back < 100 * (50 + 10), "{said:?}");
        // A node sends at most two in 200 ms, and its hello.
        assert!(said.burst <= 300, "{said:?}");
    }
}
