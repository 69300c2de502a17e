//! Row `million`: driven sockets in the server's own process, which is a separate program
//! (`bench/driven`): this one must not depend on what it measures.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use simurgh_bench_kit::rounds::{Bench, Sample};

/// The file name, beside this program.
const PROGRAM: &str = "simurgh-bench-driven";

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let own = std::env::current_exe().context("own path")?;
    let program = own.with_file_name(PROGRAM);
    ensure!(
        program.is_file(),
        "{} is not there: build it (cargo build --release -p simurgh-bench-driven)",
        program.display()
    );
    let (members, seconds) = bench.options.size((1_000_000, 20), (20_000, 3));
    let run = |presence: &str| {
        let arguments = [members.to_string(), seconds.to_string(), presence.to_owned()];
        let output = Command::new(&program).args(arguments).stderr(Stdio::inherit()).output()?;
        ensure!(output.status.success(), "{PROGRAM} has failed: {}", output.status);
        serde_json::from_slice::<Value>(&output.stdout).context("what it printed")
    };
    let (without, with) = (run("off")?, run("on")?);
    let number = |printed: &Value, name: &str| {
        printed.get(name).and_then(Value::as_f64).with_context(|| format!("no {name}"))
    };
    let each = number(&with, "member_bytes")? - number(&without, "member_bytes")?;
    sample.put("million_member_bytes", each - number(&with, "meta_bytes")?);
    sample.put("million_with_bytes", number(&with, "member_bytes")?);
    sample.put("million_without_bytes", number(&without, "member_bytes")?);
    for name in ["leave_p50_ms", "leave_p99_ms", "leave_max_ms", "leaves", "rate"] {
        sample.put(format!("million_{name}"), number(&with, name)?);
    }
    for name in ["presences_missing", "presences_left", "left_percent"] {
        sample.put(format!("million_{name}"), number(&with, name)?);
    }
    Ok(())
}
