//! What is taken from answers, and what they are held against.
//!
//! Everything is compiled once from the scenario's plain data and then used for every answer. The
//! compiled forms are `Send` and `Sync`; a worker should `clone` its own, because a regular
//! expression's working memory is handed out under a lock to all threads but one.

mod check;
mod find;
mod header;
mod json;
mod json_bounds;
mod markup;
mod matcher;
mod pattern;
mod presence;
mod text;
mod tree;
mod words;
mod xpath;

pub use check::{CompiledCheck, PatternCache, Verdict, run_checks};
pub use find::CompiledFind;
pub use json::JsonPath;
pub use matcher::CompiledMatcher;
pub use pattern::compile_pattern;
pub use presence::{PRESENCE_DIFF, PRESENCE_STATE, PresenceDiff};
pub use text::{AnswerText, decode_html};
pub use words::Expand;

use md5::Digest as _;

/// Lower-case MD5, as digest authentication and Tsung's `ts_digest:md5hex` want it.
#[must_use]
pub fn md5_hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(32);
    for byte in md5::Md5::digest(bytes) {
        // Writing to a string cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn md5_is_that_of_rfc_1321() {
        assert_eq!(md5_hex(b""), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(md5_hex(b"message digest"), "f96b697d7cb7938d525a2f31aaf161d0");
    }

    #[test]
    fn compiled_forms_go_to_any_thread() {
        fn goes<T: Send + Sync + Clone>() {}
        goes::<CompiledFind>();
        goes::<CompiledMatcher>();
        goes::<CompiledCheck>();
    }
}
