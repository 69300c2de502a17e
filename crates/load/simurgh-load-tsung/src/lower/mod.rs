//! Converts elements to the model: the common part. One file for each group of elements.

mod clients;
mod flow;
mod http;
mod load;
mod options;
mod requests;
mod servers;
mod sessions;
mod templates;
mod variables;

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use simurgh_load_scenario::{
    DataFile, Diagnostic, Dump, Overrides, Scenario, Sources, Spread, Tls, TsungRun,
};

use crate::environment::Environment;
use crate::xml::Element;
use options::Options;
use servers::Servers;
use sessions::SessionState;
use variables::Vars;

/// The seed of files without one.
const SEED: u64 = 1;
/// The longest time, 50 days: Tsung's bound, by its manual.
const SECONDS_MAX: f64 = 50.0 * 86_400.0;

/// Converts a document that has passed [`crate::dtd`].
pub(super) fn lower(
    root: &Element,
    overrides: &Overrides,
    environment: &dyn Environment,
    warnings: &mut Vec<Diagnostic>,
) -> Result<Scenario, Vec<Diagnostic>> {
    let mut lower = Lower {
        overrides,
        environment,
        warnings,
        diagnostics: Vec::new(),
        warned: HashSet::new(),
        vars: Vars::default(),
        servers: Servers::default(),
        files: Vec::new(),
        file_ids: HashMap::new(),
        options: Options::default(),
        session: SessionState::default(),
        tls: Tls::default(),
        sources: Sources::default(),
        addresses_tried: 0,
    };
    let scenario = lower.scenario(root);
    if lower.diagnostics.is_empty() { Ok(scenario) } else { Err(lower.diagnostics) }
}

struct Lower<'a> {
    overrides: &'a Overrides,
    environment: &'a dyn Environment,
    warnings: &'a mut Vec<Diagnostic>,
    diagnostics: Vec<Diagnostic>,
    warned: HashSet<String>,
    vars: Vars,
    servers: Servers,
    files: Vec<DataFile>,
    file_ids: HashMap<String, u16>,
    options: Options,
    session: SessionState,
    tls: Tls,
    sources: Sources,
    /// Addresses of clients that were tested for being this host's.
    addresses_tried: usize,
}

impl Lower<'_> {
    fn scenario(&mut self, root: &Element) -> Scenario {
        let mut run = self.run(root);
        let name = self.information(root);
        self.monitoring(root);
        self.servers(root);
        self.clients(root);
        self.options(root);
        run.proxy = self.options.proxy;
        let sessions = self.sessions(root);
        let load = self.load(root, &sessions);
        self.unset_variables();
        self.certificates();
        let targets = std::mem::take(&mut self.servers.targets);
        let is_one = targets.iter().filter(|target| target.weight > 0.0).count() < 2;
        Scenario {
            name,
            seed: self.options.seed.unwrap_or(SEED),
            targets,
            spread: if is_one { Spread::default() } else { Spread::Random },
            sources: std::mem::take(&mut self.sources),
            load,
            sessions,
            vars: std::mem::take(&mut self.vars.names),
            files: std::mem::take(&mut self.files),
            timeouts: self.options.timeouts,
            pass: Vec::new(),
            agents: Vec::new(),
            tls: std::mem::take(&mut self.tls),
            user_agents: std::mem::take(&mut self.options.user_agents),
            tsung: Some(run),
        }
    }

    fn run(&mut self, root: &Element) -> TsungRun {
        self.ignore(root, "loglevel", "`simurgh --log` sets how much is logged");
        let dump = match root.value("dumptraffic") {
            Some("true") => Dump::Full,
            Some("light") => Dump::Light,
            Some("protocol" | "protocol_local") => Dump::Protocol,
            _ => Dump::Off,
        };
        let full_stats = match root.value("backend") {
            Some("fullstats") => true,
            Some("json" | "rrdtool") => {
                self.ignore(root, "backend", "tsung.log is text, report.json is JSON");
                false
            }
            _ => false,
        };
        let version = root.value("version").map(ToOwned::to_owned);
        TsungRun { version, full_stats, dump, proxy: false }
    }

    fn information(&mut self, root: &Element) -> String {
        let mut name = None;
        for child in root.children_named("information").flat_map(Element::children) {
            if child.name == "name" {
                name = child.texts().next().map(|(text, _)| text.trim().to_owned());
            } else {
                let what = format!("<{}> is ignored", child.name);
                self.warn(child.line, what, "only <name> is kept, as the title");
            }
        }
        name.unwrap_or_else(|| "tsung".to_owned())
    }

    fn monitoring(&mut self, root: &Element) {
        for monitor in root.children_named("monitoring").flat_map(Element::children) {
            let kind = monitor.value("type").unwrap_or("erlang");
            let host = monitor.value("host").unwrap_or_default();
            let what = format!("<monitor> of {host} (type {kind}) is ignored");
            self.warn(monitor.line, what, "a target's /metrics is read where it has them");
        }
    }

    fn wrong(&mut self, line: u32, what: impl Into<String>, help: impl Into<String>) {
        self.diagnostics.push(Diagnostic::at(line, what).help(help));
    }

    /// As [`Self::wrong`], in place of a value.
    fn refuse<T>(
        &mut self,
        line: u32,
        what: impl Into<String>,
        help: impl Into<String>,
    ) -> Option<T> {
        self.wrong(line, what, help);
        None
    }

    /// Adds a warning; of several with the same text only the first is kept.
    fn warn(&mut self, line: u32, what: impl Into<String>, help: impl Into<String>) {
        let what = what.into();
        if self.warned.insert(what.clone()) {
            self.warnings.push(Diagnostic::at(line, what).help(help));
        }
    }

    /// Warns of an attribute that has no effect.
    fn ignore(&mut self, element: &Element, name: &str, why: &str) {
        if let Some(attribute) = element.attribute(name) {
            let what = format!("`{name}` of <{}> is ignored", element.name);
            self.warn(attribute.line, what, why);
        }
    }

    /// A required attribute; the DTD check reports a missing one.
    fn wanted<'e>(&mut self, element: &'e Element, name: &str) -> &'e str {
        match element.value(name) {
            Some(value) if !value.is_empty() => value,
            _ => {
                let what = format!("<{}> needs a value for `{name}`", element.name);
                self.wrong(element.line_of(name), what, "");
                ""
            }
        }
    }

    /// Refuses an element that has both of two attributes, or neither.
    fn one_of<T>(&mut self, element: &Element, first: &str, second: &str) -> Option<T> {
        let what = match element.attribute(first) {
            Some(_) => format!("<{}> has both `{first}` and `{second}`", element.name),
            None => format!("<{}> has neither `{first}` nor `{second}`", element.name),
        };
        self.refuse(element.line, what, "use exactly one of them")
    }

    /// A number, at least 0.
    fn number(&mut self, element: &Element, name: &str) -> Option<f64> {
        let value = element.value(name)?;
        match value.trim().parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 0.0 => Some(number),
            _ => {
                let what = format!("`{name}` of <{}> is not a number: \"{value}\"", element.name);
                self.refuse(element.line_of(name), what, "it must be a number of 0 or more")
            }
        }
    }

    /// A whole number.
    fn whole<T: TryFrom<u64>>(
        &mut self,
        element: &Element,
        name: &str,
        bounds: RangeInclusive<u64>,
    ) -> Option<T> {
        let value = element.value(name)?;
        let number = value.trim().parse().ok().filter(|number| bounds.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        if number.is_none() {
            let what = format!("`{name}` of <{}> cannot be \"{value}\"", element.name);
            let help = match bounds.into_inner() {
                (first, u64::MAX) => format!("it must be a whole number of {first} or more"),
                (first, last) => format!("it must be a whole number from {first} to {last}"),
            };
            self.wrong(element.line_of(name), what, help);
        }
        number
    }

    fn whole_u32(&mut self, element: &Element, name: &str) -> Option<u32> {
        self.whole(element, name, 0..=u32::MAX.into())
    }

    fn seconds(&mut self, element: &Element, name: &str, count: f64, unit: f64) -> Duration {
        let seconds = count * unit;
        match Duration::try_from_secs_f64(seconds) {
            Ok(duration) if seconds <= SECONDS_MAX => duration,
            _ => {
                let what = format!("`{name}` of <{}> is too long", element.name);
                self.wrong(element.line_of(name), what, "50 days at most");
                Duration::ZERO
            }
        }
    }

    /// A time in milliseconds, or `infinity`, which is the longest one.
    fn milliseconds(&mut self, element: &Element, name: &str) -> Option<Duration> {
        if element.value(name) == Some("infinity") {
            return Some(Duration::from_secs_f64(SECONDS_MAX));
        }
        let count = self.number(element, name)?;
        Some(self.seconds(element, name, count, 0.001))
    }

    fn file(&mut self, name: &str, line: u32) -> Option<Vec<u8>> {
        match self.environment.file(name) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                let help = "names are relative to the scenario's directory";
                self.refuse(line, format!("cannot read the file {name}: {error}"), help)
            }
        }
    }
}

fn is_true(element: &Element, name: &str) -> bool {
    element.value(name) == Some("true")
}

/// The value, unless it is empty or `undefined`, Tsung's default.
fn given<'e>(element: &'e Element, name: &str) -> Option<&'e str> {
    element.value(name).filter(|value| !value.is_empty() && *value != "undefined")
}

fn unit_seconds(unit: Option<&str>) -> f64 {
    match unit {
        Some("hour") => 3600.0,
        Some("minute") => 60.0,
        Some("millisecond") => 0.001,
        _ => 1.0,
    }
}

/// Whether a name matches a pattern in which `*` is any text and `?` any character.
fn fits(pattern: &str) -> impl Fn(&str) -> bool {
    let pattern = regex::escape(pattern).replace(r"\*", ".*").replace(r"\?", ".");
    let regex = regex::Regex::new(&format!("(?s)^{pattern}$"));
    move |name| regex.as_ref().is_ok_and(|regex| regex.is_match(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_as_in_tsung() {
        for (pattern, name, wanted) in [
            ("foo", "foo", true),
            ("foo", "foobar", false),
            ("foo*", "foobar", true),
            ("*bar", "foobar", true),
            ("f*b*r", "foobar", true),
            ("f?o", "foo", true),
            ("f?o", "fo", false),
            ("*", "", true),
            ("", "a", false),
        ] {
            assert_eq!(fits(pattern)(name), wanted, "{pattern} {name}");
        }
    }
}
