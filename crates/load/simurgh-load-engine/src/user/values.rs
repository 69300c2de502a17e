//! Rendered templates, and random choices that a run can repeat.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use simurgh_load_scenario::answer::{AnswerText, CompiledFind, hmac_sha256_hex, md5_hex};
use simurgh_load_scenario::{
    Bound, Compare, Condition, DataFile, Find, Generated, Part, Row, Set, Template, Think,
    Value as Source, VarId,
};

use super::{User, Value};
use crate::chance::mix;
use crate::program::Program;
use crate::shared::{Shared, StreamId};
use crate::stamp::Stamp;

pub(crate) struct Values {
    pub(super) program: Rc<Program>,
    pub(super) shared: Arc<Shared>,
    pub(super) seed: u64,
    /// The run's number in stamps.
    pub(super) run: u32,
    pub(super) stamps: u32,
    /// Topic and time of the next stamp, if it is to be numbered.
    pub(super) goes_to: Option<(u64, u64)>,
    /// Stream and number of the last numbered message.
    pub(super) numbered: Option<(StreamId, u32)>,
    /// Stamps that could not be numbered, because there were too many.
    pub(crate) unnumbered: u32,
    /// Variables that had no value when they were read, since the last report.
    pub(crate) undefined: u32,
    /// The worker's clock, set before anything is rendered.
    pub(super) now_ns: u64,
    /// Added to the worker's clock to get the run's: other hosts follow the controller's.
    pub(crate) clock_offset_ns: i64,
    /// The time of day at 0 of the worker's clock.
    pub(super) unix_zero: Duration,
}

impl Values {
    pub(super) fn run_ns(&self, clock_ns: u64) -> u64 {
        clock_ns.saturating_add_signed(self.clock_offset_ns)
    }

    /// Time since 1970: for cookies, unique values and dumps.
    pub(super) fn unix(&self) -> Duration {
        self.unix_zero + Duration::from_nanos(self.now_ns)
    }

    /// A generator for one choice of `user`: the same in each run with the same seed.
    pub(super) fn draw(&self, user: &mut User) -> fastrand::Rng {
        let place = u64::from(user.at) << 16 | u64::from(user.draws);
        user.draws = user.draws.wrapping_add(1);
        fastrand::Rng::with_seed(mix(mix(self.seed, u64::from(user.id)), place))
    }

    pub(super) fn render(&mut self, user: &mut User, template: &Template, out: &mut Vec<u8>) {
        for part in &template.parts {
            match part {
                Part::Literal(text) => out.extend_from_slice(text),
                Part::Var(var) => self.element(user, *var, 0, out),
                Part::Element(var, index) => self.element(user, *var, *index, out),
                Part::Value(made) => self.make(user, made, out),
            }
        }
    }

    /// As [`Values::render`], as a new value.
    pub(super) fn bytes(&mut self, user: &mut User, template: &Template) -> Vec<u8> {
        let mut out = Vec::new();
        self.render(user, template, &mut out);
        out
    }

    /// As [`Values::bytes`], for headers and cookies with their names.
    pub(super) fn pairs<'t>(
        &mut self,
        user: &mut User,
        pairs: &'t [(String, Template)],
    ) -> Vec<(&'t str, Vec<u8>)> {
        pairs.iter().map(|(name, value)| (name.as_str(), self.bytes(user, value))).collect()
    }

    /// As [`Values::bytes`], as text; invalid UTF-8 is replaced.
    pub(super) fn text(&mut self, user: &mut User, template: &Template) -> String {
        String::from_utf8(self.bytes(user, template))
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    fn element(&mut self, user: &User, var: VarId, index: u32, out: &mut Vec<u8>) {
        match user.value(var).and_then(|value| value.element(index as usize)) {
            Some(text) => out.extend_from_slice(text),
            None => self.no_value(out),
        }
    }

    fn no_value(&mut self, out: &mut Vec<u8>) {
        self.undefined += 1;
        out.extend_from_slice(b"undefined");
    }

    fn make(&mut self, user: &mut User, made: &Generated, out: &mut Vec<u8>) {
        let unix = self.unix().as_secs();
        match made {
            Generated::UserId => append(out, user.id),
            Generated::ReallyUniqueId => append(out, format_args!("{}-{}", unix, user.id)),
            Generated::RandomNumber(first, last) => {
                let number = self.draw(user).i64(*first.min(last)..=*last.max(first));
                append(out, number);
            }
            Generated::RandomString(length) => {
                let mut rng = self.draw(user);
                out.extend((0..*length).map(|_| rng.alphanumeric() as u8));
            }
            Generated::Stamp => {
                let stamp = Stamp {
                    run: self.run,
                    sender: user.id,
                    number: self.stamps,
                    at_ns: self.run_ns(self.now_ns),
                    index: self.number(user.id),
                };
                self.stamps = self.stamps.wrapping_add(1);
                stamp.write(out);
            }
            Generated::NextLine(file) => {
                let row = self.shared.next_row(*file);
                self.line(*file, row, out);
            }
            Generated::RandomLine(file) => {
                let row = self.draw(user).u64(..);
                self.line(*file, row, out);
            }
            Generated::UnixTime => append(out, unix),
            Generated::TargetHost | Generated::TargetPort => {
                match self.program.scenario.targets.get(user.server.place()) {
                    Some(target) if *made == Generated::TargetHost => append(out, &target.host),
                    Some(target) => append(out, target.address.port()),
                    None => {}
                }
            }
            Generated::Md5(template) => {
                let text = self.bytes(user, template);
                append(out, md5_hex(&text));
            }
            Generated::HmacSha256(both) => {
                let (key, text) = (self.bytes(user, &both.0), self.bytes(user, &both.1));
                append(out, hmac_sha256_hex(&key, &text));
            }
        }
    }

    /// The number of a stamp in its stream. Receivers only look for the first stamp of a message.
    fn number(&mut self, user: u32) -> u32 {
        let Some((topic, now_ns)) = self.goes_to.take() else { return 0 };
        self.numbered = self.shared.sent.number(topic, user, now_ns);
        self.unnumbered += u32::from(self.numbered.is_none());
        self.numbered.map_or(0, |(_, n)| n)
    }

    fn line(&mut self, file: u16, row: u64, out: &mut Vec<u8>) {
        let program = Rc::clone(&self.program);
        match program.scenario.files.get(usize::from(file)).and_then(|file| pick(file, row)) {
            Some(line) => out.extend_from_slice(line),
            None => self.no_value(out),
        }
    }

    pub(super) fn set(&mut self, user: &mut User, set: &Set) {
        match &set.value {
            Source::Template(template) => {
                let text = self.bytes(user, template);
                if let Some(var) = set.vars.first() {
                    user.set(*var, Value::One(text.into()));
                }
            }
            Source::Row { file, delimiter, random } => {
                let row =
                    if *random { self.draw(user).u64(..) } else { self.shared.next_row(*file) };
                let program = Rc::clone(&self.program);
                let file = program.scenario.files.get(usize::from(*file));
                let line = file.and_then(|file| pick(file, row)).unwrap_or_default();
                let mut rest = Some(line);
                for var in &set.vars {
                    // As in Tsung, a field that the row does not have is empty.
                    let field = rest.map_or(&b""[..], |text| {
                        let at = memchr::memmem::find(text, delimiter.as_bytes());
                        rest = at.and_then(|at| text.get(at + delimiter.len()..));
                        text.get(..at.unwrap_or(text.len())).unwrap_or_default()
                    });
                    user.set(*var, Value::One(field.into()));
                }
            }
            Source::Json { from, path } => {
                let text = match user.value(*from) {
                    Some(Value::One(text)) => text.clone(),
                    _ => Box::default(),
                };
                let found = find_json(path, &text);
                match (set.vars.first(), found) {
                    (Some(var), Some(value)) => user.set(*var, value),
                    _ => self.undefined += 1,
                }
            }
            Source::Target => {
                let program = Rc::clone(&self.program);
                let target = program.scenario.targets.get(user.server.place());
                if let (Some(target), [host, rest @ ..]) = (target, set.vars.as_slice()) {
                    user.set(*host, one(&target.host));
                    if let Some(port) = rest.first() {
                        user.set(*port, one(&target.address.port().to_string()));
                    }
                }
            }
        }
    }

    pub(super) fn think(&mut self, user: &mut User, think: Think) -> Duration {
        match think {
            Think::Constant(time) => time,
            Think::Uniform(from, to) => {
                from + to.saturating_sub(from).mul_f64(self.draw(user).f64())
            }
            Think::Exponential(mean) => exponential(mean, &mut self.draw(user)),
            Think::Var(var, exponential_of) => {
                let seconds = match user.value(var) {
                    Some(Value::One(text)) => number(text),
                    _ => None,
                };
                let time = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
                match time {
                    Some(mean) if exponential_of => exponential(mean, &mut self.draw(user)),
                    Some(time) => time,
                    None => {
                        self.undefined += 1;
                        Duration::ZERO
                    }
                }
            }
        }
    }

    /// Whether a condition holds with this comparison; `None` for a variable without a value.
    pub(super) fn holds(
        &mut self,
        user: &mut User,
        condition: &Condition,
        compare: Compare,
    ) -> Option<bool> {
        let right = self.bytes(user, &condition.value);
        let element = condition.element.unwrap_or(0) as usize;
        let left = user.value(condition.var).and_then(|value| value.element(element))?;
        // As in Tsung: `007` is not `7`, and large numbers are not rounded.
        let is_text = matches!(compare, Compare::Eq | Compare::Neq);
        Some(match (number(left), number(&right)) {
            (Some(left), Some(right)) if !is_text => compare.holds(left, right),
            _ => compare.holds(left, &*right),
        })
    }

    /// The value of a bound; `None`: unbounded.
    pub(super) fn bound(&mut self, user: &User, bound: Bound) -> Option<i64> {
        match bound {
            Bound::Number(number) => Some(number),
            Bound::Endless => None,
            Bound::Var(var) => match user.value(var) {
                Some(Value::One(text)) => Some(number(text).unwrap_or(0.0) as i64),
                _ => {
                    self.undefined += 1;
                    Some(0)
                }
            },
        }
    }
}

/// The values of a JSON path in a text.
fn find_json(path: &str, text: &[u8]) -> Option<Value> {
    let find = CompiledFind::new(&Find::Json(path.to_owned())).ok()?;
    Value::found(find.find_bytes(&AnswerText::body_only(text)))
}

fn pick(file: &DataFile, row: u64) -> Option<&[u8]> {
    let rows = u64::try_from(file.rows.len()).unwrap_or(u64::MAX);
    let index = row.checked_rem(rows)?;
    file.rows.get(usize::try_from(index).ok()?).map(Row::as_bytes)
}

fn one(text: &str) -> Value {
    Value::One(text.as_bytes().into())
}

fn exponential(mean: Duration, rng: &mut fastrand::Rng) -> Duration {
    // The uniform is below 1, so the logarithm's argument is above 0.
    mean.mul_f64(-(1.0 - rng.f64()).ln())
}

fn number(text: &[u8]) -> Option<f64> {
    str::from_utf8(text).ok()?.trim().parse().ok()
}

fn append(out: &mut Vec<u8>, value: impl std::fmt::Display) {
    use std::io::Write;
    // Writing to a vector does not fail.
    let _ = write!(out, "{value}");
}
