//! Rules on lines, whatever the language: width, and words that must not be committed.

use super::{File, Finding};

/// Columns of a line, as in rustfmt.toml.
const WIDTH_MAX: usize = 100;

/// Lines of a file that is not Rust (for Rust see `source`).
const LINES_MAX: usize = 600;

const WRITTEN_BY_HAND: &[&str] = &["rs", "mjs", "js", "css", "sh"];

/// Files by others that we only include.
const CARRIED: &[&str] = &["Cargo.lock", "package-lock.json", ".min.js"];

/// Prefixes of paths that exist on one machine only. In halves, so that this file passes.
const BANNED: &[[&str; 2]] = &[["/wo", "rk/"], ["/ro", "ot/"], ["/bash_", "jobs"]];

pub(super) fn check(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    if CARRIED.iter().any(|name| file.path.ends_with(name)) {
        return findings;
    }
    for (line, number) in file.text.lines().zip(1..) {
        if file.has_extension(WRITTEN_BY_HAND) {
            let width = line.chars().count();
            if width > WIDTH_MAX {
                let text = format!("{width} columns, at most {WIDTH_MAX}");
                findings.push(file.finding("width", number, text));
            }
        }
        if BANNED.iter().any(|halves| holds_path(line, &halves.concat())) {
            findings.push(file.finding("banned", number, "a path of one machine"));
        }
    }
    let lines = file.text.lines().count();
    if lines > LINES_MAX && file.has_extension(&["mjs", "js", "css"]) {
        let text = format!("{lines} lines, at most {LINES_MAX}");
        findings.push(file.finding("file-lines", 1, text));
    }
    findings
}

/// Whether `line` names a path that begins with `start`, not a longer one around it.
fn holds_path(line: &str, start: &str) -> bool {
    line.match_indices(start).any(|(at, _)| {
        let before = line.get(..at).and_then(|before| before.chars().next_back());
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '*'))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        check(&file(path, text)).into_iter().map(|found| (found.rule, found.line)).collect()
    }

    #[test]
    fn line_width_counts_characters_of_handwritten_files() {
        let wide = format!("ok\n{}\n", "é".repeat(101));
        assert_eq!(rules("a.rs", &wide), [("width", 2)]);
        assert_eq!(rules("a.rs", &"é".repeat(100)), []);
        assert_eq!(rules("a.md", &wide), []);
        assert_eq!(rules("a.min.js", &wide), []);
    }

    #[test]
    fn machine_specific_paths_are_banned_everywhere() {
        let path = BANNED[0].concat();
        assert_eq!(rules("notes.md", &format!("see {path}x\n")), [("banned", 1)]);
        assert_eq!(rules("a.rs", &format!("\n\"{path}x\"\n")), [("banned", 2)]);
        assert_eq!(rules("a.rs", &format!("frame{path}x")), []);
        assert_eq!(rules("Cargo.lock", &path), []);
    }

    #[test]
    fn script_above_600_lines_is_over_budget() {
        assert_eq!(rules("a.mjs", &"x\n".repeat(601)), [("file-lines", 1)]);
        assert_eq!(rules("a.mjs", &"x\n".repeat(600)), []);
    }
}
