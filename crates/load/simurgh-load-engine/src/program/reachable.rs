//! Which operations a user can still reach from each operation of a program.

use super::{AnswerOp, Op, SessionInfo};

/// For each operation, whether one that satisfies `is_it` can follow it.
pub(crate) fn leads_to(
    ops: &[Op],
    sessions: &[SessionInfo],
    is_it: impl Fn(&Op) -> bool,
) -> Vec<bool> {
    let mut ahead = vec![false; ops.len()];
    // One round for each backward jump; most programs need two or three.
    for _ in 0..=ops.len() {
        let mut has_changed = false;
        for (at, op) in ops.iter().enumerate().rev() {
            let leads = |to: usize| ahead.get(to) == Some(&true) || ops.get(to).is_some_and(&is_it);
            let found = ways_on(at, op, sessions).into_iter().flatten().any(leads);
            if let Some(place) = ahead.get_mut(at).filter(|known| found && !**known) {
                *place = true;
                has_changed = true;
            }
        }
        if !has_changed {
            break;
        }
    }
    ahead
}

/// The operations that may come next. A check that goes back may go anywhere.
fn ways_on(at: usize, op: &Op, sessions: &[SessionInfo]) -> [Option<usize>; 2] {
    let next = Some(at + 1);
    let back = || {
        let before = sessions.iter().rev().map(|session| session.start as usize);
        before.into_iter().find(|start| *start <= at)
    };
    match op {
        Op::LoopStart(ends) | Op::LoopEnd(ends) => [next, Some(ends.to as usize)],
        Op::Each(each) => [next, Some(each.end as usize)],
        Op::RepeatEnd(repeat) => [next, Some(repeat.body as usize)],
        Op::Unless(_, to) => [next, Some(*to as usize)],
        Op::Jump(to) => [Some(*to as usize), None],
        Op::Abort | Op::AbortRun | Op::End => [None, None],
        _ if answer(op).is_some_and(AnswerOp::sends_back) => [next, back()],
        _ => [next, None],
    }
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
    fn nothing_is_ahead_of_the_last_wait() {
        assert_eq!(waits("{ connect = \"/\" }"), "--");
        assert_eq!(waits(&format!("{{ connect = \"/\" }}, {WAIT}")), "w--");
        assert_eq!(waits(&format!("{WAIT}, {{ think = \"1s\" }}, {WAIT}")), "ww--");
        let last = format!("{WAIT}, {{ loop = 9, steps = [{{ think = \"1s\" }}] }}");
        assert_eq!(waits(&last), "-----");
    }

    #[test]
    fn a_loop_brings_its_waits_again() {
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
    fn a_check_that_sends_back_brings_the_waits_before_it() {
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
