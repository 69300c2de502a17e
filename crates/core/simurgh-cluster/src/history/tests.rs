//! Topics with a history, without nodes: the broker is a list, and every fault is tried.

mod engine;
pub(crate) mod log;
mod many;
mod model;
mod store_queue;
mod topics;
mod watermarks;

use simurgh_history::Retention;

use super::events::HistorySink;
use super::*;
use crate::envelope::{Item, ItemPayload};
use crate::time::MILLISECOND;

fn item(json: &str) -> Item<'_> {
    Item::new("e", ItemPayload::Json(json))
}

fn store(number: u64, json: &str) -> StoreItem<'_> {
    StoreItem { number, item: item(json), id: None, age: None }
}
