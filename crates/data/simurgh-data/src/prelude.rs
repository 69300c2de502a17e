//! What a crate with `std` has in its prelude, and the types that most modules of the core use.

pub use alloc::borrow::ToOwned;
pub use alloc::boxed::Box;
pub use alloc::collections::VecDeque;
pub use alloc::format;
pub use alloc::rc::Rc;
pub use alloc::string::{String, ToString};
pub use alloc::sync::Arc;
pub use alloc::vec;
pub use alloc::vec::Vec;
