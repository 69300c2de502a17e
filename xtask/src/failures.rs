//! Which tests failed and why, one line for each, from what programs of tests print at their end.

use std::fmt::{self, Display};

/// Characters shown of an error.
const SHOWN_MAX: usize = 300;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) name: String,
    /// The beginning of the error, as one line.
    error: String,
}

impl Failure {
    fn new<'a>(name: &str, lines: impl Iterator<Item = &'a str>) -> Self {
        let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
        let text = words.join(" ");
        let mut error: String = text.chars().take(SHOWN_MAX).collect();
        if error.len() < text.len() {
            error.push('…');
        }
        Self { name: name.to_owned(), error }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.error)
    }
}

/// A test's name, and the lines about it.
type About<'a> = (&'a str, Vec<&'a str>);

/// Splits `lines` at those that have a name; what follows a line that begins with `end` is about
/// no test.
fn about_each<'a>(
    lines: impl Iterator<Item = &'a str>,
    name: fn(&'a str) -> Option<&'a str>,
    end: &str,
) -> Vec<About<'a>> {
    let mut found: Vec<About<'a>> = Vec::new();
    let mut is_about_one = false;
    for line in lines {
        if let Some(name) = name(line) {
            found.push((name, Vec::new()));
            is_about_one = true;
        } else if line.starts_with(end) {
            is_about_one = false;
        } else if let Some((_, lines)) = found.last_mut().filter(|_| is_about_one) {
            lines.push(line);
        }
    }
    found
}

/// From `cargo test`, which shows what each failed test printed, and then its panic.
pub(crate) fn in_cargo_test(output: &str) -> Vec<Failure> {
    let all = about_each(output.lines(), cargo_name, "failures:").into_iter();
    all.map(|(name, lines)| {
        let panic = lines.iter().position(|line| line.contains("panicked at ")).unwrap_or(0);
        let error = lines.iter().skip(panic).take_while(|line| !is_after_panic(line));
        Failure::new(name, error.copied())
    })
    .collect()
}

fn cargo_name(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

fn is_after_panic(line: &str) -> bool {
    line.starts_with("note: run with `RUST_BACKTRACE") || line.starts_with("stack backtrace:")
}

/// From the list at the end of the `spec` reporter of `node --test`, where the stack of an error
/// follows it.
pub(crate) fn in_node_test(output: &str) -> Vec<Failure> {
    let list = output.lines().skip_while(|line| !line.ends_with("failing tests:")).skip(1);
    let all = about_each(list, node_name, "test at ").into_iter();
    all.map(|(name, lines)| {
        let error = lines.iter().take_while(|line| !line.trim_start().starts_with("at "));
        Failure::new(name, error.copied())
    })
    .collect()
}

/// `✖ the name (12.5ms)`
fn node_name(line: &str) -> Option<&str> {
    Some(line.strip_prefix("✖ ")?.rsplit_once(" (")?.0)
}

/// From Python's `unittest`, where the error is the last line of a traceback.
pub(crate) fn in_unittest(output: &str) -> Vec<Failure> {
    let all = about_each(output.lines(), unittest_name, "Ran ").into_iter();
    all.map(|(name, lines)| {
        let error = lines.iter().rfind(|line| !line.trim_matches(['=', '-']).is_empty());
        Failure::new(name, error.into_iter().copied())
    })
    .collect()
}

/// `FAIL: name (module.Class.name)`
fn unittest_name(line: &str) -> Option<&str> {
    let name = line.strip_prefix("FAIL: ").or_else(|| line.strip_prefix("ERROR: "))?;
    name.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(failures: &[Failure]) -> Vec<String> {
        failures.iter().map(Failure::to_string).collect()
    }

    #[test]
    fn panic_of_a_rust_test_is_shown_without_what_was_printed_before() {
        let output = "\
test a::bad ... FAILED

failures:

---- a::bad stdout ----
20 entries in 5 ms

thread 'a::bad' (7) panicked at src/a.rs:3:5:
assertion failed:
  too slow
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

---- a::worse stdout ----
Error: \"no such file\"

failures:
    a::bad
    a::worse
";
        assert_eq!(
            lines(&in_cargo_test(output)),
            [
                "a::bad: thread 'a::bad' (7) panicked at src/a.rs:3:5: assertion failed: too slow",
                "a::worse: Error: \"no such file\"",
            ]
        );
    }

    #[test]
    fn errors_of_node_and_python_are_shown_without_their_stacks() {
        let node = "✖ a (1ms)\n  Error: early\n✖ failing tests:\n\ntest at b.mjs:1:2\n\
            ✖ a (b) (1ms)\n  Error: not within 30 ms: x\n      at Module.y (wait.mjs:1:2)\n\n\
            test at c.mjs:1:2\n✖ c (2.5ms)\n  'test timed out'\n";
        assert_eq!(
            lines(&in_node_test(node)),
            ["a (b): Error: not within 30 ms: x", "c: 'test timed out'"]
        );
        let python = "FAIL: test_a (m.T.test_a)\n-----\nTraceback\nAssertionError: 1 != 2\n\n\
            -----\nRan 6 tests in 0.4s\n";
        assert_eq!(lines(&in_unittest(python)), ["test_a: AssertionError: 1 != 2"]);
    }

    #[test]
    fn long_error_is_cut_between_characters() {
        let long = "é".repeat(SHOWN_MAX + 1);
        let failure = Failure::new("a", [long.as_str()].into_iter());
        assert_eq!(failure.to_string(), format!("a: {}…", "é".repeat(SHOWN_MAX)));
    }
}
