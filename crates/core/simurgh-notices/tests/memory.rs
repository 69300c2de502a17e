//! What memberships and open stays cost (BACKENDS §9), measured with the heap's own counter.

use simurgh_history::Epoch;
use simurgh_notices::{Key, Notices, Output, Reporter, Settings, Time};

#[global_allocator]
static HEAP: dhat::Alloc = dhat::Alloc;

const TOPICS: usize = 10_000;
const MEMBERS: usize = 10;

fn keys() -> impl Iterator<Item = Key> {
    let of = |topic: usize, user| Key::member(&format!("rooms:{topic}"), &format!("user{user}"));
    (0..TOPICS).flat_map(move |topic| (0..MEMBERS).map(move |user| of(topic, user)))
}

fn heap() -> usize {
    dhat::HeapStats::get().curr_bytes
}

fn main() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let time = Time { ns: 1, unix_ms: 1_795_773_600_000 };
    let memberships = TOPICS * MEMBERS;
    let before = heap();
    let mut reporter = Reporter::new(5);
    keys().for_each(|key| reporter.begin(key, time));
    let membership = (heap() - before) / memberships;
    drop(reporter);

    let before = heap();
    let settings = Settings { is_durable: true, ..Settings::default() };
    let mut node = Notices::new((1, "n1"), settings, true, 5);
    keys().for_each(|key| node.begin(key, time));
    while let Some(output) = node.poll(time) {
        match output {
            Output::Follow(partition) => {
                let Some(coordinator) = node.coordinator_mut(partition) else { continue };
                coordinator.begun(Epoch::from_seed(1), Vec::new(), time);
            }
            Output::Append(partition, entries) => {
                let Some(coordinator) = node.coordinator_mut(partition) else { continue };
                entries.into_iter().for_each(|entry| coordinator.read(1, entry, time));
            }
            _ => {}
        }
    }
    let open = |partition| node.coordinator(partition).map_or(0, |it| it.counts().0);
    let stays: usize = (0..16).map(open).sum();
    let stay = (heap() - before - membership * memberships) / stays;
    println!("{membership} bytes a membership; {stays} open stays, {stay} bytes each");
    assert_eq!(stays, memberships + TOPICS);
    assert!(membership <= 100 && stay <= 250);
}
