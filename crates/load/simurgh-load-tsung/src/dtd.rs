//! Checks a document against the DTD of Tsung 1.7.0, with our additions.
//!
//! `dtd.txt` has a line for each element.

use std::collections::HashMap;
use std::sync::LazyLock;

use simurgh_load_scenario::Diagnostic;

use super::xml::{Document, Element, Node};

const FILE: &str = "tsung-1.0.dtd";
/// Where it is installed.
const PLACES: &[&str] =
    &["", "/usr/share/tsung/", "/usr/local/share/tsung/", "/opt/tsung/share/tsung/"];

/// Element, content and attributes, one element on each line.
const RULES: &str = include_str!("dtd.txt");

/// Values accepted beyond the DTD: element, attribute, values. From 1.8.0, or our own.
const MORE_VALUES: &[(&str, &str, &[&str])] = &[
    ("server", "type", &["ws", "wss"]),
    ("websocket", "ack", &["local", "global", "match"]),
    ("http", "method", &["PURGE"]),
    ("setdynvars", "sourcetype", &["local_file"]),
];

/// Attributes that the DTD requires and that are optional here, with a warning.
const MAY_LACK: &[(&str, &str)] = &[("users", "unit"), ("arrivalphase", "unit")];

#[derive(Debug)]
struct Rule {
    content: &'static str,
    children: Vec<&'static str>,
    attributes: Vec<Declared>,
}

#[derive(Debug)]
struct Declared {
    name: &'static str,
    token: bool,
    values: Option<Vec<&'static str>>,
    required: bool,
}

static TABLE: LazyLock<HashMap<&'static str, Rule>> = LazyLock::new(|| {
    let rules = RULES.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let mut columns = line.split(';').map(str::trim);
        let mut column = || columns.next().unwrap_or_default();
        let (name, content, attributes) = (column(), column(), column());
        let children = content.split(|c: char| !is_name_char(c)).filter(|name| !name.is_empty());
        let children = if content.starts_with('(') { children.collect() } else { Vec::new() };
        (
            name,
            Rule {
                content,
                children,
                attributes: attributes.split_whitespace().map(declared).collect(),
            },
        )
    });
    rules.collect()
});

fn declared(word: &'static str) -> Declared {
    let end = word.find(['#', '(', '!', '=']).unwrap_or(word.len());
    let (name, rest) = word.split_at(end);
    let values = rest.strip_prefix('(').and_then(|list| list.split_once(')'));
    let values = values.map(|(list, _)| list.split('|').collect());
    let token = rest.starts_with('#');
    Declared { name, token, values, required: rest.ends_with('!') }
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':')
}

/// Checks a document against the DTD: with `strict` exactly, else with our additions, and without
/// order and number of elements, which the lowering checks.
pub(super) fn check(
    document: &mut Document,
    strict: bool,
    warnings: &mut Vec<Diagnostic>,
) -> Vec<Diagnostic> {
    let mut checker = Checker { strict, diagnostics: Vec::new() };
    checker.doctype(document, warnings);
    trim(&mut document.root);
    let root = &document.root;
    if root.name == "tsung" {
        checker.element(root);
    } else {
        let what = format!("the root element is <{}>", root.name);
        checker.wrong(root.line, what, "a scenario begins with <tsung>");
    }
    checker.diagnostics
}

/// Removes the blanks around values that are no free text (XML 1.0, 3.3.3), as Tsung's parser does.
fn trim(element: &mut Element) {
    let rule = TABLE.get(element.name.as_str());
    for attribute in &mut element.attributes {
        let declared =
            rule.and_then(|rule| rule.attributes.iter().find(|d| d.name == attribute.name));
        if declared.is_some_and(|declared| declared.token || declared.values.is_some()) {
            attribute.value = attribute.value.trim().to_owned();
        }
    }
    for node in &mut element.nodes {
        if let Node::Element(child) = node {
            trim(child);
        }
    }
}

struct Checker {
    strict: bool,
    diagnostics: Vec<Diagnostic>,
}

impl Checker {
    fn wrong(&mut self, line: u32, what: impl Into<String>, help: impl Into<String>) {
        self.diagnostics.push(Diagnostic::at(line, what).help(help));
    }

    fn doctype(&mut self, document: &Document, warnings: &mut Vec<Diagnostic>) {
        let line = document.root.line;
        let Some(doctype) = &document.doctype else {
            let known = PLACES.get(1).copied().unwrap_or_default();
            let help = format!("put <!DOCTYPE tsung SYSTEM \"{known}{FILE}\"> before it");
            let what = "there is no DOCTYPE, and Tsung would not read the file";
            return self.wrong_if_strict(warnings, Diagnostic::at(line, what).help(help));
        };
        let system = doctype.system.as_deref().unwrap_or_default();
        let (place, file) = system.split_at(system.rfind('/').map_or(0, |at| at + 1));
        if doctype.root != "tsung" || file != FILE {
            let what = format!("the DOCTYPE names `{}` and \"{system}\"", doctype.root);
            let help = format!("Tsung expects `tsung` and {FILE}");
            self.wrong_if_strict(warnings, Diagnostic::at(line, what).help(help));
        } else if !PLACES.contains(&place) && !self.strict {
            let what = format!("the DOCTYPE names \"{system}\", which Tsung installs nowhere");
            warnings.push(Diagnostic::at(line, what).help("it is not needed here"));
        }
    }

    fn wrong_if_strict(&mut self, warnings: &mut Vec<Diagnostic>, diagnostic: Diagnostic) {
        if self.strict { &mut self.diagnostics } else { warnings }.push(diagnostic);
    }

    fn element(&mut self, element: &Element) {
        let Some(rule) = TABLE.get(element.name.as_str()) else { return };
        self.attributes(element, rule);
        self.text(element, rule);
        let before = self.diagnostics.len();
        for child in element.children() {
            self.child(element, rule, child);
        }
        if self.strict && self.diagnostics.len() == before {
            self.model(element, rule);
        }
        for child in element.children() {
            self.element(child);
        }
    }

    fn attributes(&mut self, element: &Element, rule: &Rule) {
        let name = &element.name;
        for attribute in &element.attributes {
            let (key, value) = (attribute.name.as_str(), attribute.value.as_str());
            let Some(declared) = rule.attributes.iter().find(|declared| declared.name == key)
            else {
                let known: Vec<&str> = rule.attributes.iter().map(|known| known.name).collect();
                let what = format!("<{name}> has no attribute `{key}`");
                self.wrong(attribute.line, what, listed("it has", &known));
                continue;
            };
            if let Some(values) = &declared.values {
                let more = if self.strict { &[][..] } else { more_values(name, key) };
                if !values.contains(&value) && !more.contains(&value) {
                    let all: Vec<&str> = values.iter().chain(more).copied().collect();
                    let what = format!("`{key}` of <{name}> cannot be \"{value}\"");
                    self.wrong(attribute.line, what, listed("one of", &all));
                }
            } else if self.strict && declared.token && !is_token(value) {
                let what = format!("`{key}` of <{name}> cannot be \"{value}\"");
                self.wrong(
                    attribute.line,
                    what,
                    "it must be a word of letters, digits and . - _ :",
                );
            }
        }
        for declared in rule.attributes.iter().filter(|declared| declared.required) {
            let may_lack = !self.strict && MAY_LACK.contains(&(name.as_str(), declared.name));
            if element.attribute(declared.name).is_none() && !may_lack {
                let what = format!("<{name}> lacks its attribute `{}`", declared.name);
                let help = declared.values.as_deref().map(|values| listed("one of", values));
                self.wrong(element.line, what, help.unwrap_or_default());
            }
        }
    }

    fn text(&mut self, element: &Element, rule: &Rule) {
        if rule.content == "#PCDATA" {
            return;
        }
        if let Some((text, line)) = element.texts().next() {
            let blanks = text.len() - text.trim_start().len();
            let newlines = text.get(..blanks).unwrap_or_default().matches('\n').count();
            let line = line.saturating_add(u32::try_from(newlines).unwrap_or_default());
            let head: String = text.trim().chars().take(30).collect();
            let what = format!("<{}> can hold no text, and has `{head}`", element.name);
            self.wrong(line, what, "");
        }
    }

    fn child(&mut self, parent: &Element, rule: &Rule, child: &Element) {
        let name = child.name.as_str();
        let allowed =
            rule.children.contains(&name) || (!self.strict && more_children(parent, name));
        if allowed {
            return;
        }
        let what = match TABLE.contains_key(name) {
            true => format!("<{name}> is not allowed in <{}>", parent.name),
            false => format!("<{name}> is not an element of Tsung"),
        };
        let help = match rule.children.as_slice() {
            [] => format!("<{}> can hold no elements", parent.name),
            children => listed(&format!("in <{}> can stand", parent.name), children),
        };
        self.wrong(child.line, what, help);
    }

    fn model(&mut self, element: &Element, rule: &Rule) {
        let children: Vec<&str> = element.children().map(|child| child.name.as_str()).collect();
        if rule.content.starts_with('(') && taken(rule.content, &children) != Some(children.len()) {
            let found = if children.is_empty() { "nothing" } else { &children.join(" ") };
            let what = format!("the contents of <{}> are not in order: {found}", element.name);
            self.wrong(element.line, what, format!("wanted: {}", rule.content));
        }
    }
}

/// How many of the first children a content model matches; `None` if it requires others. DTDs must
/// be deterministic, so no backtracking is needed.
fn taken(model: &str, children: &[&str]) -> Option<usize> {
    let one = model.trim_end_matches(['?', '*', '+']);
    let list = one.strip_prefix('(').and_then(|list| list.strip_suffix(')'));
    let once = |children: &[&str]| {
        let Some(list) = list else { return (children.first() == Some(&one)).then_some(1) };
        let mut depth = 0_i32;
        let mut parts = list.split(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0 && matches!(c, ',' | '|')
        });
        // The DTD has no sequence within a choice.
        if list.contains(',') {
            parts.try_fold(0, |at, part| Some(at + taken(part, children.get(at..)?)?))
        } else {
            parts.filter_map(|part| taken(part, children)).max()
        }
    };
    let mut count = match once(children) {
        None if model.ends_with(['?', '*']) => return Some(0),
        count => count?,
    };
    while model.ends_with(['*', '+']) && count < children.len() {
        match children.get(count..).and_then(once) {
            None | Some(0) => break,
            Some(more) => count += more,
        }
    }
    Some(count)
}

fn more_values(element: &str, attribute: &str) -> &'static [&'static str] {
    let more = MORE_VALUES.iter().find(|more| more.0 == element && more.1 == attribute);
    more.map_or(&[], |more| more.2)
}

fn more_children(parent: &Element, name: &str) -> bool {
    match parent.name.as_str() {
        "websocket" => name == "http_header",
        // Each step of a session is accepted wherever one of them is.
        "session" | "transaction" | "for" | "foreach" | "repeat" | "if" => {
            TABLE.get("session").is_some_and(|session| session.children.contains(&name))
        }
        _ => false,
    }
}

fn is_token(value: &str) -> bool {
    !value.is_empty() && value.chars().all(is_name_char)
}

fn listed(head: &str, names: &[&str]) -> String {
    match names {
        [] => format!("{head} none"),
        names => format!("{head}: {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_models_require_children_in_order() {
        for (model, children, wanted) in [
            ("(a?,b,(c|d))", "b d", true),
            ("(a?,b,(c|d))", "a b", false),
            ("(a?,b,(c|d))", "b a c", false),
            ("(a*|b)", "a a", true),
            ("(a*|b)", "b", true),
            ("(a*|b)", "a b", false),
            ("(a|b)+", "", false),
            ("(a|b)+", "b a b", true),
            ("(a?|b?)", "", true),
            ("(a)*", "", true),
        ] {
            let children: Vec<&str> = children.split_whitespace().collect();
            let found = taken(model, &children) == Some(children.len());
            assert_eq!(found, wanted, "{model} {children:?}");
        }
    }

    #[test]
    fn dtd_table_has_every_element_and_attribute_of_tsung() {
        let rules = RULES.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(rules, 67, "elements of Tsung 1.7.0");
        assert_eq!(TABLE.len(), rules, "none twice");
        let attributes: usize = TABLE.values().map(|rule| rule.attributes.len()).sum();
        assert_eq!(attributes, 295, "attributes of Tsung 1.7.0");
        for (name, rule) in TABLE.iter() {
            for child in &rule.children {
                assert!(TABLE.contains_key(child), "{name} may hold {child}");
            }
            for declared in &rule.attributes {
                assert!(declared.name.chars().all(is_name_char), "{name} {}", declared.name);
                for value in declared.values.iter().flatten() {
                    assert!(is_token(value), "{name} {} {value}", declared.name);
                }
            }
        }
        let types = TABLE["session"].attributes.iter().find(|a| a.name == "type").unwrap();
        assert_eq!((types.values.as_ref().unwrap().len(), types.required), (13, true));
        assert_eq!(TABLE["until"].attributes.len(), 7);
    }
}
