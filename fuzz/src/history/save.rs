//! Any bytes as a saved history, unchanged and with a right checksum.
use simurgh_history::{KeptTopic, Place, SaveError, Saver, saved};

const HEAD: &[u8] = b"simurgh\n\x01";

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    if let Ok(topics) = read(data) {
        check(&topics);
    }
    let mut sealed = [HEAD, data].concat();
    sealed.extend_from_slice(&crc32fast::hash(&sealed).to_le_bytes());
    match read(&sealed) {
        Ok(topics) => check(&topics),
        Err(SaveError::Malformed { at } | SaveError::Value { at }) => assert!(at <= sealed.len()),
        Err(error) => panic!("{error} of a whole save"),
    }
    if let Some(cut) = sealed.get(..sealed.len() - 1) {
        assert!(read(cut).is_err(), "cut, it is refused");
    }
}

type Topics<'a> = Vec<(&'a str, KeptTopic<Vec<u8>>)>;

fn read(bytes: &[u8]) -> Result<Topics<'_>, SaveError> {
    saved(bytes, 7, |value| (value.first() != Some(&0xff)).then(|| value.to_vec()))
}

/// The history read must be in order, and the same when it is written and read again.
fn check(topics: &Topics<'_>) {
    let (mut saver, mut written) = (Saver::new(), Vec::new());
    for (name, topic) in topics {
        let ring = topic.ring();
        let marks = ring.marks();
        assert!(marks.purged <= marks.floor && marks.floor <= marks.head);
        let places: Vec<Place> = ring.entries(0..ring.len()).map(|entry| entry.place).collect();
        assert!(places.is_sorted_by(|a, b| a < b), "{places:?}");
        assert!(places.first().is_none_or(|first| *first > marks.floor));
        assert!(places.last().is_none_or(|last| *last <= marks.head));
        let bytes: u64 = ring.entries(0..ring.len()).map(|entry| entry.bytes).sum();
        assert_eq!(ring.bytes(), bytes);
        saver.topic(&mut written, name, topic, |value, out| out.extend_from_slice(value));
    }
    saver.finish(&mut written);
    let again = read(&written).unwrap();
    assert_eq!(again.len(), topics.len());
    for ((name, topic), (again_name, again)) in topics.iter().zip(&again) {
        assert_eq!(name, again_name);
        let (ring, again_ring) = (topic.ring(), again.ring());
        assert_eq!((ring.epoch(), ring.marks()), (again_ring.epoch(), again_ring.marks()));
        assert!(ring.entries(0..ring.len()).eq(again_ring.entries(0..again_ring.len())));
        assert!(topic.ids().iter().eq(again.ids().iter()));
    }
}
