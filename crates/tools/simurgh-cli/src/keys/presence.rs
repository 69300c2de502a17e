//! The keys about presence.

use super::key::Key;
use super::read::scalar;
use crate::units;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: "presence_interval",
        takes: "a time such as \"50ms\"",
        default: "\"50ms\"",
        example: None,
        about: "A topic's changes of presence are told once in so long, as one diff; the first \
                after a quiet while at once",
        cost: "one broadcast a topic in so long, while there are changes",
        set: |layer, value| scalar(&mut layer.presence_interval, value, units::duration),
    },
    Key {
        name: "presence_leave_delay",
        takes: "a time such as \"5s\", or 0",
        default: "0",
        example: None,
        about: "Members are told of a leave only after so long, unless the same key is here again \
                before, on this node or another: then it is told as an update. For rolling \
                restarts of a cluster, in which clients come back on another node",
        cost: "who has left is shown for so long",
        set: |layer, value| scalar(&mut layer.presence_leave_delay, value, units::duration_or_zero),
    },
    Key {
        name: "presence_list_max",
        takes: "a whole number; 0 tells no lists",
        default: "1000",
        example: None,
        about: "A topic with more presences tells its members their number and a sample in place \
                of a list",
        cost: "n joins to one topic cost lists of n²/2 presences up to there",
        set: |layer, value| scalar(&mut layer.presence_list_max, value, units::presences),
    },
    Key {
        name: "presence_summary_interval",
        takes: "a time such as \"5s\"",
        default: "\"5s\"",
        example: None,
        about: "How often that number is told, while it changes",
        cost: "one broadcast a large topic in so long",
        set: |layer, value| scalar(&mut layer.presence_summary_interval, value, units::duration),
    },
    Key {
        name: "presence_sample",
        takes: "a whole number",
        default: "20",
        example: None,
        about: "Keys in the sample of a topic with more presences than presence_list_max",
        cost: "so many metas beside the number",
        set: |layer, value| scalar(&mut layer.presence_sample, value, units::presences),
    },
    Key {
        name: "presence_key_bytes_max",
        takes: "a size such as \"256B\" or a number of bytes, from 32",
        default: "256",
        example: None,
        about: "The longest key of a presence",
        cost: "so much memory a presence",
        set: |layer, value| scalar(&mut layer.presence_key_bytes_max, value, units::key_bytes),
    },
    Key {
        name: "presence_meta_bytes_max",
        takes: "a size such as \"4KiB\" or a number of bytes",
        default: "\"4KiB\"",
        example: None,
        about: "The longest meta of a presence, as JSON text",
        cost: "so much memory a presence, and in each list and diff with it",
        set: |layer, value| scalar(&mut layer.presence_meta_bytes_max, value, units::bytes),
    },
    Key {
        name: "presence_channel_entries_max",
        takes: "a whole number from 1",
        default: "16",
        example: None,
        about: "Presences one channel of one client may have; more are refused",
        cost: "so many times the above, for each channel",
        set: |layer, value| scalar(&mut layer.presence_channel_entries_max, value, units::entries),
    },
];
