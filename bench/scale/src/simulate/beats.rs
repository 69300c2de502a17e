//! Simulates beats with the code that schedules them: quiet, and after all links were lost.

use simurgh_cluster::{Beat, Hello, NodeId, Peers, PeersConfig, SplitMix64};

use super::random::Random;

const SECOND: u64 = 1_000_000_000;
/// A step of the simulated clock.
const STEP: u64 = 10_000_000;
/// The longest time until a node has a link again: 100 ms · 2^k up to 5 s.
const LINKED: u64 = 5 * SECOND;

/// The beats and hellos of the nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beats {
    /// How many nodes.
    pub nodes: usize,
    /// Envelopes a second that each node receives while all is quiet.
    pub calm: f64,
    /// All hellos and beats in the ten seconds after all links were lost, each received by all.
    pub back: usize,
    /// The most of them in 200 ms.
    pub burst: usize,
}

impl Beats {
    /// The most envelopes that all nodes together receive in a second after that.
    pub fn burst_copies(&self) -> f64 {
        5.0 * self.burst as f64 * (self.nodes as f64 - 1.0)
    }
}

struct Simulation {
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

impl Simulation {
    fn send(&mut self, from: usize, is_hello: bool, now_ns: u64) {
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

    /// Sends all due envelopes and returns their number.
    fn beats(&mut self, now_ns: u64) -> usize {
        let due: Vec<usize> = self
            .peers
            .iter_mut()
            .enumerate()
            .filter_map(|(at, peers)| peers.beat_due(now_ns).then_some(at))
            .collect();
        for at in &due {
            self.send(*at, false, now_ns);
        }
        for peers in &mut self.peers {
            peers.tick(now_ns);
            while peers.poll_event().is_some() {}
        }
        due.len()
    }
}

/// Simulates this many nodes for 20 s, then without links, then for 10 s more.
pub fn run(nodes: usize, seed: u64) -> Beats {
    let mut random = SplitMix64::new(seed);
    let new = |at: usize| {
        Peers::new(beat(at).id, &format!("node-{at}"), PeersConfig::default(), seed ^ at as u64)
    };
    let mut simulation =
        Simulation { peers: (0..nodes).map(new).collect(), is_up: vec![true; nodes] };
    simulation.peers.iter_mut().for_each(|it| it.link_up(0));
    // The first ones are hellos: by now all nodes know each other, and the answers are over.
    for at in 0..nodes {
        simulation.send(at, true, 0);
    }
    let (mut calm, mut now) = (0, 0);
    while now < 20 * SECOND {
        now += STEP;
        let sent = simulation.beats(now);
        calm += if now > 4 * SECOND { sent } else { 0 };
    }
    simulation.peers.iter_mut().for_each(|it| it.link_down(now));
    simulation.is_up.fill(false);
    let linked: Vec<u64> = (0..nodes).map(|_| now + random.below(LINKED)).collect();
    let end = now + 10 * SECOND;
    let mut sent = Vec::new();
    while now < end {
        now += STEP;
        let mut envelopes = 0;
        for (at, linked) in linked.iter().enumerate() {
            if *linked <= now && *linked + STEP > now {
                if let Some(is_up) = simulation.is_up.get_mut(at) {
                    *is_up = true;
                }
                if let Some(peers) = simulation.peers.get_mut(at) {
                    peers.link_up(now);
                }
                simulation.send(at, true, now);
                envelopes += 1;
            }
        }
        sent.push(envelopes + simulation.beats(now));
    }
    let burst = sent.windows(20).map(|it| it.iter().sum()).max().unwrap_or_default();
    let each = if nodes > 1 { (nodes - 1) as f64 / nodes as f64 } else { 0.0 };
    Beats { nodes, calm: calm as f64 / 16.0 * each, back: sent.iter().sum(), burst }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_hears_half_as_many_beats_a_second_as_there_are_others() {
        for nodes in [10, 60] {
            let sent = run(nodes, 3);
            let expected = (nodes as f64 - 1.0) / 2.0;
            assert!((sent.calm - expected).abs() < 0.05 * expected, "{sent:?} {expected}");
        }
    }

    /// Each node answers hellos by a beat at most every 100 ms: fewer than nodes × nodes envelopes.
    #[test]
    fn nodes_that_all_come_back_do_not_answer_each_of_them() {
        let sent = run(100, 3);
        assert!(sent.back >= 200, "{sent:?}");
        // 5 s of hellos with at most one beat each 100 ms, and the quiet beats after them.
        assert!(sent.back < 100 * (50 + 10), "{sent:?}");
        // A node sends at most two in 200 ms, and its hello.
        assert!(sent.burst <= 300, "{sent:?}");
    }
}
