//! Plain data that the event loop (`simurgh-reactor`) and the code above it share. A crate that
//! needs only these types does no I/O, which `no_std` lets the compiler check.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod key;
mod page;
mod pages;
pub mod prelude;
mod shared;
mod slab;
mod slot_allocator;
mod time;

pub use key::Key;
pub use page::Page;
pub use pages::Pages;
pub use shared::{Run, Shared};
pub use slab::{NIL, Slab};
pub use slot_allocator::{PAGE_SLOTS, SlotAllocator};
pub use time::{Next, Now};
