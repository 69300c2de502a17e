//! The shortest list of operations that still fails in the same manner.

/// Leaves out operations that a failure does not need: half of them at once, then half as many, as
/// long as the list gets shorter. `runs_left` bounds the attempts.
pub fn fewest<O: Copy>(
    mut ops: Vec<O>,
    runs_left: &mut usize,
    fails: impl Fn(&[O]) -> bool,
) -> Vec<O> {
    let mut size = (ops.len() / 2).max(1);
    loop {
        let (mut at, before) = (0, ops.len());
        while at < ops.len() && *runs_left > 0 {
            let end = (at + size).min(ops.len());
            let rest = [&ops[..at], &ops[end..]].concat();
            *runs_left -= 1;
            match fails(&rest) {
                true => ops = rest,
                false => at = end,
            }
        }
        if *runs_left == 0 || (size == 1 && ops.len() == before) {
            return ops;
        }
        size = (size / 2).max(1);
    }
}
