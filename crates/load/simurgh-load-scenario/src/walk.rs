//! Iterates over the steps of scenarios.

use super::{Act, Answer, Scenario, Session, Step};

impl Act {
    fn steps_mut(&mut self) -> &mut [Step] {
        match self {
            Self::For(each) => &mut each.steps,
            Self::ForEach(each) => &mut each.steps,
            Self::Repeat(repeat) => &mut repeat.steps,
            Self::If { steps, .. } | Self::Transaction { steps, .. } => steps,
            _ => &mut [],
        }
    }

    /// The steps within this one.
    pub fn steps(&self) -> &[Step] {
        match self {
            Self::For(each) => &each.steps,
            Self::ForEach(each) => &each.steps,
            Self::Repeat(repeat) => &repeat.steps,
            Self::If { steps, .. } | Self::Transaction { steps, .. } => steps,
            _ => &[],
        }
    }

    /// The processing of its answer, if it can have one.
    pub fn answer(&self) -> Option<&Answer> {
        match self {
            Self::Connect(connect) => Some(&connect.answer),
            Self::Send(message) | Self::Raw(message) => Some(&message.answer),
            Self::Wait(wait) => Some(&wait.answer),
            Self::Join(push) | Self::Push(push) | Self::Leave(push) => Some(&push.answer),
            Self::Http(http) => Some(&http.answer),
            _ => None,
        }
    }
}

impl Scenario {
    /// Calls `visit` with each step, outer steps before inner ones.
    pub fn each_step<'s>(&'s self, mut visit: impl FnMut(&'s Session, &'s Step)) {
        for session in &self.sessions {
            session.each_step(&mut |step| visit(session, step));
        }
    }

    /// The scenario without line numbers, to be compared with one of another text.
    #[must_use]
    pub fn without_lines(mut self) -> Self {
        for session in &mut self.sessions {
            forget_lines(&mut session.steps);
        }
        self
    }
}

fn forget_lines(steps: &mut [Step]) {
    for step in steps {
        step.line = 0;
        forget_lines(step.act.steps_mut());
    }
}

impl Session {
    /// The same for one session.
    pub fn each_step<'s>(&'s self, visit: &mut dyn FnMut(&'s Step)) {
        in_steps(&self.steps, visit);
    }
}

fn in_steps<'s>(steps: &'s [Step], visit: &mut dyn FnMut(&'s Step)) {
    for step in steps {
        visit(step);
        in_steps(step.act.steps(), visit);
    }
}
