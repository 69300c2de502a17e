//! What is kept, without nodes: an engine that is a list, and everything that goes wrong with it.

mod engine;
pub(crate) mod log;
mod many;
mod model;
mod store_queue;
mod topics;
mod watermarks;

use super::events::HistorySink;
use super::*;
use crate::envelope::{Item, ItemPayload};
use crate::time::MILLISECOND;

/// A broadcast that says this.
fn item(json: &str) -> Item<'_> {
    Item::new("e", ItemPayload::Json(json))
}

/// To be stored under this number.
fn store(number: u64, json: &str) -> StoreItem<'_> {
    StoreItem { number, item: item(json), id: None, age: None }
}
