//! How a running load is steered, from the terminal, the dashboard or a signal: everybody holds a
//! [`Control`], the engine's coordinator holds the other end.

use std::sync::mpsc::{Receiver, Sender, channel};

/// The smallest rate factor taken: slower than this is what a pause is for.
pub const RATE_FACTOR_MIN: f64 = 0.01;

/// The largest rate factor taken.
pub const RATE_FACTOR_MAX: f64 = 100.0;

/// What a running load is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Command {
    /// No new arrivals until [`Command::Resume`]; users who are there go on.
    Pause,
    /// Arrivals go on where they paused.
    Resume,
    /// The run ends in good order; told twice, it ends at once.
    Stop,
    /// Arrivals come at this multiple of the scenario's rate, from now on.
    Rate(f64),
}

/// Steers a run. Cheap to clone; commands to a run that has ended are dropped.
#[derive(Clone, Debug)]
pub struct Control(Sender<Command>);

impl Control {
    /// A control, and where its commands arrive.
    pub fn new() -> (Self, Receiver<Command>) {
        let (sender, receiver) = channel();
        (Self(sender), receiver)
    }

    /// No new arrivals until [`Control::resume`].
    pub fn pause(&self) {
        self.send(Command::Pause);
    }

    /// Arrivals go on.
    pub fn resume(&self) {
        self.send(Command::Resume);
    }

    /// Ends the run; a second time: at once.
    pub fn stop(&self) {
        self.send(Command::Stop);
    }

    /// Multiplies the scenario's arrival rate. The factor is kept between [`RATE_FACTOR_MIN`] and
    /// [`RATE_FACTOR_MAX`]; what is no number is dropped.
    pub fn rate(&self, factor: f64) {
        if !factor.is_nan() {
            self.send(Command::Rate(factor.clamp(RATE_FACTOR_MIN, RATE_FACTOR_MAX)));
        }
    }

    fn send(&self, command: Command) {
        // The receiver is gone once the run has ended, and then there is nothing left to steer.
        let _ = self.0.send(command);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_arrive_in_order_from_every_clone() {
        let (control, commands) = Control::new();
        control.pause();
        control.clone().rate(2.0);
        control.stop();
        drop(control);
        let all: Vec<Command> = commands.iter().collect();
        assert_eq!(all, [Command::Pause, Command::Rate(2.0), Command::Stop]);
    }

    #[test]
    fn a_rate_stays_within_its_bounds() {
        let (control, commands) = Control::new();
        for factor in [0.0, -1.0, f64::INFINITY, f64::NAN] {
            control.rate(factor);
        }
        drop(control);
        let all: Vec<Command> = commands.iter().collect();
        let (least, most) = (Command::Rate(RATE_FACTOR_MIN), Command::Rate(RATE_FACTOR_MAX));
        assert_eq!(all, [least, least, most]);
    }

    #[test]
    fn a_run_that_has_ended_hears_nothing() {
        let (control, commands) = Control::new();
        drop(commands);
        control.stop();
    }
}
