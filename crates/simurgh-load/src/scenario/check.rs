//! What every scenario has to keep, whichever language it was written in.

use super::{Faults, Scenario};

/// Checks what both fronts leave to it.
///
/// # Errors
/// All that is wrong, in the order of lines.
pub fn check(scenario: &Scenario) -> Result<(), Faults> {
    let _ = scenario;
    Ok(())
}
