//! `simurgh config`: the whole of `simurgh.toml` as a file that can be kept and changed.

use std::path::PathBuf;

use crate::Channels;
use crate::keys::{self, Key};

#[derive(Debug, clap::Args)]
pub(crate) struct Flags {
    /// Checks this file instead, whole, and starts nothing; status 2 if there are mistakes.
    #[arg(long, value_name = "FILE")]
    pub(crate) check: Option<PathBuf>,

    /// Prints what NATS has to allow nodes whose subjects have this prefix.
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "PREFIX", num_args = 0..=1, require_equals = true,
          default_missing_value = crate::cluster::PREFIX, conflicts_with = "check")]
    pub(crate) nats_permissions: Option<String>,

    /// With --nats-permissions: how many streams keep histories, as history_streams in \[cluster\]
    /// says; 0, if no channel has one.
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "COUNT", default_value = "1", requires = "nats_permissions",
          value_parser = crate::cluster::streams)]
    pub(crate) nats_streams: u8,
}

/// The chat that is served when no channel is declared, in the words of `simurgh.toml`.
pub(crate) const CHAT: &str = include_str!("chat.toml");

/// What is said of the table `[limits]`.
const LIMITS: &str = include_str!("limits.toml");

/// Columns of a comment.
const WIDTH: usize = 100;

const HEAD: &str = "\
simurgh.toml: every key with its default. All keys may be left out. `simurgh serve` reads this \
file from the working directory, or as --config FILE; a flag of the same name (with dashes) wins \
over a key. The file is checked whole before anything starts.";

/// The file with every key, its default, unit and cost.
pub(crate) fn text(channels: Channels) -> String {
    let mut out = String::new();
    comment(&mut out, HEAD);
    for key in keys::ALL.iter().filter(|key| key.is_for(channels)) {
        out.push('\n');
        comment(&mut out, &format!("{}.", key.about));
        comment(&mut out, &format!("Takes {}.", key.takes));
        comment(&mut out, &format!("Cost: {}.", key.cost));
        out.push_str(&line(key));
    }
    if channels == Channels::Declared {
        out.push('\n');
        out.push_str(LIMITS);
        out.push('\n');
        out.push_str(crate::tokens::TEXT);
    }
    #[cfg(feature = "nats")]
    {
        out.push('\n');
        out.push_str(crate::cluster::TEXT);
    }
    if channels == Channels::Declared {
        out.push('\n');
        out.push_str(CHAT);
    }
    out
}

/// The default where the file can hold it, else an example as a comment.
fn line(key: &Key) -> String {
    match key.example {
        Some(example) => format!("#{} = {example}  # default: {}\n", key.name, key.default),
        None => format!("{} = {}\n", key.name, key.default),
    }
}

fn comment(out: &mut String, text: &str) {
    let mut column = 0;
    for word in text.split_whitespace() {
        if column == 0 || column + 1 + word.chars().count() > WIDTH {
            out.push_str(if column == 0 { "#" } else { "\n#" });
            column = 1;
        }
        out.push(' ');
        out.push_str(word);
        column += 1 + word.chars().count();
    }
    out.push('\n');
}
