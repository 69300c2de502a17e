//! Questions of back ends about notices, and orders: at each node about what it coordinates.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use simurgh_notices::{Notices, PARTITIONS};

use super::NoticesFigures;
use crate::notice_json::{to_letters, to_stay};

/// A question or an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticesQuery {
    /// How many notices hooks have accepted, and how many wait.
    Status,
    /// The open stays, with the logs and numbers that they are of.
    Stays {
        /// Those of this topic,
        topic: Option<String>,
        /// of this user,
        user: Option<String>,
        /// or of this partition.
        partition: Option<u8>,
    },
    /// The dead letters of a hook.
    Dead {
        /// Its name.
        hook: String,
    },
    /// Deliver dead letters again, or delete them.
    Take {
        /// The name of the hook.
        hook: String,
        /// The ids of the notices.
        ids: Vec<String>,
        /// Whether they are delivered again.
        replay: bool,
    },
    /// Send notices again to a hook that answered 410, or is paused.
    Resume {
        /// Its name.
        hook: String,
    },
}

impl NoticesQuery {
    /// An object with lists and numbers, which are joined over all nodes.
    pub(super) fn answer(&self, notices: &mut Notices, figures: &NoticesFigures) -> Value {
        let of = |name: &String| figures.hooks.iter().position(|known| known.hook == *name);
        match self {
            Self::Status => status(figures),
            Self::Stays { topic, user, partition } => {
                stays(notices, topic.as_deref(), user.as_deref(), *partition)
            }
            Self::Dead { hook } => {
                let letters = of(hook).into_iter().flat_map(|hook| {
                    let all = (0..PARTITIONS).filter_map(|it| Some((notices.coordinator(it)?, it)));
                    all.flat_map(move |(coordinator, it)| to_letters(coordinator, hook, it))
                });
                json!({"dead": letters.collect::<Vec<_>>()})
            }
            Self::Take { hook, ids, replay } => {
                let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                let mut found = 0;
                for partition in 0..PARTITIONS {
                    if let (Some(hook), Some(of)) = (of(hook), notices.coordinator_mut(partition)) {
                        found += of.take_dead(hook, &ids, *replay);
                    }
                }
                json!({"found": found})
            }
            Self::Resume { hook } => {
                of(hook).into_iter().for_each(|hook| notices.resume(hook));
                json!({})
            }
        }
    }

    /// The hook that it is about.
    pub fn hook(&self) -> Option<&str> {
        match self {
            Self::Status | Self::Stays { .. } => None,
            Self::Dead { hook } | Self::Take { hook, .. } | Self::Resume { hook } => Some(hook),
        }
    }
}

fn status(figures: &NoticesFigures) -> Value {
    let hooks: BTreeMap<_, BTreeMap<_, _>> =
        figures.hooks.iter().map(|of| (&of.hook, of.rows().into())).collect();
    json!({"stays": figures.stays, "hooks": hooks})
}

fn stays(
    notices: &Notices,
    topic: Option<&str>,
    user: Option<&str>,
    partition: Option<u8>,
) -> Value {
    let (mut all, mut partitions) = (Vec::new(), Vec::new());
    for number in (0..PARTITIONS).filter(|it| partition.is_none_or(|wanted| wanted == *it)) {
        let Some((log, n, stays)) = notices.coordinator(number).and_then(|of| of.stays()) else {
            continue;
        };
        partitions.push(json!({"partition": number, "log": log.to_string(), "n": n}));
        let wanted = stays.filter(|open| {
            let key = &open.stay.key;
            topic.is_none_or(|topic| topic == key.topic())
                && user.is_none_or(|user| user == key.user())
        });
        all.extend(wanted.map(|open| to_stay(open, number)));
    }
    json!({"partitions": partitions, "stays": all})
}
