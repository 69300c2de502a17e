//! The keys about histories.

use super::key::Key;
use super::read::scalar;
use crate::units;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: "history_bytes_max",
        takes: "a size such as \"256MiB\" or a number of bytes",
        default: "\"256MiB\"",
        example: None,
        about: "Broadcasts that are kept of all topics together, where channels declare a history; \
                above, topics that nobody has used for long forget their older half",
        cost: "up to so much memory, as it is needed, and as much again for the topics themselves",
        set: |layer, value| scalar(&mut layer.history_bytes_max, value, units::bytes),
    },
    Key {
        name: "history_replay_count",
        takes: "a whole number",
        default: "1000",
        example: None,
        about: "Broadcasts that a client is given which comes back; who has missed more gets the \
                newest, and is told so",
        cost: "as many messages at once to each",
        set: |layer, value| scalar(&mut layer.history_replay_count, value, units::presences),
    },
    Key {
        name: "history_replay_bytes",
        takes: "a size such as \"1MiB\" or a number of bytes",
        default: "\"1MiB\"",
        example: None,
        about: "Bytes of broadcasts that a client is given which comes back",
        cost: "as many bytes at once to each; once for all who have missed the same",
        set: |layer, value| scalar(&mut layer.history_replay_bytes, value, units::bytes),
    },
    Key {
        name: "history_save",
        takes: "the path of a file in a folder that the server may write to",
        default: "none",
        example: Some("\"/var/lib/simurgh/history\""),
        about: "Keeps histories over a planned restart: written at the end of a drain (SIGTERM), \
                read at the next start and removed. A crash leaves none, and clients are told",
        cost: "a file of what is kept, for as long as no server runs",
        set: |layer, value| scalar(&mut layer.history_save, value, units::file),
    },
];
