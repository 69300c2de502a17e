//! What the binary writes about itself: completions, man pages, its configuration.

use std::path::Path;

use anyhow::Result;

use super::build::Built;
use super::program;
use crate::files;

/// Texts for packages.
pub(super) struct Documents {
    /// For bash, zsh and fish.
    pub(super) completions: [String; 3],
    /// File names, such as `simurgh-serve.1`, and pages.
    pub(super) pages: Vec<(String, String)>,
    /// `simurgh.toml` with every key as a comment: what somebody changes there is his, and the
    /// defaults stay those of the version that is installed.
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

/// Every line that is not a comment yet as `#line`; words stand after `# `.
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
    fn a_config_becomes_comments_and_no_comment_twice() {
        assert_eq!(
            commented("# about\na = 1\n#b = 2\n\n[[c]]\n"),
            "# about\n#a = 1\n#b = 2\n\n#[[c]]\n"
        );
    }
}
