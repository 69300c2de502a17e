//! The number of shards for a number of connections, computed as the server does.

use simurgh_reactor::{connections_for, shards_for};

use crate::{CONNECTIONS_MAX, SHARDS_MAX};

/// Shards that `serve` would start for these connections; beyond `SHARDS_MAX` if they do not
/// suffice.
pub(super) fn shards(connections: u64, descriptors: u64) -> u64 {
    let least = connections.div_ceil(descriptors.max(1));
    // Beyond the limit the exact number does not matter.
    if least > u64::from(SHARDS_MAX) {
        return least;
    }
    shards_for(usize::try_from(connections).unwrap_or(usize::MAX), descriptors) as u64
}

/// Whether a server with at most `shards_max` shards holds these connections.
pub(super) fn holds(wanted: u64, descriptors: u64, shards_max: u64) -> bool {
    let shards = shards(wanted, descriptors);
    let enough = || connections_for(usize::try_from(shards).unwrap_or(usize::MAX), descriptors);
    shards <= shards_max.min(u64::from(SHARDS_MAX)) && enough() as u64 >= wanted
}

/// The most connections that the server holds with at most `shards_max` shards.
pub(super) fn most(descriptors: u64, shards_max: u64) -> u64 {
    first(u64::from(CONNECTIONS_MAX) + 1, |wanted| !holds(wanted, descriptors, shards_max)) - 1
}

/// The smallest descriptor table with which the server holds `wanted` connections.
pub(super) fn descriptors(wanted: u64) -> u64 {
    first(u64::from(CONNECTIONS_MAX) * 2, |middle| holds(wanted, middle, u64::MAX))
}

/// The first number from 1 on that `is_it` holds for, as it does for all after it, and for `last`.
fn first(last: u64, is_it: impl Fn(u64) -> bool) -> u64 {
    let (mut before, mut found) = (0, last);
    while found - before > 1 {
        let middle = before + (found - before) / 2;
        if is_it(middle) { found = middle } else { before = middle }
    }
    found
}
