//! Nodes with tables and clients, with a bad network between them, driven by proptest's numbers.
#![allow(unreachable_pub)]

pub mod client;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use simurgh_presence::{
    Applied, Delta, Diff, Extra, Meta, Owner, PhxRef, PhxRefs, Snapshot, Table,
};

use client::Client;

/// Six keys with a special meaning in JavaScript, JSON or a careless table, and two without.
pub const KEYS: [&str; 8] =
    ["a", "b", "", "__proto__", "constructor", "toString", "é", "\"q\\\n\u{1}"];

/// An operation and its operands, which are taken modulo what exists.
pub type Step = (u8, u16, u16);

#[derive(Clone)]
enum Message {
    Delta(Delta),
    Ask(usize),
    Snapshot(Snapshot),
}

#[derive(Clone, Debug, PartialEq)]
struct Own {
    member: u32,
    key: &'static str,
    phx_ref: PhxRef,
    prev: Option<PhxRef>,
    meta: Meta,
    told: bool,
}

pub struct Node {
    pub table: Table<u32>,
    refs: PhxRefs,
    own: Vec<Own>,
    /// The first was there from the start.
    clients: Vec<Client>,
    /// Everything that the last newcomer has received.
    pub events: Vec<String>,
}

pub struct TestCluster {
    pub nodes: Vec<Node>,
    wire: Vec<(usize, Message)>,
    metas: u32,
    refs: BTreeSet<PhxRef>,
    /// Whether a node was taken for gone, so that entries may be in another order.
    reordered: bool,
}

impl TestCluster {
    pub fn new(nodes: usize) -> Self {
        let node = |n| Node {
            table: Table::new(Owner(n), n * 7),
            refs: PhxRefs::new(Owner(n)),
            own: Vec::new(),
            clients: vec![Client::default()],
            events: vec![r#"{"state":{}}"#.into()],
        };
        let nodes = (0..nodes as u64).map(node).collect();
        let refs = BTreeSet::new();
        TestCluster { nodes, wire: Vec::new(), metas: 0, refs, reordered: false }
    }

    pub fn step(&mut self, (what, a, b): Step) {
        let count = self.nodes.len();
        let node = usize::from(a) % count;
        let (member, key) = (u32::from(b % 5), KEYS[usize::from(b / 5) % KEYS.len()]);
        match what % 16 {
            0..=3 => self.track(node, member, key),
            4 | 5 => self.update(node, member, key),
            6 => self.untrack(node, member, key),
            7 => self.untrack_all(node, member),
            8 | 9 => self.diff(node),
            10 => self.publish(node),
            11 | 12 => self.deliver(usize::from(b)),
            13 => match usize::from(b).checked_rem(self.wire.len()) {
                Some(at) if b % 3 == 0 => self.wire.push(self.wire[at].clone()),
                Some(at) => drop(self.wire.remove(at)),
                None => self.publish(node),
            },
            14 => self.newcomer(node),
            _ => {
                let gone = usize::from(b) % count;
                if b % 7 == 0 && gone != node {
                    self.reordered = true;
                    self.nodes[node].table.node_down(Owner(gone as u64));
                }
            }
        }
        let table = &self.nodes[node].table;
        assert_eq!(table.keys(), table.iter().count());
        assert_eq!(table.len(), table.iter().map(|it| it.metas().count()).sum::<usize>());
        let others = table.iter().flat_map(|it| it.metas()).filter(|it| it.owner.0 != node as u64);
        assert_eq!(table.remote(), others.count());
    }

    fn meta(&mut self) -> Meta {
        self.metas += 1;
        Meta::parse(format!(r#"{{ "n": {}, "x": 1.50 }}"#, self.metas)).unwrap()
    }

    /// With a clock that goes back now and then.
    fn phx_ref(&mut self, node: usize) -> PhxRef {
        let now_us = 1 + u64::from(self.metas * 5 % 7);
        let phx_ref = self.nodes[node].refs.next(now_us);
        assert!(self.refs.insert(phx_ref), "{phx_ref} comes twice");
        phx_ref
    }

    fn track(&mut self, node: usize, member: u32, key: &'static str) {
        let (meta, phx_ref) = (self.meta(), self.phx_ref(node));
        let node = &mut self.nodes[node];
        let known = node.own.iter().any(|own| own.member == member && own.key == key);
        assert_eq!(node.table.track(member, key, meta.clone(), phx_ref).is_err(), known);
        if !known {
            node.own.push(Own { member, key, phx_ref, prev: None, meta, told: false });
        }
    }

    fn update(&mut self, node: usize, member: u32, key: &'static str) {
        let (meta, phx_ref) = (self.meta(), self.phx_ref(node));
        let node = &mut self.nodes[node];
        let at = node.own.iter().position(|own| own.member == member && own.key == key);
        assert_eq!(node.table.update(member, key, meta.clone(), phx_ref).is_ok(), at.is_some());
        if let Some(at) = at {
            let was = node.own.remove(at);
            let prev = if was.told { Some(was.phx_ref) } else { was.prev };
            node.own.push(Own { phx_ref, prev, meta, told: false, ..was });
        }
    }

    fn untrack(&mut self, node: usize, member: u32, key: &str) {
        let node = &mut self.nodes[node];
        let before = node.own.len();
        node.own.retain(|own| (own.member, own.key) != (member, key));
        assert_eq!(node.table.untrack(member, key), node.own.len() < before);
    }

    fn untrack_all(&mut self, node: usize, member: u32) {
        let node = &mut self.nodes[node];
        let before = node.own.len();
        node.own.retain(|own| own.member != member);
        assert_eq!(node.table.untrack_all(member), before - node.own.len());
    }

    fn diff(&mut self, node: usize) {
        self.nodes[node].enrich();
        let node = &mut self.nodes[node];
        let diff = node.table.take_diff();
        node.own.iter_mut().for_each(|own| own.told = true);
        if let Some(diff) = diff {
            node.receive(&diff, self.reordered);
        }
        assert!(!node.table.has_changes());
        assert_eq!(node.table.take_diff(), None);
        let node = &*node;
        let list = sorted(self.reordered, node.list());
        for (at, client) in node.clients.iter().enumerate() {
            assert_eq!(sorted(self.reordered, client.state()), list, "client {at}");
        }
    }

    fn publish(&mut self, node: usize) {
        let delta = self.nodes[node].table.take_delta();
        let delta = delta.unwrap_or_else(|| self.nodes[node].table.repeat_delta());
        for to in (0..self.nodes.len()).filter(|&to| to != node) {
            self.wire.push((to, Message::Delta(delta.clone())));
        }
    }

    fn deliver(&mut self, which: usize) {
        let Some(at) = which.checked_rem(self.wire.len()) else { return };
        let (to, message) = self.wire.remove(at);
        let table = &mut self.nodes[to].table;
        let applied = match message {
            Message::Ask(from) => {
                let snapshot = table.snapshot();
                self.wire.push((from, Message::Snapshot(snapshot)));
                return;
            }
            Message::Delta(delta) => table.learn(delta),
            Message::Snapshot(snapshot) => table.answer(snapshot),
        };
        if let Applied::Missing { owner, .. } = applied {
            self.wire.push((owner.0 as usize, Message::Ask(to)));
        }
    }

    /// A new member, or one that joins again, is sent the state as it is.
    fn newcomer(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        node.enrich();
        let mut out = Vec::new();
        node.table.encode_state(&mut out);
        let text = String::from_utf8(out).unwrap();
        let slack = node.table.len() + 2;
        assert!(text.len() <= node.table.state_bytes() + 8 * slack, "{text}");
        node.events.push(format!(r#"{{"state":{text}}}"#));
        let mut client = match node.clients.len() {
            4.. => node.clients.remove(1),
            _ => Client::default(),
        };
        client.sync_state(serde_json::from_str(&text).unwrap());
        node.clients.push(client);
    }

    /// Drops what is in transit; the network is reliable from now on.
    pub fn heal(&mut self) {
        self.wire.clear();
        for from in 0..self.nodes.len() {
            self.publish(from);
            let repeat = self.nodes[from].table.repeat_delta();
            for to in (0..self.nodes.len()).filter(|&to| to != from) {
                self.wire.push((to, Message::Delta(repeat.clone())));
            }
        }
        while !self.wire.is_empty() {
            self.deliver(0);
        }
        for node in 0..self.nodes.len() {
            self.diff(node);
        }
    }

    /// Every table has the entries of all owners, and nothing else.
    pub fn check_union(&self) {
        let all: BTreeMap<(Owner, PhxRef), (&str, &Meta)> = (0..)
            .zip(&self.nodes)
            .flat_map(|(n, node)| {
                node.own.iter().map(move |own| ((Owner(n), own.phx_ref), (own.key, &own.meta)))
            })
            .collect();
        for node in &self.nodes {
            let there: BTreeMap<_, _> = node
                .table
                .iter()
                .flat_map(|it| it.metas().map(move |e| ((e.owner, e.phx_ref), (it.key(), e.meta))))
                .collect();
            assert_eq!(there, all);
            node.check_own();
        }
    }

    pub fn is_reordered(&self) -> bool {
        self.reordered
    }
}

/// An entry that came back may have another place among its key's metas.
fn sorted(reordered: bool, mut list: Map<String, Value>) -> Map<String, Value> {
    if reordered {
        for it in list.values_mut() {
            let metas = it["metas"].as_array_mut().unwrap();
            metas.sort_by_key(|meta| meta["phx_ref"].as_str().map(str::to_owned));
        }
    }
    list
}

/// Every other key has a name.
fn extra(key: &str) -> Option<Extra> {
    let at = KEYS.iter().position(|it| *it == key).unwrap();
    (at % 2 == 1).then(|| Extra::parse(format!(r#"{{"name": "number {at}"}}"#)).unwrap())
}

impl Node {
    fn enrich(&mut self) {
        for key in KEYS {
            if let Some(extra) = extra(key) {
                self.table.enrich(key, extra);
            }
        }
    }

    fn receive(&mut self, diff: &Diff, may_be_back: bool) {
        let refs = |changes: &[simurgh_presence::Change]| -> Vec<PhxRef> {
            changes.iter().flat_map(|it| it.metas.iter().map(|meta| meta.phx_ref)).collect()
        };
        let (joined, left) = (refs(&diff.joins), refs(&diff.leaves));
        assert!(!joined.iter().any(|it| left.contains(it)), "{diff:?}");
        for change in diff.joins.iter().chain(&diff.leaves) {
            assert_eq!(change.extra, extra(&change.key));
        }
        let known = self.clients[0].refs();
        for meta in diff.joins.iter().flat_map(|it| &it.metas) {
            if known.contains(&meta.phx_ref.to_string()) {
                assert!(may_be_back, "{diff:?}");
                continue;
            }
            if let Some(prev) = meta.phx_ref_prev {
                assert!(known.contains(&prev.to_string()) && left.contains(&prev), "{diff:?}");
            }
        }
        let mut out = Vec::new();
        diff.encode(&mut out);
        let text = String::from_utf8(out).unwrap();
        self.events.push(format!(r#"{{"diff":{text}}}"#));
        for client in &mut self.clients {
            client.sync_diff(&serde_json::from_str(&text).unwrap());
        }
    }

    /// The list as text.
    pub fn list_text(&mut self) -> String {
        let mut out = Vec::new();
        self.table.encode_state(&mut out);
        String::from_utf8(out).unwrap()
    }

    fn list(&self) -> Map<String, Value> {
        let mut list = Map::new();
        for it in self.table.iter() {
            let meta = |e: simurgh_presence::Listed<'_, u32>| {
                let mut meta: Value = serde_json::from_str(e.meta.as_str()).unwrap();
                meta["phx_ref"] = e.phx_ref.to_string().into();
                if let Some(prev) = e.phx_ref_prev {
                    meta["phx_ref_prev"] = prev.to_string().into();
                }
                meta
            };
            let text = it.extra().map_or("{}", Extra::as_str);
            let mut value: Value = serde_json::from_str(text).unwrap();
            value["metas"] = it.metas().map(meta).collect();
            assert!(list.insert(it.key().to_owned(), value).is_none(), "{} twice", it.key());
            assert_eq!(self.table.get(it.key()).unwrap().metas().count(), it.metas().count());
        }
        list
    }

    fn check_own(&self) {
        for key in KEYS {
            let must = self.own.iter().filter(|own| own.key == key);
            let must: Vec<_> =
                must.map(|own| (own.member, own.phx_ref, own.prev, &own.meta)).collect();
            let metas = self.table.get(key).into_iter().flat_map(|it| it.metas());
            let are: Vec<_> = metas
                .filter_map(|e| Some((e.member?, e.phx_ref, e.phx_ref_prev, e.meta)))
                .collect();
            assert_eq!(are, must);
        }
        assert_eq!(self.table.snapshot().entries.len(), self.own.len());
    }
}
