//! How much of the histories each client holds by itself: topics that it has made, and on which
//! nobody else has published. One client must not push out what others keep.

use crate::seeded_state::HashMap;

/// A client with this part of all is the first that loses topics.
const LARGE_PART: u64 = 16;

/// Whether two clients are the same user, or come from the same address: a client may use several
/// names. 0 is nobody.
pub(super) fn is_same(one: u64, other: u64) -> bool {
    let [one, other] = [one, other].map(|client| [user(client), client as u32]);
    one.iter().zip(other).any(|(part, other)| *part == other)
}

/// The half of a client's number that is of its user, or of its address if it has none.
pub(super) fn user(client: u64) -> u32 {
    (client >> 32) as u32
}

#[derive(Default)]
pub(super) struct Holdings {
    by_client: HashMap<u32, u64>,
    /// The client that holds most, as far as is known.
    largest: (u32, u64),
}

impl Holdings {
    /// A topic of a client has so many bytes, of which `counted` are counted.
    pub(super) fn count(&mut self, client: u64, counted: &mut u64, bytes: u64) {
        if client == 0 {
            return;
        }
        let client = user(client);
        let held = self.by_client.entry(client).or_default();
        *held = (*held + bytes).saturating_sub(*counted);
        *counted = bytes;
        if client == self.largest.0 || *held > self.largest.1 {
            self.largest = (client, *held);
        }
    }

    /// A topic is gone, or is not one client's any more.
    pub(super) fn release(&mut self, client: u64, counted: &mut u64) {
        let (client, counted) = (user(client), core::mem::take(counted));
        let Some(held) = self.by_client.get_mut(&client) else { return };
        *held = held.saturating_sub(counted);
        if client == self.largest.0 {
            self.largest.1 = *held;
        }
        if *held == 0 {
            self.by_client.remove(&client);
        }
    }

    /// The client that holds most, if that is a large part of `all` bytes.
    pub(super) fn large(&self, all: u64) -> Option<u32> {
        let (client, held) = self.largest;
        (held > all / LARGE_PART).then_some(client)
    }

    /// Looks again who holds most: others may, since the largest lost some.
    pub(super) fn look_again(&mut self) {
        let largest = self.by_client.iter().max_by_key(|(client, held)| (**held, **client));
        self.largest = largest.map(|(client, held)| (*client, *held)).unwrap_or_default();
        if self.by_client.is_empty() {
            self.by_client = HashMap::default();
        }
    }
}
