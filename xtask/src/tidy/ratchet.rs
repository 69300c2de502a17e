//! Exceptions to the rules: each has a reason, and is removed as soon as it is not needed.

use super::Finding;

/// One `[[exception]]` of tidy.toml.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Exception {
    rule: String,
    path: String,
    /// The function; empty for all of the file.
    item: String,
    /// For budgets: the permitted size.
    limit: usize,
    reason: String,
}

/// Reads the data file; every exception must name its rule, file and reason.
pub(super) fn parse(text: &str) -> Result<Vec<Exception>, String> {
    let table: toml::Table = text.parse().map_err(|error| format!("tidy.toml: {error}"))?;
    let entries = match table.get("exception") {
        None => return Ok(Vec::new()),
        Some(value) => value.as_array().ok_or("tidy.toml: `exception` is not a list")?,
    };
    entries.iter().map(exception).collect()
}

fn exception(entry: &toml::Value) -> Result<Exception, String> {
    let optional = |key: &str| entry.get(key).and_then(toml::Value::as_str).unwrap_or_default();
    let required = |key: &str| match optional(key) {
        "" => Err(format!("tidy.toml: an exception has no `{key}`")),
        value => Ok(value.to_owned()),
    };
    let limit = entry.get("limit").and_then(toml::Value::as_integer).unwrap_or(1);
    Ok(Exception {
        rule: required("rule")?,
        path: required("path")?,
        item: optional("item").into(),
        limit: usize::try_from(limit).map_err(|_| "tidy.toml: a negative limit")?,
        reason: required("reason")?,
    })
}

/// Removes the excepted findings, and adds a finding for every unused exception.
pub(super) fn apply(findings: Vec<Finding>, exceptions: &[Exception]) -> Vec<Finding> {
    let mut used = vec![false; exceptions.len()];
    let mut left: Vec<Finding> = Vec::new();
    for mut finding in findings {
        let excepting = exceptions.iter().zip(&mut used).find(|(exception, _)| {
            exception.rule == finding.rule
                && exception.path == finding.path
                && (exception.item.is_empty() || exception.item == finding.subject)
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
            subject: String::new(),
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
    fn an_exception_may_shrink_and_never_grow() {
        let exceptions = parse(LONG).unwrap();
        assert_eq!(apply(vec![long(700)], &exceptions), []);
        assert_eq!(apply(vec![long(650)], &exceptions), []);
        let grown = apply(vec![long(701)], &exceptions);
        assert!(grown[0].text.ends_with("(excepted up to 700; it has grown)"));
    }

    #[test]
    fn an_exception_that_is_not_needed_is_a_finding() {
        let left = apply(Vec::new(), &parse(LONG).unwrap());
        assert_eq!((left.len(), left[0].rule), (1, "ratchet"));
    }

    #[test]
    fn an_exception_is_for_its_file_rule_and_item_only() {
        let one = LONG.replace("file-lines", "fn-lines").replace("limit", "item = \"f\"\nlimit");
        let exceptions = parse(&one).unwrap();
        let found = |subject: &str| Finding {
            subject: subject.into(),
            amount: 80,
            ..file("a.rs", "").finding("fn-lines", 1, "long")
        };
        assert_eq!(apply(vec![found("f"), found("g")], &exceptions), [found("g")]);
    }

    #[test]
    fn every_exception_gives_a_reason() {
        let error = parse(&LONG.replace("one table", "")).unwrap_err();
        assert_eq!(error, "tidy.toml: an exception has no `reason`");
    }
}
