//! Captures from answers, and checks of them.
//!
//! Everything is compiled once from the scenario and then used for every answer. The compiled forms
//! are `Send` and `Sync`; a worker should `clone` them, because the working memory of a shared
//! regular expression is behind a lock for all threads except one.

mod check;
mod find;
mod header;
mod json;
mod json_bounds;
mod matcher;
mod pattern;
mod presence;
mod text;

pub use check::{CompiledCheck, PatternCache, Verdict, run_checks};
pub use find::CompiledFind;
pub use json::JsonPath;
pub use matcher::CompiledMatcher;
pub use pattern::compile_pattern;
pub use presence::{PRESENCE_DIFF, PRESENCE_STATE, PresenceDiff};
pub use simurgh_load_client::{hmac_sha256_hex, md5_hex};
pub use text::{AnswerText, decode_html};

use crate::Template;

/// Puts a user's values into a template and appends the result.
pub type Expand<'a> = dyn FnMut(&Template, &mut Vec<u8>) + 'a;

/// Calls `judge` with a template's text.
fn with<R>(template: &Template, expand: &mut Expand<'_>, judge: impl FnOnce(&[u8]) -> R) -> R {
    match template.constant() {
        Some(text) => judge(text),
        None => {
            let mut text = Vec::new();
            expand(template, &mut text);
            judge(&text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiled_searches_can_be_sent_to_any_thread() {
        fn goes<T: Send + Sync + Clone>() {}
        goes::<CompiledFind>();
        goes::<CompiledMatcher>();
        goes::<CompiledCheck>();
    }
}
