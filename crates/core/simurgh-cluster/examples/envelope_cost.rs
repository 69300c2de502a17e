//! What an envelope costs, in nanoseconds: `cargo run --release -p simurgh-cluster --example
//! envelope_cost`. Of many rounds the fastest counts: the others were disturbed.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "an example")]

use std::hint::black_box;
use std::time::Instant;

use simurgh_cluster::{
    Bucket, Draft, DuplicateFilter, Envelope, Header, Item, ItemPayload, NodeId,
};

const ROUNDS: usize = 200;
const EACH: u64 = 5_000;

fn ns(what: &str, mut work: impl FnMut(u64)) {
    let rounds = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        (0..EACH).for_each(&mut work);
        start.elapsed().as_nanos() as f64 / EACH as f64
    });
    println!("{what:<52}{:>8.1}", rounds.fold(f64::INFINITY, f64::min));
}

fn main() {
    let (topic, event) = ("rooms:lobby", "new:msg");
    let plain = format!(r#"{{"user":"zoe","body":"{}"}}"#, "hello, all of you! ".repeat(9));
    let rich = format!(r#"{{"at":17639,"list":[{}1],"user":null}}"#, r#"{"a":1.5},"#.repeat(16));
    for (name, text) in [("a text", &plain), ("many small values", &rich)] {
        let item = Item::new(event, ItemPayload::Json(text));
        let bytes = Draft::broadcast(NodeId(7), topic, &item).unwrap().numbered(1);
        let name = format!("{name}, {} B in {} B", text.len(), bytes.len());
        ns(&format!("decode: {name}"), |_| {
            let envelope = Envelope::decode(black_box(&bytes)).unwrap();
            black_box(envelope.items().next());
        });
        ns(&format!("encode: {name}"), |n| {
            let draft = Draft::broadcast(NodeId(7), topic, black_box(&item)).unwrap();
            black_box(draft.numbered(n + 1));
        });
    }
    let data = [7; 200];
    let item = Item::new(event, ItemPayload::Binary(&data));
    let mut bytes = Draft::broadcast(NodeId(7), topic, &item).unwrap().numbered(1);
    ns("decode: 200 raw bytes", |_| {
        black_box(Envelope::decode(black_box(&bytes)).unwrap());
    });
    ns("header alone", |_| {
        black_box(Header::read(black_box(&bytes)).unwrap());
    });
    ns("number given in place", |n| {
        bytes = simurgh_cluster::stamped(std::mem::take(&mut bytes), n + 1);
    });
    let (mut seen, mut n, bucket) = (DuplicateFilter::new(), 0, Bucket::of(topic));
    ns("bucket of a topic", |_| {
        black_box(Bucket::of(black_box(topic)));
    });
    ns("seen: the next", |_| {
        n += 1;
        black_box(seen.take(Some(bucket), black_box(n)));
    });
    ns("seen: again", |turn| {
        black_box(seen.take(Some(bucket), black_box(n - turn / 12)));
    });
}
