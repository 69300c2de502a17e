//! The common state of a run's parts: directories, programs, and the log of commands and files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::engine::VARIABLE;
use crate::process::Task;

pub(crate) struct Session {
    pub(crate) directory: PathBuf,
    pub(crate) programs: PathBuf,
    pub(crate) runs: usize,
    pub(crate) size: u64,
    pub(crate) short: bool,
    /// The engine of a cluster, for the parts that have one.
    pub(crate) engine: Option<PathBuf>,
    /// Commands of the current part.
    pub(crate) commands: Vec<String>,
    /// Files of the current part.
    pub(crate) files: Vec<String>,
}

impl Session {
    /// Runs `simurgh`; returns its output.
    pub(crate) fn simurgh(&mut self, arguments: &[&str], minutes: u64) -> Result<String> {
        self.run("simurgh", arguments, minutes)
    }

    /// Runs `simurgh-bench`; returns its output.
    pub(crate) fn bench(&mut self, arguments: &[&str], minutes: u64) -> Result<String> {
        self.run("simurgh-bench", arguments, minutes)
    }

    /// Runs `simurgh-bench-timing`; returns its output.
    pub(crate) fn timing(&mut self, arguments: &[&str], minutes: u64) -> Result<String> {
        self.run("simurgh-bench-timing", arguments, minutes)
    }

    fn run(&mut self, name: &str, arguments: &[&str], minutes: u64) -> Result<String> {
        self.note(&format!("{name} {}", arguments.join(" ")));
        let mut task = Task::new(&self.program(name), arguments, minutes);
        if let Some(engine) = &self.engine {
            task = task.env(VARIABLE, engine);
        }
        let done = task.run();
        if done.ok() {
            return Ok(done.output);
        }
        let first = arguments.first().unwrap_or(&"");
        let last = done.output.lines().rev().find(|line| !line.trim().is_empty());
        let last = self.without_paths(last.unwrap_or("it printed nothing"));
        bail!("{name} {first}: {} ({last})", done.reason())
    }

    pub(crate) fn program(&self, name: &str) -> String {
        self.programs.join(name).display().to_string()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Records a command without the paths of this machine.
    pub(crate) fn note(&mut self, command: &str) {
        let command = self.without_paths(command);
        self.commands.push(command);
    }

    fn without_paths(&self, text: &str) -> String {
        let named = |path: &Path| format!("{}/", path.display());
        let root = crate::root();
        let paths = [named(&self.directory), named(&self.programs), named(&root)];
        paths.iter().fold(text.to_owned(), |text, path| text.replace(path.as_str(), ""))
    }

    pub(crate) fn keep(&mut self, name: &str, text: &str) -> Result<()> {
        let text = self.without_paths(text);
        fs::write(self.directory.join(name), text).context(name.to_owned())?;
        self.files.push(name.to_owned());
        Ok(())
    }

    /// Keeps a text that a tool has written into a directory of this run, under another name.
    pub(crate) fn take_file(&mut self, from: &str, to: &str) -> Result<PathBuf> {
        let (old, path) = (self.directory.join(from), self.directory.join(to));
        let taken = fs::read_to_string(&old)
            .and_then(|text| fs::write(&path, self.without_paths(&text)))
            .and_then(|()| fs::remove_file(&old));
        taken.context(from.to_owned())?;
        if let Some(directory) = Path::new(from).parent() {
            // Fails unless it is empty.
            let _ = fs::remove_dir(self.directory.join(directory));
        }
        self.files.push(to.to_owned());
        Ok(path)
    }

    /// Keeps the one file of this extension that a tool has written into `directory` of this run,
    /// as `directory.extension`; `None` if there is none.
    pub(crate) fn take_text(
        &mut self,
        directory: &str,
        extension: &str,
    ) -> Result<Option<PathBuf>> {
        let entries = fs::read_dir(self.directory.join(directory)).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let ending = format!(".{extension}");
        let Some(name) = names.filter(|name| name.ends_with(&ending)).min() else {
            return Ok(None);
        };
        self.take_file(&format!("{directory}/{name}"), &format!("{directory}{ending}")).map(Some)
    }

    /// Removes a tool's further files (journals of megabytes).
    pub(crate) fn remove(&self, directory: &Path) {
        if directory.starts_with(&self.directory) && directory != self.directory {
            let _ = fs::remove_dir_all(directory);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::record::tests::Scratch;
    use super::*;

    pub(crate) fn session(scratch: &Scratch) -> Session {
        Session {
            directory: scratch.0.clone(),
            programs: PathBuf::from("/usr/bin"),
            runs: 5,
            size: 10,
            short: true,
            engine: None,
            commands: Vec::new(),
            files: Vec::new(),
        }
    }

    #[test]
    fn commands_are_kept_without_the_paths_of_this_machine() {
        let scratch = Scratch::new("session-commands");
        let mut session = session(&scratch);
        let out = session.path("road-1");
        assert_eq!(
            session.run("echo", &["--out", &out], 1).unwrap().trim(),
            format!("--out {out}")
        );
        assert_eq!(session.commands, ["echo --out road-1"]);
    }

    #[test]
    fn what_fails_says_its_last_line() {
        let scratch = Scratch::new("session-fails");
        let mut session = session(&scratch);
        let error = session.run("sh", &["-c", "echo so; echo why; exit 3"], 1).unwrap_err();
        assert_eq!(error.to_string(), "sh -c: exit code 3 (why)");
        let error = session.run("no-such-program", &[], 1).unwrap_err();
        assert!(error.to_string().contains("does not start"), "{error}");
    }

    #[test]
    fn files_of_tools_are_taken_and_the_rest_removed() {
        let scratch = Scratch::new("session-files");
        let mut session = session(&scratch);
        fs::create_dir(scratch.0.join("road")).unwrap();
        let text = "{\"server\": \"/usr/bin/simurgh-bench bare-server\"}";
        fs::write(scratch.0.join("road/road.json"), text).unwrap();
        fs::write(scratch.0.join("road/journal"), "x").unwrap();
        session.take_file("road/road.json", "road-1.json").unwrap();
        let kept = fs::read_to_string(scratch.0.join("road-1.json")).unwrap();
        assert_eq!(kept, "{\"server\": \"simurgh-bench bare-server\"}");
        fs::create_dir(scratch.0.join("page")).unwrap();
        fs::write(scratch.0.join("page/run-page.json"), "{}").unwrap();
        let taken = session.take_text("page", "json").unwrap();
        assert_eq!(taken, Some(scratch.0.join("page.json")));
        assert_eq!(session.take_text("page", "json").unwrap(), None);
        session.remove(&scratch.0.join("road"));
        assert!(session.take_file("road/road.json", "again.json").is_err());
        session.remove(&scratch.0);
        assert_eq!(session.files, ["road-1.json", "page.json"]);
        assert!(scratch.0.join("road-1.json").exists() && !scratch.0.join("road").exists());
    }
}
