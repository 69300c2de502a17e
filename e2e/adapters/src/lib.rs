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

/// A broker with links. Nodes are numbered from 0, in the order of [`adapter`](Self::adapter).
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
    /// A node that does not poll reads no more from the broker, and loses nothing.
    fn overrun(&self) -> Result<usize, Unsupported> {
        Err(Unsupported("a node that does not poll loses nothing"))
    }

    /// Whether the broker stores anything.
    fn keeps(&self) -> bool {
        false
    }

    /// How many messages of each subject the broker stores.
    fn kept_max(&self) -> usize {
        100
    }
}

/// Faults of a broker and its links. Nodes are given by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A node's link is interrupted in both directions, and neither end is notified.
    Cut(usize),
    /// A node's link works again.
    Mend(usize),
    /// A node's link ends; its adapter may connect again at once.
    Reset(usize),
    /// The broker stops, without its links ending.
    Freeze,
    /// A frozen broker continues.
    Thaw,
    /// The broker is killed.
    Kill,
    /// The broker is started again with its data.
    Restart,
    /// The broker is started again without its data.
    RestartEmpty,
}

impl Fault {
    const fn unsupported(self) -> Unsupported {
        Unsupported(match self {
            Self::Cut(_) => "it cannot cut a link",
            Self::Mend(_) => "it cannot mend a link",
            Self::Reset(_) => "it cannot end a link",
            Self::Freeze => "it cannot freeze the broker",
            Self::Thaw => "it cannot thaw the broker",
            Self::Kill => "it cannot kill the broker",
            Self::Restart => "it cannot restart the broker",
            Self::RestartEmpty => "it cannot restart the broker without its data",
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
/// [`Harness`]: a fresh broker.
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
                node_without_an_interest_receives_nothing
                all_interested_nodes_receive_a_message
                publisher_does_not_receive_its_own_message
                broadcast_and_presence_interests_are_separate
                messages_to_all_nodes_or_to_one_reach_only_those_nodes
                hundred_thousand_messages_arrive_in_order
                messages_of_each_publisher_arrive_in_order
                envelopes_of_any_bytes_and_empty_ones_arrive_unchanged
                the_largest_envelope_arrives
                similar_prefixes_are_isolated
                the_waker_is_woken
            }
            names {
                unusual_topics_reach_only_nodes_with_an_exact_interest
                unusual_topics_reach_nodes_with_an_interest_in_their_bucket
            }
            interest {
                bucket_interest_receives_its_topics_and_no_others
                ended_interest_receives_nothing
                interest_added_twice_ends_with_one_removal
                exact_and_bucket_interest_together_receive_once
                every_interest_change_takes_effect
                messages_published_after_an_interest_took_effect_arrive
                each_of_ten_thousand_interests_receives_its_message
                last_change_of_an_interest_in_one_call_counts
            }
            switch {
                change_from_exact_to_bucket_interest_loses_no_message
                change_from_bucket_to_exact_interest_loses_no_message
                repeated_interest_changes_during_a_stream_lose_no_message
                interest_ended_and_added_in_one_call_loses_no_message
            }
            flow {
                publishing_to_a_frozen_broker_fills_up_and_never_blocks
                large_envelopes_are_limited_by_bytes
                room_is_reported_once_after_each_full
                messages_in_flight_return_to_zero
                broker_frozen_for_long_loses_no_message_unreported
            }
            link {
                link_failure_and_repair_are_reported_once_each
                interests_are_active_again_when_the_link_is_up
                interest_changes_while_down_are_active_when_the_link_is_up
                messages_published_while_down_arrive_in_order_after_up
                publishing_without_a_link_fills_up_and_all_arrive_later
                messages_a_publisher_lost_in_a_link_failure_are_sent_again
                node_that_missed_messages_is_notified
                short_link_failure_loses_no_message_unreported
                publisher_whose_link_ends_in_a_stream_loses_no_message
                all_links_are_up_again_after_the_broker_was_killed
                node_started_before_its_broker_is_down_and_then_up
                slow_node_is_notified_of_lost_messages
                removed_node_does_not_disturb_other_nodes
            }
            storage {
                stored_messages_reach_all_nodes_in_one_order
                message_with_the_same_id_is_stored_once
                each_stored_message_names_its_predecessor
                fetch_returns_the_messages_after_a_number
                fetch_ends_at_its_count_or_byte_limit
                last_messages_of_many_subjects_are_fetched
                only_the_newest_messages_of_each_subject_stay_stored
                purge_removes_messages_and_numbers_continue
                purge_before_a_number_retains_later_messages
                log_of_notices_retains_everything_until_it_is_purged
                messages_older_than_their_age_are_removed
                stored_message_has_the_time_of_the_broker
                fetch_reports_the_number_up_to_which_it_is_complete
                fetch_by_age_returns_the_number_before_younger_messages
                leader_has_all_confirmed_messages
                message_lost_with_a_link_is_stored_once
                every_ticket_is_answered_without_a_broker
                killed_broker_has_all_confirmed_messages
                broker_without_its_data_has_a_new_epoch
                number_of_open_tickets_is_limited
            }
        }
    };
}

/// All cases, by name.
pub const CASES: &[(&str, Case)] = contract_cases!(contract_list_of {});
