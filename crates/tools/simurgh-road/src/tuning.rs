//! Settings of the system that are raised for a test.

use std::path::{Path, PathBuf};

use simurgh_text::output::complain;
use simurgh_tune::Wanted;

/// Raised settings, restored when this is dropped.
pub(super) struct TemporaryTuning {
    /// The changes, a line each.
    pub(super) changes: Vec<String>,
    undo: Option<PathBuf>,
}

impl TemporaryTuning {
    pub(super) fn nothing() -> Self {
        Self { changes: Vec::new(), undo: None }
    }

    /// Raises what is too small for this many connections, with `local_clients` for both ends. A
    /// setting that cannot be changed is reported, and the test continues.
    ///
    /// # Errors
    /// The machine cannot be read, or the undo file cannot be written.
    pub(super) fn raise(connections: u64, local_clients: bool, dir: &Path) -> Result<Self, String> {
        let root = Path::new("/");
        let report = simurgh_tune::report(root, Wanted { connections, local_clients })?;
        let wanted = report.changes();
        if wanted.is_empty() {
            return Ok(Self::nothing());
        }
        if report.is_root != Some(true) {
            complain(
                "not root: the system stays as it is, which may be too small; see `simurgh tune \
                 --local-clients`",
            );
            return Ok(Self::nothing());
        }
        let file = dir.join("tune-undo.json");
        let done = simurgh_tune::apply(root, &wanted, &file, false)?;
        let changes: Vec<String> = done.steps.iter().map(ToString::to_string).collect();
        for change in &changes {
            complain(&format!("raised for this test: {change}"));
        }
        Ok(Self { changes, undo: done.undo_file_is_there.then_some(file) })
    }
}

impl Drop for TemporaryTuning {
    fn drop(&mut self) {
        let Some(file) = self.undo.take() else { return };
        match simurgh_tune::undo(Path::new("/"), &file) {
            Ok(done) if !done.undo_file_is_there => complain("restored the system settings"),
            Ok(_) | Err(_) => complain(&format!(
                "some settings were not restored: run `simurgh tune --undo {}`",
                file.display()
            )),
        }
    }
}
