//! Checks that CI builds with `rust-version`: an older, untested compiler may refuse any line.

use anyhow::{Context, Result, ensure};
use simurgh_bench_kit::machine::first_line;

use crate::files;
use crate::outcome::Outcome;

/// The build itself is checked by other steps; this one reports the version.
pub(crate) fn check() -> Result<Outcome> {
    let version = first_line("rustc", &["--version"]).unwrap_or_default();
    judge(&value("Cargo.toml", "rust-version")?, &version)
}

/// `version` is the first line of `rustc --version`.
fn judge(promised: &str, version: &str) -> Result<Outcome> {
    let channel = value("rust-toolchain.toml", "channel")?;
    ensure!(
        channel.starts_with(&format!("{promised}.")),
        "rust-toolchain.toml has {channel}, and rust-version promises {promised}: only the version \
         that builds in CI is known to build"
    );
    // Cargo refuses an older compiler.
    match version.starts_with(&format!("rustc {promised}.")) {
        true => Ok(Outcome::passed(1)),
        false => Ok(Outcome::skipped(format!("whether {promised} builds it: this is {version}"))),
    }
}

fn value(path: &str, key: &str) -> Result<String> {
    let text = files::text(&crate::root().join(path))?;
    let found = text.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_prefix("= \""));
    found
        .map(|value| value.trim_end_matches('"').to_owned())
        .with_context(|| format!("{path}: {key}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn msrv_is_verified_only_by_the_promised_rust_version() {
        let promised = value("Cargo.toml", "rust-version").unwrap();
        let same = format!("rustc {promised}.0 (abc 2026-01-01)");
        assert_eq!(judge(&promised, &same).unwrap(), Outcome::passed(1));
        assert_eq!(judge(&promised, "rustc 1.999.0-nightly (abc)").unwrap().skipped, 1);
        assert!(judge("1.94", &same).is_err(), "the toolchain has another version");
    }
}
