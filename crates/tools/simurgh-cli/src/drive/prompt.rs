//! Reads commands from a prompt with history and completion, standard input, or a script.

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};

use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};
use simurgh_text::output::{complain, print};

use super::command::{self, ALL, Command, Mistake};
use super::interrupt::{Failure, Interrupt};
use super::sockets::Sockets;
use crate::settings::Refusal;

const PROMPT: &str = "drive> ";

const HISTORY_MAX: usize = 1000;

/// A script, parsed and checked completely.
pub(super) struct Script {
    path: PathBuf,
    /// With line numbers, from 1.
    commands: Vec<(usize, Command)>,
}

impl Script {
    /// The error has all mistakes.
    pub(super) fn read(path: &Path) -> Result<Self, Refusal> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Refusal(vec![format!("{}: {error}", path.display())]))?;
        let (mut commands, mut mistakes) = (Vec::new(), Vec::new());
        for (number, line) in (1..).zip(text.lines()) {
            match command::parse(line) {
                Ok(Some(command)) => commands.push((number, command)),
                Ok(None) => {}
                Err(mistake) => {
                    let column = line.get(..mistake.at).map_or(0, |it| it.chars().count()) + 1;
                    let why = mistake.why;
                    mistakes.push(format!("{}:{number}:{column}: {why}", path.display()));
                }
            }
        }
        if mistakes.is_empty() {
            return Ok(Self { path: path.to_owned(), commands });
        }
        Err(Refusal(mistakes))
    }
}

pub(super) fn run(
    mut sockets: Sockets,
    script: Option<Script>,
    stop: &Interrupt,
) -> Result<(), Failure> {
    match script {
        Some(script) => run_script(&mut sockets, &script),
        None if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() => {
            run_prompt(&mut sockets, stop)
        }
        None => run_lines(&mut sockets),
    }
}

/// Stops at the first command that fails.
fn run_script(sockets: &mut Sockets, script: &Script) -> Result<(), Failure> {
    for (number, command) in &script.commands {
        if execute_at(sockets, &format!("{}:{number}", script.path.display()), command)? {
            break;
        }
    }
    Ok(())
}

fn run_lines(sockets: &mut Sockets) -> Result<(), Failure> {
    for (number, line) in (1..).zip(std::io::stdin().lock().lines()) {
        let place = format!("standard input:{number}");
        let at = |why: &str| Failure::Because(format!("{place}: {why}"));
        let line = line.map_err(|error| at(&error.to_string()))?;
        let command = command::parse(&line).map_err(|mistake| at(&mistake.why))?;
        if command.map_or(Ok(false), |command| execute_at(sockets, &place, &command))? {
            break;
        }
    }
    Ok(())
}

/// Returns whether it was the last command.
fn execute_at(sockets: &mut Sockets, place: &str, command: &Command) -> Result<bool, Failure> {
    match sockets.execute(command) {
        Ok(Some(text)) => show(&text),
        Ok(None) => return Ok(true),
        Err(Failure::Because(why)) => return Err(Failure::Because(format!("{place}: {why}"))),
        Err(stopped) => return Err(stopped),
    }
    Ok(false)
}

fn run_prompt(sockets: &mut Sockets, stop: &Interrupt) -> Result<(), Failure> {
    let failed = |error: ReadlineError| Failure::Because(format!("no prompt: {error}"));
    let config = Config::builder()
        .completion_type(CompletionType::List)
        .max_history_size(HISTORY_MAX)
        .map_err(failed)?
        .auto_add_history(true)
        .build();
    let mut editor: Editor<Completions, DefaultHistory> =
        Editor::with_config(config).map_err(failed)?;
    editor.set_helper(Some(Completions { topics: Vec::new() }));
    let history = history_file();
    if let Some(history) = &history {
        // Fails at first, when there is none.
        let _ = editor.load_history(history);
    }
    show("Type help for all commands, Ctrl-D to exit.");
    let outcome = loop {
        let line = match editor.readline(PROMPT) {
            Ok(line) => line,
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => break Ok(()),
            Err(error) => break Err(failed(error)),
        };
        // While a line is typed, the editor handles Ctrl-C.
        stop.reset();
        match command::parse(&line) {
            Ok(None) => {}
            Ok(Some(command)) => {
                if let Some(words) = editor.helper_mut() {
                    words.learn(&command);
                }
                match sockets.execute(&command) {
                    Ok(Some(text)) => show(&text),
                    Ok(None) => break Ok(()),
                    Err(Failure::Because(why)) => complain(&why),
                    Err(Failure::Stopped) => complain("stopped"),
                }
            }
            Err(mistake) => complain(&pointed(&line, &mistake)),
        }
    };
    if let Some(history) = &history {
        // Without write permission no history is kept.
        let _ = editor.save_history(history);
    }
    outcome
}

fn show(text: &str) {
    if !text.is_empty() {
        print(&format!("{text}\n"));
    }
}

/// A mistake, with a mark below its position in the line.
fn pointed(line: &str, mistake: &Mistake) -> String {
    let before = line.get(..mistake.at).unwrap_or(line).chars().count();
    format!("{}^ {}", " ".repeat(PROMPT.len() + before), mistake.why)
}

fn history_file() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.filter(|path| path.is_absolute());
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
    let directory = state.or_else(home)?.join("simurgh");
    std::fs::create_dir_all(&directory).ok()?;
    Some(directory.join("drive_history"))
}

/// Completes commands, and topics that were used before.
struct Completions {
    topics: Vec<String>,
}

impl Completions {
    fn learn(&mut self, command: &Command) {
        let (Command::Join { topic, .. } | Command::Broadcast { topic, .. }) = command else {
            return;
        };
        if !self.topics.contains(topic) && self.topics.len() < HISTORY_MAX {
            self.topics.push(topic.clone());
        }
    }

    /// The completions of the last word, and its start.
    fn candidates(&self, line: &str) -> (usize, Vec<String>) {
        let start = line.rfind(' ').map_or(0, |blank| blank + 1);
        let word = line.get(start..).unwrap_or_default();
        let before: Vec<&str> = line.get(..start).unwrap_or_default().split_whitespace().collect();
        let names = || ALL.iter().map(|usage| usage.name.to_owned());
        let all: Vec<String> = match before.as_slice() {
            [] | ["help"] => names().collect(),
            ["join" | "push" | "leave" | "close" | "flush"] => vec!["all".to_owned()],
            ["join" | "push" | "leave", _] | ["broadcast"] => self.topics.clone(),
            _ => Vec::new(),
        };
        (start, all.into_iter().filter(|it| it.starts_with(word)).collect())
    }
}

impl Completer for Completions {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let (start, candidates) = self.candidates(line.get(..pos).unwrap_or(line));
        let pair = |word: String| Pair { display: word.clone(), replacement: word + " " };
        Ok((start, candidates.into_iter().map(pair).collect()))
    }
}

impl Hinter for Completions {
    type Hint = String;
}

impl Highlighter for Completions {}
impl Validator for Completions {}
impl Helper for Completions {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_completes_commands_and_topics() {
        let mut words = Completions { topics: Vec::new() };
        assert_eq!(words.candidates("st"), (0, vec!["start".to_owned(), "stats".to_owned()]));
        assert_eq!(words.candidates("help jo"), (5, vec!["join".to_owned()]));
        assert_eq!(words.candidates("push 1 p"), (7, Vec::new()));
        words.learn(&command::parse("join 1-9 ping_topic").unwrap().unwrap());
        assert_eq!(words.candidates("push 1 p"), (7, vec!["ping_topic".to_owned()]));
        assert_eq!(words.candidates("broadcast "), (10, vec!["ping_topic".to_owned()]));
        assert_eq!(words.candidates("push 1 ping_topic p"), (18, Vec::new()));
    }

    #[test]
    fn prompt_points_at_a_mistake_below_the_line() {
        let line = "push 7 tö e {\"a\":}";
        let mistake = command::parse(line).unwrap_err();
        let text = pointed(line, &mistake);
        let column = text.chars().take_while(|c| *c == ' ').count();
        assert_eq!(format!("{PROMPT}{line}").chars().nth(column), Some('}'));
        assert!(text.contains("^ not JSON: "), "{text}");
    }
}
