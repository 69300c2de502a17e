//! Exceptions to the rules: each has a reason, and is removed as soon as it is not needed.

use serde::Deserialize;

use super::Finding;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exceptions {
    #[serde(default)]
    exception: Vec<Exception>,
}

/// One `[[exception]]` of tidy.toml.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exception {
    rule: String,
    path: String,
    /// For budgets: the permitted size.
    #[serde(default = "one")]
    limit: usize,
    #[expect(dead_code, reason = "it is for readers of tidy.toml, and must be there")]
    reason: String,
}

fn one() -> usize {
    1
}

pub(super) fn parse(text: &str) -> Result<Vec<Exception>, String> {
    let all: Exceptions = toml::from_str(text).map_err(|error| format!("tidy.toml: {error}"))?;
    Ok(all.exception)
}

/// Removes the excepted findings, and adds a finding for every unused exception.
pub(super) fn apply(findings: Vec<Finding>, exceptions: &[Exception]) -> Vec<Finding> {
    let mut used = vec![false; exceptions.len()];
    let mut left: Vec<Finding> = Vec::new();
    for mut finding in findings {
        let excepting = exceptions.iter().zip(&mut used).find(|(exception, _)| {
            exception.rule == finding.rule && exception.path == finding.path
        });
        match excepting {
            None => left.push(finding),
            Some((exception, used)) => {
                *used = true;
                if finding.amount > exception.limit {
                    let limit = exception.limit;
                    finding.text.push_str(&format!(" (excepted up to {limit}; it has grown)"));
                    left.push(finding);
                }
            }
        }
    }
    for (exception, _) in exceptions.iter().zip(used).filter(|(_, used)| !used) {
        left.push(Finding {
            rule: "ratchet",
            path: "xtask/tidy.toml".into(),
            line: 1,
            amount: 1,
            text: format!("{} of {} needs no exception", exception.rule, exception.path),
        });
    }
    left
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    const LONG: &str = r#"
        [[exception]]
        rule = "file-lines"
        path = "a.rs"
        limit = 700
        reason = "one table"
    "#;

    fn long(amount: usize) -> Finding {
        Finding { amount, ..file("a.rs", "").finding("file-lines", 1, "long") }
    }

    #[test]
    fn exception_may_shrink_but_never_grow() {
        let exceptions = parse(LONG).unwrap();
        assert_eq!(apply(vec![long(700)], &exceptions), []);
        assert_eq!(apply(vec![long(650)], &exceptions), []);
        let grown = apply(vec![long(701)], &exceptions);
        assert!(grown[0].text.ends_with("(excepted up to 700; it has grown)"));
    }

    #[test]
    fn unneeded_exception_is_a_finding() {
        let left = apply(Vec::new(), &parse(LONG).unwrap());
        assert_eq!((left.len(), left[0].rule), (1, "ratchet"));
    }

    #[test]
    fn every_exception_gives_a_reason() {
        assert!(parse(&LONG.replace("reason", "why")).is_err());
    }
}
