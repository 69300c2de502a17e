//! What is kept, without nodes: an engine that is a list, and everything that goes wrong with it.

mod engine;
mod floors;
mod follows;
pub(crate) mod log;
mod many;
mod model;
mod stores;

use super::said::HistorySink;
use super::*;
use crate::envelope::{Item, ItemPayload};

pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MILLISECOND;

/// A broadcast that says this.
fn item(json: &str) -> Item<'_> {
    Item::new("e", ItemPayload::Json(json))
}

/// To be stored under this number.
fn store(number: u64, json: &str) -> StoreItem<'_> {
    StoreItem { number, item: item(json), id: None, age: None }
}
