//! `simurgh config`: prints a complete `simurgh.toml` to edit.

use std::path::PathBuf;

use simurgh_text::wrapped;

#[cfg(feature = "nats")]
use crate::settings::cluster;
use crate::settings::{CHAT, Channels, Key, api, hook, keys, tls, token};

#[derive(Debug, clap::Args)]
pub(crate) struct Flags {
    /// Checks this file and reports every mistake; starts nothing. Exit status 2 on mistakes.
    #[arg(long, value_name = "FILE")]
    pub(crate) check: Option<PathBuf>,

    /// Prints the NATS permissions of nodes with this subject prefix.
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "PREFIX", num_args = 0..=1, require_equals = true,
          default_missing_value = cluster::PREFIX, conflicts_with = "check")]
    pub(crate) nats_permissions: Option<String>,

    /// With --nats-permissions: number of history streams, as history_streams in \[cluster\]; 0 if
    /// no channel has a history.
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "COUNT", default_value = "1", requires = "nats_permissions",
          value_parser = cluster::streams)]
    pub(crate) nats_streams: u8,

    /// With --nats-permissions: also for notices, whose log is in the broker.
    #[cfg(feature = "nats")]
    #[arg(long, requires = "nats_permissions")]
    pub(crate) nats_notices: bool,
}

/// The table `[limits]` with its comments.
const LIMITS: &str = include_str!("limits.toml");

/// Columns of a comment.
const WIDTH: usize = 100;

const HEAD: &str = "\
simurgh.toml: every key with its default. All keys are optional. `simurgh serve` reads this file \
from the working directory, or the file of --config FILE. A flag of the same name (with dashes) \
overrides a key, and so does a variable of the environment: SIMURGH_IDLE_TIMEOUT, \
SIMURGH_TOKEN__KEY_FILE for a key of [token], SIMURGH_HOOK__APP__URL for one of the hook app; with \
_FILE behind the name it names a file with the value. The server checks all before it starts.";

/// The file with every key, its default, unit and cost.
pub(crate) fn text(channels: Channels) -> String {
    let mut out = comment(HEAD);
    for key in keys::ALL.iter().filter(|key| key.is_for(channels)) {
        out.push('\n');
        if let Some(title) = keys::section(key.name) {
            out += &format!("# === {title} ===\n\n");
        }
        out += &comment(&format!("{}.", key.about));
        key.details("\n").lines().for_each(|line| out += &comment(line));
        out += &line(key);
    }
    if channels == Channels::Declared {
        out.push('\n');
        out.push_str(LIMITS);
        out.push('\n');
        out.push_str(token::TEXT);
        out.push('\n');
        out.push_str(hook::TEXT);
    }
    out.push('\n');
    out.push_str(tls::TEXT);
    out.push('\n');
    out.push_str(api::TEXT);
    #[cfg(feature = "nats")]
    {
        out.push('\n');
        out.push_str(cluster::TEXT);
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

fn comment(text: &str) -> String {
    wrapped(text, "# ", "# ", WIDTH)
}
