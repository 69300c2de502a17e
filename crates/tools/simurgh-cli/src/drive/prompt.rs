//! Where commands come from: a prompt with history and completion, standard input, or a script.

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

use super::Failure;
use super::command::{self, ALL, Command, Mistake};
use super::fleet::{Done, Fleet};
use super::stop::Stop;
use crate::settings::Refusal;

const PROMPT: &str = "drive> ";

/// Lines of the history that are kept.
const HISTORY_MAX: usize = 1000;

/// A script, read and checked whole.
pub(super) struct Script {
    path: PathBuf,
    /// With their lines, from 1.
    commands: Vec<(usize, Command)>,
}

impl Script {
    /// Every line that is no command is named.
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
                    mistakes.push(format!("{}:{number}:{column}: {mistake}", path.display()));
                }
            }
        }
        if mistakes.is_empty() {
            return Ok(Self { path: path.to_owned(), commands });
        }
        Err(Refusal(mistakes))
    }
}

/// Does what is asked until nothing more is.
pub(super) fn run(mut fleet: Fleet, script: Option<Script>, stop: &Stop) -> Result<(), Failure> {
    match script {
        Some(script) => run_script(&mut fleet, &script, stop),
        None if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() => {
            run_prompt(&mut fleet, stop)
        }
        None => run_lines(&mut fleet, stop),
    }
}

fn run_script(fleet: &mut Fleet, script: &Script, stop: &Stop) -> Result<(), Failure> {
    for (number, command) in &script.commands {
        match fleet.obey(command, stop) {
            Ok(Done::Say(text)) => say(&text),
            Ok(Done::Quit) => return Ok(()),
            Err(Failure::Because(why)) => {
                let place = format!("{}:{number}", script.path.display());
                return Err(Failure::Because(format!("{place}: {why}")));
            }
            Err(stopped) => return Err(stopped),
        }
    }
    Ok(())
}

/// Commands of another program: the first that fails ends it.
fn run_lines(fleet: &mut Fleet, stop: &Stop) -> Result<(), Failure> {
    for (number, line) in (1..).zip(std::io::stdin().lock().lines()) {
        let at = |why: &str| Failure::Because(format!("standard input:{number}: {why}"));
        let line = line.map_err(|error| at(&error.to_string()))?;
        let Some(command) = command::parse(&line).map_err(|mistake| at(&mistake.why))? else {
            continue;
        };
        match fleet.obey(&command, stop) {
            Ok(Done::Say(text)) => say(&text),
            Ok(Done::Quit) => return Ok(()),
            Err(Failure::Because(why)) => return Err(at(&why)),
            Err(stopped) => return Err(stopped),
        }
    }
    Ok(())
}

fn run_prompt(fleet: &mut Fleet, stop: &Stop) -> Result<(), Failure> {
    let failed = |error: ReadlineError| Failure::Because(format!("no prompt: {error}"));
    let config = Config::builder()
        .completion_type(CompletionType::List)
        .max_history_size(HISTORY_MAX)
        .map_err(failed)?
        .auto_add_history(true)
        .build();
    let mut editor: Editor<Words, DefaultHistory> = Editor::with_config(config).map_err(failed)?;
    editor.set_helper(Some(Words { topics: Vec::new() }));
    let history = history_file();
    if let Some(history) = &history {
        // The first time there is none.
        let _ = editor.load_history(history);
    }
    say("help names all commands, Ctrl-D leaves");
    let outcome = loop {
        let line = match editor.readline(PROMPT) {
            Ok(line) => line,
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => break Ok(()),
            Err(error) => break Err(failed(error)),
        };
        // Ctrl-C while a line is typed is the editor's; from here on it is ours.
        stop.heard();
        match command::parse(&line) {
            Ok(None) => {}
            Ok(Some(command)) => {
                if let Some(words) = editor.helper_mut() {
                    words.learn(&command);
                }
                match fleet.obey(&command, stop) {
                    Ok(Done::Say(text)) => say(&text),
                    Ok(Done::Quit) => break Ok(()),
                    Err(Failure::Because(why)) => complain(&why),
                    Err(Failure::Stopped) => complain("stopped"),
                }
            }
            Err(mistake) => complain(&pointed(&line, &mistake)),
        }
    };
    if let Some(history) = &history {
        // Who may not write there has no history.
        let _ = editor.save_history(history);
    }
    outcome
}

fn say(text: &str) {
    if !text.is_empty() {
        print(&format!("{text}\n"));
    }
}

/// What is wrong, below the place where it is.
fn pointed(line: &str, mistake: &Mistake) -> String {
    let before = line.get(..mistake.at).unwrap_or(line).chars().count();
    format!("{}^ {}", " ".repeat(PROMPT.len() + before), mistake.why)
}

/// Where the history is kept between runs.
fn history_file() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.filter(|path| path.is_absolute());
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
    let directory = state.or_else(home)?.join("simurgh");
    std::fs::create_dir_all(&directory).ok()?;
    Some(directory.join("drive_history"))
}

/// Completes commands, and topics that were named before.
struct Words {
    topics: Vec<String>,
}

impl Words {
    fn learn(&mut self, command: &Command) {
        let (Command::Join { topic, .. } | Command::Broadcast { topic, .. }) = command else {
            return;
        };
        if !self.topics.contains(topic) && self.topics.len() < HISTORY_MAX {
            self.topics.push(topic.clone());
        }
    }

    /// What the word that ends here may be, and where it starts.
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

impl Completer for Words {
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

impl Hinter for Words {
    type Hint = String;
}

impl Highlighter for Words {}
impl Validator for Words {}
impl Helper for Words {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_topics_are_completed() {
        let mut words = Words { topics: Vec::new() };
        assert_eq!(words.candidates("st"), (0, vec!["start".to_owned(), "stats".to_owned()]));
        assert_eq!(words.candidates("help jo"), (5, vec!["join".to_owned()]));
        assert_eq!(words.candidates("push 1 p"), (7, Vec::new()));
        words.learn(&command::parse("join 1-9 ping_topic").unwrap().unwrap());
        assert_eq!(words.candidates("push 1 p"), (7, vec!["ping_topic".to_owned()]));
        assert_eq!(words.candidates("broadcast "), (10, vec!["ping_topic".to_owned()]));
        assert_eq!(words.candidates("push 1 ping_topic p"), (18, Vec::new()));
    }

    #[test]
    fn a_mistake_is_pointed_at_below_the_line() {
        let line = "push 7 tö e {\"a\":}";
        let mistake = command::parse(line).unwrap_err();
        let text = pointed(line, &mistake);
        let column = text.chars().take_while(|c| *c == ' ').count();
        assert_eq!(format!("{PROMPT}{line}").chars().nth(column), Some('}'));
        assert!(text.contains("^ not JSON: "), "{text}");
    }
}
