//! What a key of `simurgh.toml` is.

use std::ops::Range;

use toml::Spanned;
use toml::de::DeValue;

use crate::Channels;
use crate::layer::Layer;

/// One setting.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    /// As in the file; the flag has dashes for underscores.
    pub(crate) name: &'static str,
    /// What is allowed, with its unit.
    pub(crate) takes: &'static str,
    /// The default as it stands in the file, or in words where it cannot stand there.
    pub(crate) default: &'static str,
    /// A value to show where the default is none; it is printed as a comment.
    pub(crate) example: Option<&'static str>,
    /// What it is for.
    pub(crate) about: &'static str,
    /// What it costs.
    pub(crate) cost: &'static str,
    /// Reads it from the file.
    pub(crate) set: fn(&mut Layer, &Value<'_>) -> Result<(), Vec<Wrong>>,
}

/// A value of the file, with its place.
pub(crate) type Value<'i> = Spanned<DeValue<'i>>;

/// What is wrong with a value, or with one entry of a list.
pub(crate) struct Wrong {
    pub(crate) span: Range<usize>,
    pub(crate) why: String,
}

/// Keys about declared channels and what is served beside them; an application in Rust has its own.
const ABOUT_DECLARED: [&str; 6] = [
    "static_files",
    "static_copies_bytes_max",
    "max_channels",
    "auth_token",
    "longpoll",
    "announce_joins_up_to",
];

impl Key {
    /// Whether it means anything to such an application.
    pub(crate) fn is_for(&self, channels: Channels) -> bool {
        channels == Channels::Declared || !ABOUT_DECLARED.contains(&self.name)
    }
}
