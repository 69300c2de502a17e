//! Operations from the bytes of a fuzzer.

use crate::cli::run;
use crate::world::{KINDS, OF_ONE_NODE, Op, Plan, World};

/// Bytes of one operation: its kind and its numbers.
const OP_BYTES: usize = 6;
/// Further operations of one input are not carried out.
const OPS_MAX: usize = 500;

/// Runs the server that the first bytes choose, with the operations that the others mean.
///
/// # Panics
/// If the server breaks a rule of the model.
#[allow(clippy::panic, reason = "that is how a fuzzer hears of it")]
pub fn fuzz(data: &[u8]) {
    let Some((seed, data)) = data.split_first_chunk::<2>() else { return };
    let mut plan = Plan::new(World::Node, u64::from(u16::from_le_bytes(*seed)), usize::MAX);
    // The fuzzer would report a panic of the application as a finding.
    plan.app.panics = 0;
    let (ops, _) = data.as_chunks::<OP_BYTES>();
    let ops: Vec<_> = ops.iter().take(OPS_MAX).map(operation).collect();
    if let Some(failure) = run(&plan, &ops, false).failure.into_inner() {
        panic!("{}: {}", failure.rule, failure.text);
    }
}

fn operation(bytes: &[u8; OP_BYTES]) -> Op {
    let [kind, a, b, c @ ..] = *bytes;
    let kind = KINDS[usize::from(kind) % OF_ONE_NODE].0;
    let c = u32::from_le_bytes([c[0], c[1], c[2], 0]);
    // Spread over all numbers, as a draw is: operations take them modulo what exists.
    Op { kind, a: u16::from(a), b: u16::from(b), c: c.wrapping_mul(0x0101_0101) }
}

#[cfg(test)]
#[path = "../../../../fuzz/src/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    #[test]
    fn stored_fuzz_inputs_run_through_the_core() {
        super::corpus::run("core", super::fuzz);
    }
}
