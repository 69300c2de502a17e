//! Variables: their names, `<setdynvars>`, `<dyn_variable>`.

use std::collections::{HashMap, HashSet};

use memchr::memmem;
use simurgh_load_scenario::answer::{CompiledFind, compile_pattern};
use simurgh_load_scenario::toml::XPATH_HELP;
use simurgh_load_scenario::{
    Act, Capture, Find, Generated, Part, Row, Set, Step, Template, Value, VarId,
};

use super::templates::latin1;
use super::{Lower, given};
use crate::xml::Element;
use crate::{erlang, subst};

/// The variable that every user has.
pub(super) const USER_ID: &str = "tsung_userid";

#[derive(Default)]
pub(super) struct Vars {
    pub(super) names: Vec<String>,
    ids: HashMap<String, VarId>,
    set: HashSet<VarId>,
    /// Where each was used first.
    used: Vec<(VarId, u32)>,
    /// Counters that are variables in Tsung only: name and element.
    pub(super) counters: HashMap<String, &'static str>,
    /// The session reads [`USER_ID`] where it cannot be generated.
    pub(super) user_id_wanted: bool,
}

impl Lower<'_> {
    fn var(&mut self, name: &str, line: u32) -> VarId {
        if let Some(&id) = self.vars.ids.get(name) {
            return id;
        }
        let Ok(number) = u16::try_from(self.vars.names.len()) else {
            self.wrong(line, "there are more than 65,536 variables", "");
            return VarId(0);
        };
        self.vars.names.push(name.to_owned());
        self.vars.ids.insert(name.to_owned(), VarId(number));
        VarId(number)
    }

    pub(super) fn var_set(&mut self, name: &str, line: u32) -> VarId {
        if subst::variable(name).is_none_or(|(_, element)| element.is_some()) {
            let what = format!("a variable cannot be called `{name}`");
            self.wrong(line, what, "use letters, digits and _ - .");
        }
        let id = self.var(name, line);
        self.vars.set.insert(id);
        id
    }

    pub(super) fn var_used(&mut self, name: &str, line: u32) -> VarId {
        if name == USER_ID {
            self.vars.user_id_wanted = true;
        }
        let id = self.var(name, line);
        self.vars.used.push((id, line));
        id
    }

    /// `name`, or `name[1]` with its element counted from 0.
    pub(super) fn var_or_element(&mut self, text: &str, line: u32) -> Option<(VarId, Option<u32>)> {
        // The DTD requires a bare name; `_name` and `%%_name%%` are common mistakes.
        let Some((name, element)) = subst::variable(text) else {
            let what = format!("`{text}` is not the name of a variable");
            return self.refuse(line, what, "write `name`, or `name[1]` for the first of several");
        };
        let element = self.element(element, text, line)?;
        Some((self.var_used(name, line), element))
    }

    /// Tsung counts from 1.
    pub(super) fn element(
        &mut self,
        element: Option<u32>,
        text: &str,
        line: u32,
    ) -> Option<Option<u32>> {
        match element {
            Some(0) => self.refuse(line, format!("`{text}`: elements are counted from 1"), ""),
            element => Some(element.map(|element| element - 1)),
        }
    }

    /// Reports variables that are read and never set.
    pub(super) fn unset_variables(&mut self) {
        let used = std::mem::take(&mut self.vars.used);
        let mut warned = HashSet::new();
        for (id, line) in used {
            if self.vars.set.contains(&id) || !warned.insert(id) {
                continue;
            }
            let name = self.vars.names.get(usize::from(id.0)).cloned().unwrap_or_default();
            match self.vars.counters.get(&name) {
                Some(element) => {
                    let what =
                        format!("`{name}` is the counter of a <{element}>, which cannot be read");
                    self.wrong(line, what, "use a <for>, whose counter is a variable");
                }
                None => {
                    let what = format!("the variable `{name}` is never set");
                    self.warn(line, what, "`undefined` is sent in its place, as by Tsung");
                }
            }
        }
    }

    pub(super) fn setdynvars(&mut self, element: &Element) -> Vec<Step> {
        let line = element.line;
        let mut vars = Vec::new();
        for var in element.children() {
            let name = self.wanted(var, "name").to_owned();
            vars.push(self.var_set(&name, var.line_of("name")));
        }
        if vars.is_empty() {
            self.wrong(line, "<setdynvars> sets no variable", "put <var name=\"x\"/> into it");
            return Vec::new();
        }
        let source = element.value("sourcetype").unwrap_or_default();
        let step = |vars, value| Step { line, act: Act::Set(Set { vars, value }) };
        if matches!(source, "random_number" | "random_string" | "urandom_string") {
            let Some(value) = self.random(element, source) else { return Vec::new() };
            let set = |var| step(vec![var], Value::Template(Part::Value(value.clone()).into()));
            return vars.into_iter().map(set).collect();
        }
        if source == "eval" {
            return self.eval(element, vars);
        }
        let takes_several = matches!(source, "file" | "local_file" | "server");
        if !takes_several && vars.len() > 1 {
            let what = format!("<setdynvars> of {source} sets the first variable only");
            self.warn(line, what, "there is one value");
            vars.truncate(1);
        }
        let value = match source {
            "server" => Some(Value::Target),
            "file" | "local_file" => self.row(element, vars.len()),
            "value" => {
                let value = element.value("value").unwrap_or_default();
                Some(Value::Template(self.template(value, false, element.line_of("value"))))
            }
            "jsonpath" => self.json_of(element),
            _ => self.callback(element).map(Value::Template),
        };
        value.map(|value| step(vars, value)).into_iter().collect()
    }

    fn random(&mut self, element: &Element, source: &str) -> Option<Generated> {
        if source != "random_number" {
            let length = self.whole(element, "length", 0..=1 << 20);
            return Some(Generated::RandomString(length.unwrap_or(20)));
        }
        let bound = |lower: &mut Self, name: &str, default: i64| match element.value(name) {
            None => Some(default),
            Some(value) => {
                let number = value.trim().parse::<i64>().ok();
                if number.is_none() {
                    let what =
                        format!("`{name}` of <setdynvars> is not a whole number: \"{value}\"");
                    lower.wrong(element.line_of(name), what, "");
                }
                number
            }
        };
        let (first, last) = (bound(self, "start", 1)?, bound(self, "end", 10)?);
        if first > last {
            return self.refuse(element.line, format!("<setdynvars>: {first} is above {last}"), "");
        }
        Some(Generated::RandomNumber(first, last))
    }

    fn row(&mut self, element: &Element, vars: usize) -> Option<Value> {
        let id = given(element, "fileid").unwrap_or("default").to_owned();
        let Some(&file) = self.file_ids.get(&id) else {
            let what = format!("<setdynvars>: there is no file with the id `{id}`");
            let help = "put <option name=\"file_server\" id=\"..\" value=\"FILE\"/> into <options>";
            return self.refuse(element.line_of("fileid"), what, help);
        };
        let delimiter = element.value("delimiter").filter(|text| !text.is_empty()).unwrap_or(";");
        let local = element.value("sourcetype") == Some("local_file");
        let random = local || element.value("order") == Some("random");
        let rows = self.files.get(usize::from(file)).map_or(&[][..], |file| &file.rows);
        let fields =
            |row: &Row| memmem::find_iter(row.as_bytes(), delimiter.as_bytes()).count() + 1;
        if let Some(short) = rows.iter().position(|row| fields(row) < vars) {
            let what = format!("row {} of the file with the id `{id}` is short", short + 1);
            let help = format!("it has less than {vars} fields; the others are empty, as in Tsung");
            self.warn(element.line, what, help);
        }
        Some(Value::Row { file, delimiter: delimiter.to_owned(), random })
    }

    fn json_of(&mut self, element: &Element) -> Option<Value> {
        let from = self.wanted(element, "from").to_owned();
        let path = self.wanted(element, "jsonpath").to_owned();
        if from.is_empty() || path.is_empty() {
            return None;
        }
        let (from, index) = self.var_or_element(&from, element.line_of("from"))?;
        if index.is_some() {
            let what = "<setdynvars>: `from` is a variable as a whole";
            self.wrong(element.line_of("from"), what, "");
        }
        Some(Value::Json { from, path })
    }

    fn callback(&mut self, element: &Element) -> Option<Template> {
        let name = self.wanted(element, "callback").to_owned();
        let value = self.call(&name, element.line_of("callback"))?;
        Some(Part::Value(value).into())
    }

    /// A function of Tsung that can be called.
    pub(super) fn call(&mut self, name: &str, line: u32) -> Option<Generated> {
        let file = self.file_ids.get("default").copied();
        let value = subst::call(name, file);
        if value.is_none() {
            let (what, help) = if subst::CALLS.contains(&name) {
                let help = "put <option name=\"file_server\" value=\"FILE\"/> into <options>";
                (
                    format!("`{name}` reads the file without an `id`, and there is none"),
                    help.to_owned(),
                )
            } else {
                let known = subst::CALLS.join(", ");
                let help = format!(
                    "Erlang code cannot be run; known are: {known}, and ts_digest:md5hex \
                                    in <setdynvars sourcetype=\"eval\">"
                );
                (format!("the function `{name}` is not known"), help)
            };
            self.wrong(line, what, help);
        }
        value
    }

    /// The value of Erlang code: one for a single variable, else one for each.
    fn eval(&mut self, element: &Element, vars: Vec<VarId>) -> Vec<Step> {
        let code = self.wanted(element, "code").to_owned();
        let (line, at) = (element.line, element.line_of("code"));
        let Some(term) = erlang::evaluate(&code) else {
            let help = "Erlang code cannot be run; understood is `fun({Pid,DynVars}) -> \
                        {ok,V}=ts_dynvars:lookup(NAME,DynVars), EXPRESSION end.` with V, strings, \
                        numbers, atoms, lists, ++, binary_to_list, ts_digest:md5hex and \
                        rand:uniform(N)";
            self.wrong(at, "the code of <setdynvars> is not understood", help);
            return Vec::new();
        };
        let elements = term.elements();
        let list = match (&term, vars.as_slice()) {
            (erlang::Term::List(elements), [_]) => elements.len() > 1,
            _ => false,
        };
        let values = match (elements, vars.len()) {
            // As Tsung does with a list of one: `"x"` is 120.
            (Some(mut one), 1) if one.len() == 1 => vec![one.pop().unwrap_or_default()],
            (Some(all), several) if several > 1 || list => all,
            (None, several) if several > 1 => {
                let what = "the code of <setdynvars> has one value for several variables";
                self.wrong(at, what, "write a list: [\"a\", \"b\"]");
                return Vec::new();
            }
            _ => vec![term.text()],
        };
        let values: Vec<Template> =
            values.into_iter().filter_map(|value| self.template_of(value, at)).collect();
        if list && let [var] = vars.as_slice() {
            return self.list_of(*var, &values, line);
        }
        let values = values.into_iter().chain(std::iter::repeat(Template::default()));
        let set = |(var, value)| Set { vars: vec![var], value: Value::Template(value) };
        let sets = vars.into_iter().zip(values).map(set);
        sets.map(|set| Step { line, act: Act::Set(set) }).collect()
    }

    /// Sets a variable to a list, by way of JSON.
    fn list_of(&mut self, var: VarId, values: &[Template], line: u32) -> Vec<Step> {
        let text = |value| str::from_utf8(Template::constant(value)?).ok();
        let Some(texts) = values.iter().map(text).collect::<Option<Vec<&str>>>() else {
            self.wrong(line, "<setdynvars>: a list is made of literals in ASCII only", "");
            return Vec::new();
        };
        let json = Template::literal(&serde_json::json!(texts).to_string());
        let from = self.var_set(super::flow::TEXT_VAR, line);
        let set = |var, value| Step { line, act: Act::Set(Set { vars: vec![var], value }) };
        let path = "*".to_owned();
        vec![set(from, Value::Template(json)), set(var, Value::Json { from, path })]
    }

    fn template_of(&mut self, values: Vec<erlang::Value>, line: u32) -> Option<Template> {
        let mut template = Template::default();
        for value in values {
            template.push(match value {
                erlang::Value::Text(text) => {
                    Part::Literal(latin1(&text).unwrap_or_else(|| text.into_bytes()))
                }
                erlang::Value::Lookup(name) if name == USER_ID => Part::Value(Generated::UserId),
                erlang::Value::Lookup(name) => Part::Var(self.var_used(&name, line)),
                erlang::Value::Call(name) => Part::Value(self.call(&name, line)?),
                erlang::Value::Random(last) => Part::Value(Generated::RandomNumber(1, last)),
                erlang::Value::Md5(inner) => {
                    Part::Value(Generated::Md5(Box::new(self.template_of(inner, line)?)))
                }
            });
        }
        Some(template)
    }

    /// A regular expression whose first group is taken, which may be missing.
    fn pattern(&mut self, pattern: &str, line: u32) -> String {
        if compile_pattern(pattern).is_ok_and(|regex| regex.captures_len() == 1) {
            let what = format!("`{pattern}` has no group, so its variable is empty, as in Tsung");
            self.warn(line, what, "put the wanted part in parentheses: (..)");
            return format!("(?:{pattern})()");
        }
        pattern.to_owned()
    }

    pub(super) fn capture(&mut self, element: &Element) -> Option<Capture> {
        let name = self.wanted(element, "name").to_owned();
        let var = self.var_set(&name, element.line_of("name"));
        let ways = ["re", "regexp", "jsonpath", "xpath", "header", "pgsql_expr"];
        let given: Vec<&str> =
            ways.into_iter().filter(|way| element.attribute(way).is_some()).collect();
        let (way, value) = match given.as_slice() {
            [] => ("", name.as_str()),
            [way] => (*way, self.wanted(element, way)),
            several => {
                let what = format!("<dyn_variable> `{name}` has several of {}", several.join(", "));
                return self.refuse(element.line, what, "use exactly one of them");
            }
        };
        let line = element.line_of(way);
        let from = match way {
            "" => Find::FormField(name.clone()),
            "re" | "regexp" => Find::Regex(self.pattern(value, line)),
            "jsonpath" if value.contains("%%") => {
                let what =
                    "`jsonpath` of <dyn_variable> has a variable in it, which is not supported";
                return self.refuse(line, what, "");
            }
            "jsonpath" => Find::Json(value.to_owned()),
            "xpath" => {
                let what = "`xpath` of <dyn_variable> is not supported";
                return self.refuse(line, what, XPATH_HELP);
            }
            "header" => Find::Header(value.to_owned()),
            _ => {
                let what = "`pgsql_expr` of <dyn_variable> is not supported";
                return self.refuse(line, what, "there are no sessions of type ts_pgsql");
            }
        };
        if let Err(what) = CompiledFind::new(&from) {
            self.wrong(line, format!("<dyn_variable> `{name}`: {what}"), "");
        }
        let decode_html = element.value("decode") == Some("html_entities");
        Some(Capture { var, from, decode_html })
    }
}
