//! Control flow of a session, such as loops, conditions and think times.

use simurgh_load_scenario::answer::compile_pattern;
use simurgh_load_scenario::{
    Act, Bound, Compare, Condition, Dialect, For, ForEach, Part, Repeat, Set, Step, Switch, Think,
    Value, VarId,
};

use super::sessions::{BIDI, KINDS, Kind};
use super::{Lower, given, is_true};
use crate::subst;
use crate::xml::Element;

const OPERATORS: &[(&str, Compare)] = &[
    ("eq", Compare::Eq),
    ("neq", Compare::Neq),
    ("gt", Compare::Gt),
    ("gte", Compare::Gte),
    ("lt", Compare::Lt),
    ("lte", Compare::Lte),
];

/// The variable for bounds and think times that are more than a variable.
pub(super) const TEXT_VAR: &str = "simurgh_made";

impl Lower<'_> {
    pub(super) fn steps(&mut self, parent: &Element) -> Vec<Step> {
        let mut steps = Vec::new();
        for child in parent.children() {
            let line = child.line;
            let act = match child.name.as_str() {
                "request" => {
                    self.request(child, &mut steps);
                    None
                }
                "setdynvars" => {
                    steps.extend(self.setdynvars(child));
                    None
                }
                "thinktime" => self.thinktime(child, &mut steps),
                "transaction" => {
                    let name = self.wanted(child, "name").to_owned();
                    Some(Act::Transaction { name, steps: self.steps(child) })
                }
                "for" => self.for_loop(child, &mut steps),
                "foreach" => self.for_each(child),
                "repeat" => self.repeat(child),
                "if" => self.condition(child).map(|condition| {
                    let steps = self.steps(child);
                    Act::If { condition, steps }
                }),
                "change_type" => self.change_type(child),
                "set_option" => {
                    self.set_option(parent, child, steps.is_empty());
                    None
                }
                "interaction" => self.interaction(child),
                "abort" => Some(match child.value("type") {
                    Some("all") => Act::AbortRun,
                    _ => Act::Abort,
                }),
                // The end of a <repeat>, which was handled with it.
                "while" | "until" if parent.name == "repeat" => None,
                name => {
                    let what = format!("<{name}> is not allowed in <{}>", parent.name);
                    self.refuse(line, what, "it is the last element of a <repeat>")
                }
            };
            steps.extend(act.map(|act| Step { line, act }));
        }
        steps
    }

    fn thinktime(&mut self, element: &Element, steps: &mut Vec<Step>) -> Option<Act> {
        let value = element.value("value").unwrap_or_default().to_owned();
        match value.as_str() {
            "wait_bidi" => return Some(Act::WaitServer),
            "wait_global" => return Some(self.gather()),
            _ => {}
        }
        if value.contains("%%") {
            let random = is_true(element, "random");
            let var = self.number_text(&value, element.line_of("value"), steps)?;
            return Some(Act::Think(Think::Var(var, random)));
        }
        if self.options.thinktime.replaces {
            return Some(Act::Think(self.options.thinktime.think()));
        }
        if let Some((min, max)) = self.range(element) {
            if !value.is_empty() {
                let what = "<thinktime> has `value` beside `min` and `max`";
                self.wrong(element.line, what, "either one or the others");
            }
            let min = self.seconds(element, "min", min, 1.0);
            return Some(Act::Think(Think::Uniform(min, self.seconds(element, "max", max, 1.0))));
        }
        let random = match element.value("random") {
            Some(random) => random == "true",
            None => self.options.thinktime.random,
        };
        let count = match element.attribute("value") {
            Some(_) => self.number(element, "value")?,
            None if element.attribute("random").is_none() => {
                return Some(Act::Think(self.options.thinktime.think()));
            }
            None => self.options.thinktime.value,
        };
        let time = self.seconds(element, "value", count, 1.0);
        Some(Act::Think(if random { Think::Exponential(time) } else { Think::Constant(time) }))
    }

    /// The wait for Tsung's `global_number` of users.
    pub(super) fn gather(&self) -> Act {
        Act::Gather { users: self.options.global_number, timeout: self.options.global_timeout }
    }

    /// The variable that a text names, or a new one that is set to the text first.
    fn number_text(&mut self, text: &str, line: u32, steps: &mut Vec<Step>) -> Option<VarId> {
        let template = self.template(text, true, line);
        if let [Part::Var(var)] = template.parts.as_slice() {
            return Some(*var);
        }
        if template.parts.is_empty() {
            return None;
        }
        let var = self.var_set(TEXT_VAR, line);
        let set = Set { vars: vec![var], value: Value::Template(template) };
        steps.push(Step { line, act: Act::Set(set) });
        Some(var)
    }

    fn for_loop(&mut self, element: &Element, steps: &mut Vec<Step>) -> Option<Act> {
        let name = self.wanted(element, "var").to_owned();
        let var = self.var_set(&name, element.line_of("var"));
        let from = self.bound(element, "from", steps);
        let to = self.bound(element, "to", steps);
        let step = match element.value("incr") {
            None => Some(1),
            Some(value) => value.trim().parse::<i64>().ok().filter(|&step| step != 0),
        };
        if step.is_none() {
            let what = "`incr` of <for> is not a step";
            self.wrong(element.line_of("incr"), what, "it must be a whole number other than 0");
        }
        let body = self.steps(element);
        Some(Act::For(For {
            var: Some(var),
            from: from?,
            to: to?,
            step: step?,
            every: None,
            at_least_once: true,
            steps: body,
        }))
    }

    fn bound(&mut self, element: &Element, name: &str, steps: &mut Vec<Step>) -> Option<Bound> {
        let value = self.wanted(element, name).trim().to_owned();
        let line = element.line_of(name);
        if let Ok(number) = value.parse() {
            return Some(Bound::Number(number));
        }
        if value.contains("%%") {
            return self.number_text(&value, line, steps).map(Bound::Var);
        }
        let what = format!("`{name}` of <for> cannot be \"{value}\"");
        self.refuse(line, what, "it must be a whole number or %%_variable%%")
    }

    fn for_each(&mut self, element: &Element) -> Option<Act> {
        let name = self.wanted(element, "name").to_owned();
        let var = self.var_set(&name, element.line_of("name"));
        self.vars.counters.insert(format!("{name}_iter"), "foreach");
        let list = self.wanted(element, "in").to_owned();
        let line = element.line_of("in");
        let list = self.var_or_element(&list, line);
        if list.is_some_and(|(_, element)| element.is_some()) {
            self.wrong(line, "`in` of <foreach> is a variable as a whole", "");
        }
        let mut filter = |name: &str| {
            let pattern = given(element, name)?;
            if let Err(what) = compile_pattern(pattern) {
                self.wrong(element.line_of(name), format!("`{name}` of <foreach>: {what}"), "");
            }
            Some(pattern.to_owned())
        };
        let (include, exclude) = (filter("include"), filter("exclude"));
        let steps = self.steps(element);
        Some(Act::ForEach(ForEach { var, list: list?.0, include, exclude, steps }))
    }

    fn repeat(&mut self, element: &Element) -> Option<Act> {
        let name = self.wanted(element, "name").to_owned();
        self.vars.counters.insert(name.clone(), "repeat");
        let times_max = self.whole(element, "max_repeat", 1..=u64::MAX).unwrap_or(20);
        let steps = self.steps(element);
        let ends = |child: &&Element| matches!(child.name.as_str(), "while" | "until");
        let last = element.children().last().filter(ends);
        let Some(last) = last.filter(|_| element.children().filter(ends).count() == 1) else {
            let what = "<repeat> does not end with one <while> or <until>";
            return self.refuse(element.line, what, "put <until var=\"x\" eq=\"y\"/> last into it");
        };
        let condition = self.condition(last)?;
        let until = last.name == "until";
        Some(Act::Repeat(Repeat { name, times_max, steps, condition, until }))
    }

    fn condition(&mut self, element: &Element) -> Option<Condition> {
        let var = self.wanted(element, "var").to_owned();
        let var = self.var_or_element(&var, element.line_of("var"));
        let found: Vec<&(&str, Compare)> =
            OPERATORS.iter().filter(|(name, _)| element.attribute(name).is_some()).collect();
        let [(name, compare)] = found.as_slice() else {
            let what = match found.as_slice() {
                [] => format!("<{}> compares with nothing", element.name),
                _ => format!("<{}> compares with several things", element.name),
            };
            return self.refuse(element.line, what, "one of: eq, neq, gt, gte, lt, lte");
        };
        let value = element.value(name).unwrap_or_default();
        let marked = subst::pieces(value).0.iter().any(|p| !matches!(p, subst::Piece::Text(_)));
        let value = self.template(value, marked, element.line_of(name));
        let (var, element) = var?;
        Some(Condition { var, element, compare: *compare, value })
    }

    fn interaction(&mut self, element: &Element) -> Option<Act> {
        let id = self.wanted(element, "id").to_owned();
        Some(match element.value("action") {
            Some("receive") => Act::InteractionReceive { id },
            _ => Act::InteractionSend { id },
        })
    }

    fn change_type(&mut self, element: &Element) -> Option<Act> {
        let kind = element.value("new_type").unwrap_or_default();
        let Some(kind) = Kind::of(kind) else {
            let what = format!("<change_type> to {kind} is not supported");
            return self.refuse(element.line_of("new_type"), what, format!("one of: {KINDS}"));
        };
        self.session.kind = Some(kind);
        self.ignore(element, "bidi", BIDI);
        let host = self.wanted(element, "host").trim().to_owned();
        let port = self.wanted(element, "port").trim().to_owned();
        if host.contains("%%") || port.contains("%%") {
            let what = "<change_type> to a server that is known only during the run";
            return self.refuse(element.line, what, "write its host and port");
        }
        let port = self.whole(element, "port", 1..=65_535)?;
        let target = self.other_server_of_type(element, &host, port)?;
        let (store, restore) = (is_true(element, "store"), is_true(element, "restore"));
        Some(Act::Switch(Switch { dialect: Dialect::Tsung, target, store, restore }))
    }

    /// Options that apply to one session from here on.
    fn set_option(&mut self, parent: &Element, element: &Element, first: bool) {
        let name = self.wanted(element, "name").to_owned();
        if let Some(kind) = element.value("type") {
            let what = format!("<set_option> `{name}` of {kind} is not supported");
            return self.wrong(element.line, what, "put it into <options>");
        }
        match name.as_str() {
            "rate_limit" => {
                if !first || parent.name != "session" {
                    let what = "<set_option> `rate_limit` holds for the whole session";
                    self.warn(element.line, what, "not only from here on");
                }
                self.session.read_rate_max = self.rate_limit(element);
            }
            "certificate" => {
                for certificate in element.children_named("certificate") {
                    self.certificate(certificate);
                }
            }
            "connect_timeout" => {
                let what = "<set_option> `connect_timeout` is ignored";
                self.warn(element.line, what, "the one in <options> holds for all sessions");
            }
            "" => {}
            _ => {
                let what = format!("<set_option> `{name}` is not known");
                let help = "one of: rate_limit, certificate, connect_timeout";
                self.wrong(element.line_of("name"), what, help);
            }
        }
    }

    fn certificate(&mut self, element: &Element) {
        if let Some(line) = self.session.certificate.replace(element.line) {
            let what = format!("a certificate is set already on line {line}");
            return self.wrong(element.line, what, "all sessions have the same one");
        }
        if given(element, "keypass").is_some() {
            let what = "`keypass` of <certificate> is not supported";
            let help = "store the key without a password";
            return self.wrong(element.line_of("keypass"), what, help);
        }
        let mut pem = |name: &str| -> Option<String> {
            let file = given(element, name)?;
            let bytes = self.file(file, element.line_of(name))?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        let (roots, certificate, key) = (pem("cacertfile"), pem("certfile"), pem("keyfile"));
        self.tls.roots_pem.extend(roots);
        self.tls.identity_pem = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(format!("{certificate}\n{key}")),
            (certificate, _) => certificate,
        };
    }

    /// Tsung never checks the certificate of a server.
    pub(super) fn certificates(&mut self) {
        if self.servers.targets.iter().any(|target| target.tls) {
            let what = "certificates of servers are not checked, as by Tsung";
            self.warn(0, what, "a TOML scenario checks them");
            self.tls.insecure = true;
        }
    }
}
