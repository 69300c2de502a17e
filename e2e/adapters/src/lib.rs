//! The contract of [`Adapter`], as tests that every adapter runs.
//!
//! A [`Harness`] gives the cases adapters on a fresh broker, lets time pass, and injects faults.
//! Cases without a fault they need are skipped: `cargo test -- --nocapture` shows them.
//!
//! ```
//! use std::time::Duration;
//!
//! use adapter_tests::{Fault, Harness, Unsupported};
//! use simurgh_loopback::{Direction, Network, NetworkConfig};
//! use simurgh_cluster::{Adapter, Prefix};
//!
//! struct InProcess(Network);
//!
//! impl Harness for InProcess {
//!     fn adapter(&mut self, prefix: &Prefix) -> Box<dyn Adapter> {
//!         Box::new(self.0.adapter(prefix))
//!     }
//!
//!     fn pass(&mut self, time: Duration) {
//!         self.0.advance(self.0.now_ns() + time.as_nanos() as u64);
//!     }
//!
//!     fn inject(&mut self, fault: Fault) -> Result<(), Unsupported> {
//!         match fault {
//!             Fault::Cut(node) => self.0.cut(node, Direction::Both),
//!             Fault::Mend(node) => self.0.mend(node),
//!             _ => return Err(Unsupported("it can cut links and mend them")),
//!         }
//!         Ok(())
//!     }
//! }
//!
//! // One `#[test]` for each case, each with a harness of its own.
//! adapter_tests::contract_tests!(InProcess(Network::new(7, NetworkConfig::default())));
//! ```
//!
//! The cases take time from [`Harness::pass`] alone and have no thread. They publish envelopes with
//! origin and number where [`Adapter`] says, and some bytes that are not an envelope.
#![forbid(unsafe_code)]

mod cluster;
pub mod delivery;
pub mod flow;
pub mod interest;
pub mod link;
mod message;
pub mod names;
mod node;
pub mod storage;
pub mod switch;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use simurgh_cluster::{Adapter, Prefix};

/// An engine with links. Nodes are numbered from 0, in the order of [`adapter`](Self::adapter).
/// Methods that are not implemented are not supported.
pub trait Harness {
    /// The adapter of another node with this cluster prefix, with its own link; not started.
    fn adapter(&mut self, prefix: &Prefix) -> Box<dyn Adapter>;

    /// Lets about this much time pass: advances a clock, or sleeps.
    fn pass(&mut self, time: Duration);

    /// The time after which everything published has arrived, without faults.
    fn quiet(&self) -> Duration {
        Duration::from_millis(200)
    }

    /// Injects a fault, or ends one.
    ///
    /// # Errors
    /// The harness does not support it.
    fn inject(&mut self, fault: Fault) -> Tried {
        Err(fault.unsupported())
    }

    /// How many envelopes of 100 bytes a node loses that does not poll.
    ///
    /// # Errors
    /// A node that does not poll reads no more from the engine, and loses nothing.
    fn overrun(&self) -> Result<usize, Unsupported> {
        Err(Unsupported("a node that does not poll loses nothing"))
    }

    /// Whether the engine stores anything.
    fn keeps(&self) -> bool {
        false
    }

    /// How many messages of each subject the broker stores.
    fn kept_max(&self) -> usize {
        100
    }
}

/// Faults of an engine and its links. Nodes are given by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A node's link is interrupted in both directions, and neither end is notified.
    Cut(usize),
    /// A node's link works again.
    Mend(usize),
    /// A node's link ends; its adapter may connect again at once.
    Reset(usize),
    /// The engine stops, without its links ending.
    Freeze,
    /// A frozen engine continues.
    Thaw,
    /// The engine is killed.
    Kill,
    /// The engine is started again with its data.
    Restart,
    /// The engine is started again without its data.
    RestartEmpty,
}

impl Fault {
    const fn unsupported(self) -> Unsupported {
        Unsupported(match self {
            Self::Cut(_) => "it cannot cut a link",
            Self::Mend(_) => "it cannot mend a link",
            Self::Reset(_) => "it cannot end a link",
            Self::Freeze => "it cannot freeze the engine",
            Self::Thaw => "it cannot thaw the engine",
            Self::Kill => "it cannot kill the engine",
            Self::Restart => "it cannot restart the engine",
            Self::RestartEmpty => "it cannot restart the engine without its data",
        })
    }
}

/// The reason why a harness does not support a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub &'static str);

/// Whether a case was run; a violation of the contract panics.
pub type Tried = Result<(), Unsupported>;

/// One case of the contract.
pub type Case = fn(&mut dyn Harness) -> Tried;

/// Runs a case; reports it if skipped, with the number of skipped cases in this process.
pub fn run(name: &str, case: Case, harness: &mut dyn Harness) -> Tried {
    static SKIPPED: AtomicUsize = AtomicUsize::new(0);
    let result = case(harness);
    if let Err(unable) = result {
        let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
        eprintln!("contract: skipped {name}: {unable} ({count} skipped until now)");
    }
    result
}

/// Makes a `#[test]` of each case, with this attribute if there is one. The expression makes a new
/// [`Harness`]: a fresh engine.
#[macro_export]
macro_rules! contract_tests {
    (#[$attribute:meta] $harness:expr) => {
        $crate::contract_cases!(contract_tests_of {
            #[$attribute]
            $harness
        });
    };
    ($harness:expr) => {
        $crate::contract_tests!(
            #[cfg(test)]
            $harness
        );
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! contract_tests_of {
    ({ #[$attribute:meta] $harness:expr } $($room:ident { $($case:ident)+ })+) => {
        $($(
            #[test]
            #[$attribute]
            fn $case() {
                let case = $crate::$room::$case;
                // `run` reports a skipped one.
                let _ = $crate::run(stringify!($case), case, &mut $harness);
            }
        )+)+
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! contract_list_of {
    ({} $($room:ident { $($case:ident)+ })+) => {
        &[$($((stringify!($case), $room::$case)),+),+]
    };
}

/// The list of all cases, for another macro.
#[doc(hidden)]
#[macro_export]
macro_rules! contract_cases {
    ($then:ident $with:tt) => {
        $crate::$then! {
            $with
            delivery {
                only_what_is_wanted_is_heard
                all_who_want_it_hear_it
                nobody_hears_himself
                broadcasts_and_presences_are_apart
                what_is_for_all_nodes_and_for_one_is_heard_by_those
                a_hundred_thousand_are_heard_in_order
                each_of_many_publishers_is_heard_in_order
                every_byte_and_no_byte_arrive_as_they_were
                the_largest_envelope_arrives
                prefixes_that_begin_alike_are_apart
                the_waker_is_woken
            }
            names {
                every_odd_topic_is_heard_by_its_listeners_alone
                every_odd_topic_is_heard_by_who_wants_its_bucket
            }
            interest {
                a_bucket_hears_its_topics_and_no_other
                an_interest_that_ended_hears_nothing
                wanted_twice_is_wanted_once
                exact_and_whole_at_once_hear_once
                every_change_comes_in_force
                what_is_published_after_in_force_is_heard
                ten_thousand_interests_are_heard_each
                of_one_interest_the_last_change_counts
            }
            switch {
                exact_becomes_whole_without_a_hole
                whole_becomes_exact_without_a_hole
                to_and_fro_under_a_stream_is_without_a_hole
                ended_and_wanted_in_one_call_is_without_a_hole
            }
            flow {
                a_frozen_engine_is_full_and_never_waits
                large_envelopes_fill_by_their_bytes
                room_is_said_once
                what_is_under_way_comes_to_nothing
                an_engine_frozen_for_long_swallows_nothing_unsaid
            }
            link {
                a_cut_and_a_mend_are_one_down_and_one_up
                interests_are_in_force_again_at_up
                what_changed_while_down_is_in_force_at_up
                what_is_published_while_down_is_heard_in_order_after_up
                without_a_link_publishing_fills_and_then_all_is_heard
                what_a_cut_swallowed_of_a_publisher_is_sent_again
                who_missed_something_was_told
                a_short_cut_loses_nothing_unsaid
                links_that_end_in_a_stream_lose_nothing_of_their_publisher
                all_links_are_up_again_after_the_engine_was_killed
                without_an_engine_it_is_down_and_then_up
                a_slow_node_is_told_that_it_lost
                a_node_that_is_gone_disturbs_nobody
            }
            storage {
                what_is_stored_is_heard_by_all_in_one_order
                the_same_id_is_stored_once
                each_names_the_one_before_it
                what_follows_a_number_is_fetched
                a_fetch_ends_at_its_count_and_at_its_bytes
                the_last_of_many_subjects_are_fetched
                of_each_subject_the_newest_are_kept
                what_is_purged_is_gone_and_numbers_go_on
                what_is_before_a_number_is_purged_and_the_rest_stays
                what_is_older_than_its_age_is_forgotten
                what_is_stored_says_when_it_was
                a_fetch_says_up_to_where_it_is_complete
                behind_a_number_everything_is_young
                the_leader_has_all_that_was_confirmed
                what_a_broken_link_swallowed_is_stored_once
                every_ticket_is_answered_without_an_engine
                an_engine_that_was_killed_has_what_it_confirmed
                an_engine_without_its_data_has_another_epoch
                tickets_are_bounded
            }
        }
    };
}

/// All cases, by name.
pub const CASES: &[(&str, Case)] = contract_cases!(contract_list_of {});
