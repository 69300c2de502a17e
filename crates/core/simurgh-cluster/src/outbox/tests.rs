//! The outbox against a vector of everything that was pushed.
#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;

use super::*;
use crate::subject::{Prefix, Space};

const CLASSES_IN_ORDER: [Class; 4] = [Class::Control, Class::Presence, Class::Call, Class::Plain];
const SMALL: OutboxConfig = OutboxConfig {
    control_bytes: 1000,
    presence_bytes: 1200,
    call_bytes: 1500,
    plain_bytes: 2000,
    plain_age_ns: 50,
};

fn subject(topic: &str) -> Subject {
    Prefix::new("test").unwrap().topic(Space::Broadcast, topic)
}

fn envelope(number: u64, more: usize) -> Bytes {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(8 + more, 0);
    Bytes::from(bytes)
}

#[derive(Clone, Debug)]
enum Call {
    Push(Class, usize),
    Pop,
    Expire,
    Wait(u64),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let class = prop::sample::select(CLASSES_IN_ORDER.to_vec());
    let size = prop_oneof![8 => 0..300_usize, 1 => 300..2500_usize];
    let call = prop_oneof![
        5 => (class, size).prop_map(|(class, size)| Call::Push(class, size)),
        2 => Just(Call::Pop),
        1 => Just(Call::Expire),
        2 => (0..40_u64).prop_map(Call::Wait),
    ];
    prop::collection::vec(call, 0..120)
}

/// Everything that waits, in order, in one vector.
#[derive(Default)]
struct Model {
    waiting: Vec<(Class, Bytes, usize, u64)>,
}

impl Model {
    fn bytes(&self, class: Class) -> usize {
        self.waiting.iter().filter(|it| it.0 == class).map(|it| it.2).sum()
    }

    fn oldest(&self, class: Class) -> Option<usize> {
        self.waiting.iter().position(|it| it.0 == class)
    }

    fn front(&self) -> Option<usize> {
        CLASSES_IN_ORDER.into_iter().find_map(|class| self.oldest(class))
    }

    fn expire(&mut self, now_ns: u64) -> u64 {
        let before = self.waiting.len();
        self.waiting.retain(|(class, _, _, since)| *class != Class::Plain || since + 50 > now_ns);
        (before - self.waiting.len()) as u64
    }

    fn push(
        &mut self,
        class: Class,
        envelope: Bytes,
        bytes: usize,
        now_ns: u64,
    ) -> Result<Dropped, OutboxError> {
        let bound = match class {
            Class::Control => 1000,
            Class::Presence => 1200,
            Class::Call => 1500,
            Class::Plain => 2000,
        };
        if bytes > bound {
            return Err(OutboxError::TooLarge);
        }
        let mut dropped = Dropped::default();
        if class == Class::Plain {
            dropped.by_age = self.expire(now_ns);
            while self.bytes(class) + bytes > bound {
                self.waiting.remove(self.oldest(class).unwrap());
                dropped.by_bytes += 1;
            }
        } else if self.bytes(class) + bytes > bound {
            return Err(OutboxError::Full(class));
        }
        self.waiting.push((class, envelope, bytes, now_ns));
        Ok(dropped)
    }
}

proptest! {
    #[test]
    fn outbox_behaves_like_a_bounded_vector(calls in calls()) {
        let mut outbox = Outbox::new(SMALL);
        let mut model = Model::default();
        let mut now_ns = 0;
        let to = subject("a");
        for (number, call) in (0..).zip(calls) {
            match call {
                Call::Push(class, more) => {
                    let it = envelope(number, more);
                    let bytes = it.len() + to.as_str().len() + OUTBOX_ENTRY_BYTES;
                    let said = outbox.push(class, to.clone(), it.clone(), now_ns);
                    prop_assert_eq!(said, model.push(class, it, bytes, now_ns));
                }
                Call::Pop => {
                    let popped = outbox.pop().map(|(class, _, it)| (class, it));
                    let at = model.front();
                    let modelled = at.map(|at| model.waiting.remove(at)).map(|it| (it.0, it.1));
                    prop_assert_eq!(popped, modelled);
                }
                Call::Expire => {
                    let by_age = model.expire(now_ns);
                    prop_assert_eq!(outbox.expire(now_ns), Dropped { by_bytes: 0, by_age });
                }
                Call::Wait(more) => now_ns += more,
            }
            let front = outbox.front().map(|(class, _, it)| (class, it));
            let modelled = model.front().map(|at| &model.waiting[at]).map(|it| (it.0, &it.1));
            prop_assert_eq!(front, modelled);
            for class in CLASSES_IN_ORDER {
                prop_assert_eq!(outbox.bytes_of(class), model.bytes(class));
                let len = model.waiting.iter().filter(|it| it.0 == class).count();
                prop_assert_eq!(outbox.len_of(class), len);
            }
            prop_assert_eq!(outbox.len(), model.waiting.len());
            prop_assert_eq!(outbox.bytes(), model.waiting.iter().map(|it| it.2).sum::<usize>());
            let oldest = model.oldest(Class::Plain).map(|at| model.waiting[at].3 + 50);
            prop_assert_eq!(outbox.next_ns(), oldest);
        }
    }
}

#[test]
fn full_outbox_keeps_the_newest_plain_messages_and_rejects_others() {
    let mut outbox = Outbox::new(OutboxConfig::default());
    let mut dropped = Dropped::default();
    for number in 0..100 {
        dropped += outbox.push(Class::Plain, subject("a"), envelope(number, 200_000), 0).unwrap();
    }
    assert_eq!((dropped.by_bytes, outbox.len()), (59, 41));
    assert_eq!(outbox.front().unwrap().2, &envelope(59, 200_000));
    let full = |outbox: &mut Outbox, class| {
        (0..100).find_map(|n| outbox.push(class, subject("a"), envelope(n, 200_000), 0).err())
    };
    assert_eq!(full(&mut outbox, Class::Control), Some(OutboxError::Full(Class::Control)));
    assert_eq!(full(&mut outbox, Class::Presence), Some(OutboxError::Full(Class::Presence)));
    assert_eq!((outbox.len_of(Class::Control), outbox.len_of(Class::Presence)), (5, 5));
    let too_large = outbox.push(Class::Plain, subject("a"), envelope(0, 9 << 20), 0);
    assert_eq!((too_large, outbox.len_of(Class::Plain)), (Err(OutboxError::TooLarge), 41));
    assert_eq!(outbox.expire(1_999_999_999), Dropped::default());
    assert_eq!(outbox.expire(2_000_000_000), Dropped { by_bytes: 0, by_age: 41 });
}
