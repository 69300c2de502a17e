//! Commands that another program sends to a run on standard input, one per line.

use std::io::{self, BufRead};

use simurgh_load::control::Control;
use simurgh_text::output::complain;

/// Executes commands until standard input ends, which does not end the run; mistakes are printed.
///
/// # Errors
/// No thread could be started.
pub(super) fn read(control: Control) -> io::Result<()> {
    std::thread::Builder::new().name("simurgh-commands".into()).spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if let Err(why) = execute(&control, &line) {
                complain(&format!("simurgh: {why}"));
            }
        }
    })?;
    Ok(())
}

fn execute(control: &Control, line: &str) -> Result<(), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        [] => {}
        ["pause"] => control.pause(),
        ["resume"] => control.resume(),
        ["stop"] => control.stop(),
        ["rate", factor] => match factor.parse::<f64>() {
            Ok(factor) if factor.is_finite() && factor > 0.0 => control.rate(factor),
            _ => {
                return Err(format!(
                    "rate {factor:?}: the factor must be a number above 0, such \
                as 2 or 0.5"
                ));
            }
        },
        _ => {
            return Err(format!(
                "{line:?} is not a command: write pause, resume, rate FACTOR or \
                stop"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use simurgh_load::control::Command;

    use super::*;

    #[test]
    fn input_lines_are_parsed_as_commands() {
        let (control, commands) = Control::new();
        for line in ["pause", " resume ", "", "rate 2.5", "stop"] {
            execute(&control, line).unwrap();
        }
        for wrong in ["rate", "rate x", "rate -1", "rate nan", "pause now", "go"] {
            assert!(execute(&control, wrong).is_err(), "{wrong}");
        }
        drop(control);
        let all: Vec<Command> = commands.iter().collect();
        assert_eq!(
            all,
            [Command::Pause, Command::Resume, Command::Rate { factor: 2.5 }, Command::Stop]
        );
    }
}
