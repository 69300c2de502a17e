//! All outputs of a run: one that fails is given up, the others continue.

use std::io;

use simurgh_load_record::{Record, Tick, Warning};

/// An output that gets each second of a run.
pub trait Exporter: Send {
    /// Handles a second, which `record` already contains.
    fn tick(&mut self, record: &Record, tick: &Tick) -> io::Result<()> {
        let _ = (record, tick);
        Ok(())
    }

    /// Ends the output, after the last tick.
    fn finish(&mut self, record: &Record) -> io::Result<()> {
        let _ = record;
        Ok(())
    }

    /// The name in messages, such as `report.json`.
    fn name(&self) -> &str;
}

/// The outputs of a run.
#[derive(Default)]
pub struct Outputs {
    alive: Vec<Box<dyn Exporter>>,
    failed: bool,
}

impl Outputs {
    /// No outputs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an output.
    pub fn add(&mut self, exporter: impl Exporter + 'static) {
        self.alive.push(Box::new(exporter));
    }

    /// Adds an output if it could be opened; if not, adds a warning.
    pub fn add_or_warn<E: Exporter + 'static>(
        &mut self,
        name: &str,
        opened: io::Result<E>,
        record: &mut Record,
    ) {
        match opened {
            Ok(exporter) => self.add(exporter),
            Err(error) => self.give_up(name, &error, record),
        }
    }

    /// Gives a second to all outputs. One that fails is given up with a warning.
    pub fn tick(&mut self, record: &mut Record, tick: &Tick) {
        self.each(record, |exporter, record| exporter.tick(record, tick));
    }

    /// Ends all outputs.
    pub fn finish(&mut self, record: &mut Record) {
        self.each(record, |exporter, record| exporter.finish(record));
    }

    /// Whether an output failed, which decides the exit status.
    pub fn failed(&self) -> bool {
        self.failed
    }

    fn each(
        &mut self,
        record: &mut Record,
        mut act: impl FnMut(&mut dyn Exporter, &Record) -> io::Result<()>,
    ) {
        for mut exporter in std::mem::take(&mut self.alive) {
            match act(exporter.as_mut(), record) {
                Ok(()) => self.alive.push(exporter),
                Err(error) => self.give_up(exporter.name(), &error, record),
            }
        }
    }

    fn give_up(&mut self, name: &str, error: &io::Error, record: &mut Record) {
        self.failed = true;
        record.warn(Warning::OutputFailed { output: name.to_owned(), error: error.to_string() });
    }
}
