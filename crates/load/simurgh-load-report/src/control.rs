//! Controls a running load, from standard input, the dashboard or a signal: each has a [`Control`],
//! the engine's coordinator has the receiver.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// The smallest accepted rate factor: for less, pause the run.
pub const RATE_FACTOR_MIN: f64 = 0.01;

/// The largest accepted rate factor.
pub const RATE_FACTOR_MAX: f64 = 100.0;

/// A command to a running load.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// No new arrivals until [`Command::Resume`]; users that have arrived continue.
    Pause,
    /// Arrivals continue where they paused.
    Resume,
    /// The run ends in an orderly way; a second stop ends it at once.
    Stop,
    /// Arrivals come at this multiple of the scenario's rate from now on.
    Rate {
        /// The multiple.
        factor: f64,
    },
}

/// Controls a run. Cheap to clone; commands to a run that has ended are dropped.
#[derive(Clone)]
pub struct Control {
    send: Arc<dyn Fn(Command) + Send + Sync>,
    state: Arc<Mutex<ControlState>>,
}

/// The state after all commands so far, shared by all clones of a [`Control`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ControlState {
    /// Arrivals are paused.
    pub paused: bool,
    /// Multiple of the scenario's arrival rate.
    pub rate: f64,
    /// An operator ended the run.
    pub stopping: bool,
}

impl Control {
    /// A control, and the receiver of its commands.
    pub fn new() -> (Self, Receiver<Command>) {
        let (sender, receiver) = channel();
        // Without a receiver, the run has ended.
        let send = move |command| {
            let _ = sender.send(command);
        };
        (Self::to(send), receiver)
    }

    /// A control whose commands go to `send`, in order and one at a time.
    pub fn to(send: impl Fn(Command) + Send + Sync + 'static) -> Self {
        let state = ControlState { paused: false, rate: 1.0, stopping: false };
        Self { send: Arc::new(send), state: Arc::new(Mutex::new(state)) }
    }

    /// No new arrivals until [`Control::resume`].
    pub fn pause(&self) {
        self.send(Command::Pause);
    }

    /// Resumes arrivals.
    pub fn resume(&self) {
        self.send(Command::Resume);
    }

    /// Ends the run; a second call ends it at once.
    pub fn stop(&self) {
        self.send(Command::Stop);
    }

    /// Multiplies the scenario's arrival rate. The factor is limited to [`RATE_FACTOR_MIN`] and
    /// [`RATE_FACTOR_MAX`]; NaN is ignored.
    pub fn rate(&self, factor: f64) {
        if !factor.is_nan() {
            self.send(Command::Rate { factor: factor.clamp(RATE_FACTOR_MIN, RATE_FACTOR_MAX) });
        }
    }

    /// The state after all commands so far.
    pub fn state(&self) -> ControlState {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn send(&self, command: Command) {
        // Sent under the lock, so that commands arrive in the order in which the state changed.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match command {
            Command::Pause => state.paused = true,
            Command::Resume => state.paused = false,
            Command::Stop => state.stopping = true,
            Command::Rate { factor } => state.rate = factor,
        }
        (self.send)(command);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_arrive_in_order_and_cloned_controls_share_state() {
        let (control, commands) = Control::new();
        let other = control.clone();
        control.pause();
        other.rate(0.5);
        let state = ControlState { paused: true, rate: 0.5, stopping: false };
        assert_eq!((control.state(), other.state()), (state, state));
        for factor in [0.0, -1.0, f64::INFINITY, f64::NAN] {
            control.rate(factor);
        }
        let factors = [0.5, RATE_FACTOR_MIN, RATE_FACTOR_MIN, RATE_FACTOR_MAX];
        let expected = factors.map(|factor| Command::Rate { factor });
        let found: Vec<Command> = commands.try_iter().collect();
        assert_eq!(found, [&[Command::Pause], &expected[..]].concat());
        // A run that has ended receives nothing.
        drop(commands);
        other.resume();
        other.stop();
        let state = ControlState { paused: false, stopping: true, rate: RATE_FACTOR_MAX };
        assert_eq!(control.state(), state);
    }
}
