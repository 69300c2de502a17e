//! Where a user can still reach a `Wait`.

use super::{AnswerOp, Op};

/// The operations of a session before this one can be followed by a `Wait`.
pub(crate) fn waits_until(ops: &[Op], start: u32) -> u32 {
    let is_wait = |at: u32| matches!(ops.get(at as usize), Some(Op::Wait(..)));
    let mut until = start;
    for (at, op) in (0..).zip(ops).skip(start as usize) {
        if is_wait(at) {
            until = until.max(at);
        }
        let back = match op {
            Op::LoopEnd(ends) => ends.to,
            Op::RepeatEnd(repeat) => repeat.body,
            Op::Jump(to) => *to,
            // A check that goes back may go anywhere.
            op if answer(op).is_some_and(AnswerOp::sends_back) => start,
            _ => continue,
        };
        if back < until || is_wait(back) {
            until = at + 1;
        }
    }
    until
}

fn answer(op: &Op) -> Option<&AnswerOp> {
    match op {
        Op::Connect(_, answer) | Op::Wait(_, answer) | Op::Http(_, answer) => Some(answer),
        Op::Send(op) | Op::Raw(op) => Some(&op.answer),
        Op::Channel(op) => Some(&op.answer),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::super::compile;
    use simurgh_load_scenario::Overrides;

    /// For each operation of a session, `w` if a wait can follow, else `-`.
    fn waits(steps: &str) -> String {
        let text = format!(
            "[target]\nurl = \"ws://127.0.0.1:1\"\n[[phase]]\nduration = \"1s\"\nrate = 1\n\
             [[session]]\nname = \"a\"\nprotocol = \"raw\"\nsteps = [{{ send = \"x\" }}]\n\
             [[session]]\nname = \"b\"\nprotocol = \"raw\"\nsteps = [{steps}]\n"
        );
        let scenario =
            match simurgh_load_scenario::toml::read(&text, Path::new(""), &Overrides::default()) {
                Ok(loaded) => loaded.scenario,
                Err(faults) => panic!("{faults}\n{text}"),
            };
        let program = compile(&Arc::new(scenario)).unwrap();
        let start = program.sessions[1].start;
        let places = start..program.ops.len() as u32;
        places.map(|at| if program.waits_after(at) { 'w' } else { '-' }).collect()
    }

    const WAIT: &str = "{ wait = { contains = \"go\" } }";

    #[test]
    fn no_wait_is_reachable_after_the_last_one() {
        assert_eq!(waits("{ connect = \"/\" }"), "--");
        assert_eq!(waits(&format!("{{ connect = \"/\" }}, {WAIT}")), "w--");
        assert_eq!(waits(&format!("{WAIT}, {{ think = \"1s\" }}, {WAIT}")), "ww--");
        let last = format!("{WAIT}, {{ loop = 9, steps = [{{ think = \"1s\" }}] }}");
        assert_eq!(waits(&last), "-----");
    }

    #[test]
    fn waits_of_a_loop_are_reachable_until_it_ends() {
        let looped = format!(
            "{{ loop = 9, steps = [{WAIT}, {{ send = \"x\" }}] }}, \
                              {{ send = \"y\" }}"
        );
        assert_eq!(waits(&looped), "wwww--");
        let twice = format!(
            "{{ loop = 2, steps = [{{ loop = 3, steps = [{{ send = \"x\" }}] }}, \
                             {WAIT}] }}"
        );
        assert_eq!(waits(&twice), "wwwwww-");
    }

    #[test]
    fn check_that_restarts_makes_earlier_waits_reachable() {
        let checked = |action: &str| {
            format!(
                "{WAIT}, {{ send = \"x\", reply = true, check = {{ pattern = \"b\", \
                     do = {action} }} }}"
            )
        };
        assert_eq!(waits(&checked("\"abort\"")), "---");
        assert_eq!(waits(&checked("{ restart = 2 }")), "ww-");
    }
}
