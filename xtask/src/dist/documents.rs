//! The binary's own documents: completions, man pages, its configuration.

use std::path::Path;

use anyhow::Result;

use super::build::Built;
use super::program;
use crate::files;

pub(super) struct Documents {
    /// For bash, zsh and fish.
    pub(super) completions: [String; 3],
    pub(super) pages: Vec<(String, String)>,
    /// `simurgh.toml` with every key as a comment: an administrator's changes stay, and the
    /// defaults are those of the installed version.
    pub(super) config: String,
}

pub(super) fn make(built: &Built, work: &Path) -> Result<Documents> {
    let simurgh = built.binary.to_string_lossy();
    let completion = |shell| program(&simurgh, &["completions", shell]);
    let dir = work.join("man");
    program(&simurgh, &["man-pages", &dir.to_string_lossy()])?;
    let pages = files::list(&dir)?
        .into_iter()
        .map(|(name, _)| Ok((name.clone(), files::text(&dir.join(name))?)))
        .collect::<Result<Vec<_>>>()?;
    Ok(Documents {
        completions: [completion("bash")?, completion("zsh")?, completion("fish")?],
        pages,
        config: commented(&program(&simurgh, &["config"])?),
    })
}

/// Turns every line that is not yet a comment into `#line`; prose is after `# `.
fn commented(config: &str) -> String {
    let mut text = String::new();
    for line in config.lines() {
        let mark = if line.is_empty() || line.starts_with('#') { "" } else { "#" };
        text.push_str(mark);
        text.push_str(line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_lines_are_commented_out_exactly_once() {
        assert_eq!(
            commented("# about\na = 1\n#b = 2\n\n[[c]]\n"),
            "# about\n#a = 1\n#b = 2\n\n#[[c]]\n"
        );
    }
}
