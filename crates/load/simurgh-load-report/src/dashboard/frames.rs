//! Events for open pages, second by second: one text, rendered once for all of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::Shared;
use super::view::TickView;
use crate::control::ControlState;

/// How often the record is polled: a closed second is shown within this time.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub(super) struct Frame {
    /// A page that has the previous frame only needs this one.
    pub(super) number: u64,
    pub(super) text: String,
    /// The run is over: this is the last frame.
    pub(super) last: bool,
}

/// Changes when there is something new to send.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    at_ms: u64,
    points: usize,
    ticks_per_point: u32,
    over: bool,
    control: ControlState,
}

impl Seen {
    /// More than the last point changed: a page needs the whole view.
    fn is_leap_from(&self, before: &Self) -> bool {
        self.ticks_per_point != before.ticks_per_point || self.points > before.points + 1
    }
}

pub(super) async fn publish(shared: Arc<Shared>, sender: watch::Sender<Arc<Frame>>) {
    let mut number = 0;
    let mut seen: Option<Seen> = None;
    let mut clock = tokio::time::interval(POLL_INTERVAL);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        let control = shared.control.state();
        let now = shared.record(|record| Seen {
            at_ms: record.at_ms(),
            points: record.series().points().len(),
            ticks_per_point: record.series().ticks_per_point(),
            over: record.ending().is_some(),
            control,
        });
        if seen == Some(now) {
            continue;
        }
        // A number is skipped when pages that have all previous frames need the whole view.
        let leap = seen.is_none_or(|before| now.is_leap_from(&before));
        number += if leap { 2 } else { 1 };
        seen = Some(now);
        // The receiver in `shared` counts as one.
        let text = if sender.receiver_count() > 1 || now.over {
            serde_json::to_string(&TickView::of(&shared)).unwrap_or_default()
        } else {
            String::new()
        };
        sender.send_replace(Arc::new(Frame { number, text, last: now.over }));
        if now.over {
            return;
        }
    }
}
