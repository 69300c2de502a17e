//! Mistakes in a table of `simurgh.toml`, gathered so that all are told at once.

/// What is wrong with a key of the table, and what to do.
pub(crate) type Mistake = (&'static str, String);

/// What is right, or none, and a mistake more.
pub(crate) fn note<T>(
    wrong: &mut Vec<Mistake>,
    key: &'static str,
    found: Result<T, impl ToString>,
) -> Option<T> {
    found.map_err(|error| wrong.push((key, error.to_string()))).ok()
}
