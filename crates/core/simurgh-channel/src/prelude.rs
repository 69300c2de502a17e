//! What a crate with `std` has in its prelude, and the types that most modules use.

pub(crate) use alloc::boxed::Box;
pub(crate) use alloc::string::String;
pub(crate) use alloc::sync::Arc;
pub(crate) use alloc::vec::Vec;
