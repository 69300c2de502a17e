//! Checks that CI builds with `rust-version`: an older, untested compiler may refuse any line.

use anyhow::{Context, Result};
use simurgh_bench_kit::machine::first_line;

use crate::files;
use crate::outcome::Outcome;

/// The build itself is checked by other steps; this one reports the version.
pub(crate) fn check() -> Outcome {
    let version = first_line("rustc", &["--version"]).unwrap_or_default();
    match promised() {
        Ok((promised, channel)) => judge(&promised, &channel, &version),
        Err(why) => Outcome::failed(why),
    }
}

/// The workspace's `rust-version`, and the version in rust-toolchain.toml.
fn promised() -> Result<(String, String)> {
    let of = |path: &str, words: &[&str]| {
        let text = files::text(&crate::root().join(path))?;
        let table: toml::Table = text.parse().context(path.to_owned())?;
        let table = toml::Value::Table(table);
        let found = words.iter().try_fold(&table, |table, word| table.get(word));
        let found = found.and_then(toml::Value::as_str).map(str::to_owned);
        found.with_context(|| format!("{path} has no {}", words.join(".")))
    };
    let promised = of("Cargo.toml", &["workspace", "package", "rust-version"])?;
    Ok((promised, of("rust-toolchain.toml", &["toolchain", "channel"])?))
}

/// `version` is the first line of `rustc --version`.
fn judge(promised: &str, channel: &str, version: &str) -> Outcome {
    let built = version.split_whitespace().nth(1).unwrap_or_default();
    let (Some(wanted), Some(pinned), Some(found)) = (minor(promised), minor(channel), minor(built))
    else {
        return Outcome::failed(format!("{promised:?}, {channel:?} or {version:?} is no version"));
    };
    if pinned != wanted {
        return Outcome::failed(format!(
            "rust-toolchain.toml has {channel}, and rust-version promises {promised}: only the \
             version that builds in CI is known to build"
        ));
    }
    if found == wanted {
        return Outcome::passed(1);
    }
    if found < wanted {
        return Outcome::failed(format!("{version} is older than rust-version, {promised}"));
    }
    let not = format!("whether {promised} (rust-version) builds it: {version} is newer");
    Outcome::skipped(format!("not verified: {not}"))
}

/// The first two numbers of a version: patches do not change the language.
fn minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(['.', '-']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(promised: &str, channel: &str, version: &str) -> (u64, u64, u64) {
        let outcome = judge(promised, channel, version);
        (outcome.passed, outcome.failed, outcome.skipped)
    }

    #[test]
    fn only_the_promised_version_verifies_it() {
        assert_eq!(word("1.95", "1.95.0", "rustc 1.95.0 (abc 2026-01-01)"), (1, 0, 0));
        assert_eq!(word("1.95", "1.95.0", "rustc 1.97.0-nightly (abc 2026-01-01)"), (0, 0, 1));
        assert_eq!(word("1.95", "1.95.0", "rustc 1.94.1 (abc 2026-01-01)"), (0, 1, 0));
        let note = judge("1.95", "1.95.0", "rustc 1.96.0 (abc)").note;
        assert!(note.starts_with("not verified: whether 1.95"), "{note}");
    }

    #[test]
    fn what_is_promised_is_what_is_built_with() {
        assert_eq!(word("1.94", "1.95.0", "rustc 1.95.0 (abc)"), (0, 1, 0));
        assert_eq!(word("1.95", "stable", "rustc 1.95.0 (abc)"), (0, 1, 0));
        assert_eq!(word("1.95", "1.95.0", ""), (0, 1, 0));
        let (promised, channel) = promised().unwrap();
        assert_eq!(minor(&promised), minor(&channel));
    }
}
