//! Iterates over the steps of scenarios, and over their templates and variables.

use std::collections::BTreeSet;
use std::iter;

use super::{
    Act, Answer, Bound, Generated, Matcher, Part, Receive, Repeat, Reply, Scenario, Session, Set,
    Step, Template, Think, Value, VarId,
};

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
    /// Calls `visit` with each step, outer steps before inner ones.
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

impl Session {
    /// All templates of a session.
    pub fn templates(&self) -> Vec<&Template> {
        let beat = self.heartbeat.iter().filter_map(|heartbeat| heartbeat.send.as_ref());
        let frames = beat.chain(self.rules.iter().map(|rule| &rule.send));
        let mut all: Vec<_> = frames.map(|frame| &frame.data).collect();
        all.extend(self.rules.iter().flat_map(|rule| rule.when.templates()));
        self.each_step(&mut |step| all.extend(step.act.templates()));
        all
    }

    /// The variables of a session, except for those that are only counters of loops.
    pub fn vars(&self) -> BTreeSet<VarId> {
        let mut vars = BTreeSet::new();
        self.templates().into_iter().for_each(|template| in_template(template, &mut vars));
        self.each_step(&mut |step| {
            vars.extend(step.act.vars());
            let captures = step.act.answer().into_iter().flat_map(|answer| &answer.captures);
            vars.extend(captures.map(|capture| capture.var));
        });
        vars
    }
}

fn in_template(template: &Template, vars: &mut BTreeSet<VarId>) {
    for part in &template.parts {
        match part {
            Part::Var(var) | Part::Element(var, _) => _ = vars.insert(*var),
            Part::Value(Generated::Md5(inner)) => in_template(inner, vars),
            Part::Value(Generated::HmacSha256(both)) => {
                in_template(&both.0, vars);
                in_template(&both.1, vars);
            }
            Part::Value(_) | Part::Literal(_) => {}
        }
    }
}

impl Matcher {
    fn templates(&self) -> impl Iterator<Item = &Template> {
        let (topic, text) = match self {
            Self::Any => (&None, None),
            Self::Is(text) | Self::Contains(text) | Self::Regex(text) => (&None, Some(text)),
            Self::Json { is, .. } => (&None, Some(is)),
            Self::Event { topic, event } => (topic, Some(event)),
            Self::Presence { topic, key, .. } => (topic, Some(key)),
        };
        topic.iter().chain(text)
    }
}

impl Act {
    /// Its templates, without those of inner steps.
    fn templates(&self) -> Vec<&Template> {
        let mut all: Vec<&Template> = Vec::new();
        match self {
            Self::Connect(connect) => {
                all.extend(
                    iter::once(&connect.path).chain(&connect.origin).chain(&connect.payload),
                );
                all.extend(connect.headers.iter().map(|(_, text)| text));
            }
            Self::Send(message) | Self::Raw(message) => {
                all.push(&message.data);
                if let Reply::Match(matcher) = &message.reply {
                    all.extend(matcher.templates());
                }
            }
            Self::Wait(wait) => all.extend(wait.matcher.templates()),
            Self::Receive(receive) => {
                all.extend(receive.matcher.iter().flat_map(Matcher::templates));
            }
            Self::Join(push) | Self::Push(push) | Self::Leave(push) => {
                all.extend(
                    [&push.topic, &push.event, &push.payload].into_iter().chain(&push.presence),
                );
            }
            Self::Http(http) => {
                all.extend(iter::once(&http.url).chain(&http.body));
                all.extend(http.headers.iter().chain(&http.cookies).map(|(_, text)| text));
                if let Some(auth) = &http.auth {
                    let optional = auth.realm.iter().chain(&auth.nonce).chain(&auth.opaque);
                    all.extend([&auth.user, &auth.password].into_iter().chain(optional));
                }
            }
            Self::Set(Set { value: Value::Template(text), .. }) => all.push(text),
            Self::If { condition, .. } | Self::Repeat(Repeat { condition, .. }) => {
                all.push(&condition.value);
            }
            _ => {}
        }
        all.extend(self.answer().into_iter().flat_map(|it| &it.checks).map(|check| &check.pattern));
        all
    }

    /// The variables that it names itself, except for a loop's counter.
    fn vars(&self) -> Vec<VarId> {
        let bound = |bound: Bound| match bound {
            Bound::Var(var) => Some(var),
            Bound::Number(_) | Bound::Endless => None,
        };
        match self {
            Self::Set(Set { vars, value: Value::Json { from, .. } }) => {
                [vars, &[*from][..]].concat()
            }
            Self::Set(set) => set.vars.clone(),
            Self::For(each) => [each.from, each.to].into_iter().filter_map(bound).collect(),
            Self::ForEach(each) => vec![each.var, each.list],
            Self::If { condition, .. } | Self::Repeat(Repeat { condition, .. }) => {
                vec![condition.var]
            }
            Self::Think(Think::Var(var, _))
            | Self::Receive(Receive { time: Some(Think::Var(var, _)), .. }) => vec![*var],
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{Overrides, VarId, toml};

    /// Steps that name the variable `v` in one place each.
    const STEPS: &[&str] = &[
        "{ connect = '/{{v}}' }",
        "{ connect = '/', origin = '{{v}}' }",
        "{ connect = '/', headers = { a = '{{v}}' } }",
        "{ send = '{{v[1]}}' }",
        "{ send = '{{md5 \"{{v}}\"}}' }",
        "{ raw = 'a', reply = { is = '{{v}}' } }",
        "{ wait = { contains = '{{v}}' } }",
        "{ wait = { regex = '{{v}}' } }",
        "{ wait = { json = 'a', is = '{{v}}' } }",
        "{ wait = { event = '{{v}}' } }",
        "{ wait = { event = 'a', topic = '{{v}}' } }",
        "{ wait = { presence = 'joins', key = '{{v}}' } }",
        "{ wait = { presence = 'joins', key = 'a', topic = '{{v}}' } }",
        "{ receive = '1s', match = { is = '{{v}}' } }",
        "{ receive = { seconds = 'v' } }",
        "{ think = { seconds = 'v' } }",
        "{ join = '{{v}}' }",
        "{ leave = 'a', presence = '{{v}}' }",
        "{ push = '{{v}}', topic = 'a' }",
        "{ push = 'a', topic = 'b', payload = { a = '{{v}}' } }",
        "{ get = '/{{v}}' }",
        "{ get = '/', headers = { a = '{{v}}' } }",
        "{ get = '/', cookies = { a = '{{v}}' } }",
        "{ post = '/', body = '{{v}}' }",
        "{ get = '/', auth = { user = '{{v}}', password = '' } }",
        "{ get = '/', auth = { user = '', password = '{{v}}' } }",
        "{ get = '/', auth = { user = '', password = '', realm = '{{v}}' } }",
        "{ get = '/', auth = { user = '', password = '', nonce = '{{v}}' } }",
        "{ get = '/', auth = { user = '', password = '', opaque = '{{v}}' } }",
        "{ get = '/', check = '{{v}}' }",
        "{ get = '/', capture = { v = 'a' } }",
        "{ set = 'v', value = '1' }",
        "{ set = 'v', from = 'v', json = 'a' }",
        "{ loop = { var = 'v' }, steps = [] }",
        "{ loop = 1, from = { var = 'v' }, steps = [] }",
        "{ each = 'v', in = 'v', steps = [] }",
        "{ if = 'v == 1', steps = [] }",
        "{ repeat = 1, while = 'v == 1', steps = [] }",
        "{ transaction = 'a', steps = [{ send = '{{v}}' }] }",
    ];

    #[test]
    fn variables_are_found_in_every_place_of_a_session() {
        let vars = |session: &str| {
            let text =
                format!("vars = 'v'\ntarget.url = 'ws://127.0.0.1:1'\n[[session]]\n{session}");
            match toml::read(&text, Path::new(""), &Overrides::default()) {
                Ok(loaded) => loaded.scenario.sessions[0].vars(),
                Err(wrong) => panic!("{wrong}\n{text}"),
            }
        };
        let steps = STEPS.iter().map(|step| format!("steps = [{step}]"));
        let frames = [
            "heartbeat = { every = '1s', send = '{{v}}' }",
            "answer = { when = '{{v}}', send = '' }",
            "answer = { when = '1', send = '{{v}}' }",
        ];
        for session in steps.chain(frames.map(|frame| format!("{frame}\nsteps = []"))) {
            assert_eq!(vars(&session), [VarId(0)].into(), "{session}");
        }
        let counter = "steps = [{ loop = 1, counter = 'v', steps = [] }]";
        assert_eq!(vars(counter), [].into(), "a counter");
    }
}
