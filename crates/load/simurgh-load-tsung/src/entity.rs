//! Entities of a document: `&amp;`, `&#233;`, and those that its DOCTYPE declares.

use std::collections::HashMap;

use quick_xml::escape::resolve_predefined_entity;
use simurgh_load_scenario::Diagnostic;

use super::environment::Environment;
use super::lex::find_unquoted;

/// How deep entities may be nested.
const DEPTH_MAX: u32 = 8;
/// The maximum size of all expanded references, bytes.
const BYTES_MAX: usize = 8 << 20;

#[derive(Clone, Debug, Default)]
pub(super) struct Doctype {
    pub(super) root: String,
    pub(super) system: Option<String>,
    entities: HashMap<String, Entity>,
}

#[derive(Clone, Debug)]
enum Entity {
    Text(String),
    File(String),
}

/// Expands references, within a bound of memory.
pub(super) struct Expander<'a> {
    environment: &'a dyn Environment,
    doctype: Doctype,
    bytes: usize,
}

impl Doctype {
    /// Parses the text between `<!DOCTYPE` and its `>`.
    pub(super) fn parse(text: &str, line: u32) -> Result<Self, Diagnostic> {
        let (head, subset) = match text.find('[') {
            Some(at) => {
                let inner = text.get(at + 1..).unwrap_or_default();
                (text.get(..at).unwrap_or_default(), inner.rsplit_once(']').map_or(inner, |i| i.0))
            }
            None => (text, ""),
        };
        let mut words = words(head).into_iter();
        let root = words.next().unwrap_or_default().to_owned();
        let system = words.filter_map(unquoted).next_back().map(str::to_owned);
        let mut doctype = Self { root, system, ..Self::default() };
        doctype.declarations(subset, line)?;
        Ok(doctype)
    }

    fn declarations(&mut self, subset: &str, line: u32) -> Result<(), Diagnostic> {
        let mut rest = subset.trim_start();
        while !rest.is_empty() {
            if let Some(comment) = rest.strip_prefix("<!--") {
                rest = comment.split_once("-->").map_or("", |c| c.1).trim_start();
                continue;
            }
            let Some(inner) = rest.strip_prefix("<!ENTITY") else {
                let head: String = rest.chars().take(20).collect();
                let diagnostic = Diagnostic::at(line, format!("the DOCTYPE declares `{head}`"));
                return Err(diagnostic.help("only entities may be declared there"));
            };
            let end = find_unquoted(inner, |_, c| c == '>').unwrap_or(inner.len());
            self.entity(inner.get(..end).unwrap_or_default(), line)?;
            rest = inner.get(end + 1..).unwrap_or_default().trim_start();
        }
        Ok(())
    }

    fn entity(&mut self, text: &str, line: u32) -> Result<(), Diagnostic> {
        let entity = match words(text).as_slice() {
            [name, value] if unquoted(name).is_none() => {
                unquoted(value).map(|value| (*name, Entity::Text(value.to_owned())))
            }
            [name, "SYSTEM", file] => unquoted(file)
                .map(|file| (unquoted(name).unwrap_or(name), Entity::File(file.to_owned()))),
            _ => None,
        };
        let Some((name, entity)) = entity else {
            let what = format!("the declaration `<!ENTITY{text}>` is not understood");
            return Err(Diagnostic::at(line, what)
                .help("either <!ENTITY name \"text\"> or <!ENTITY name SYSTEM \"file\">"));
        };
        // The first declaration counts (XML 1.0, 4.2).
        self.entities.entry(name.to_owned()).or_insert(entity);
        Ok(())
    }
}

/// Words and quoted words.
fn words(mut text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    loop {
        text = text.trim_start();
        let end = match text.chars().next() {
            None => return words,
            Some(quote @ ('"' | '\'')) => text.match_indices(quote).nth(1).map(|end| end.0 + 1),
            Some(_) => text.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'')),
        };
        let (word, rest) = text.split_at(end.unwrap_or(text.len()));
        words.push(word);
        text = rest;
    }
}

/// The text within the quotes of a word; the last quote may be missing.
fn unquoted(word: &str) -> Option<&str> {
    let within = |quote| {
        let text = word.strip_prefix(quote)?;
        Some(text.strip_suffix(quote).unwrap_or(text))
    };
    within('"').or_else(|| within('\''))
}

impl<'a> Expander<'a> {
    pub(super) fn new(environment: &'a dyn Environment) -> Self {
        Self { environment, doctype: Doctype::default(), bytes: 0 }
    }

    pub(super) fn set_doctype(&mut self, doctype: Doctype) {
        self.doctype = doctype;
    }

    /// The replacement of `&name;`.
    pub(super) fn reference(
        &mut self,
        name: &str,
        line: u32,
        depth: u32,
    ) -> Result<Replacement, Diagnostic> {
        let wrong = |what: String| Diagnostic::at(line, what);
        if let Some(number) = name.strip_prefix('#') {
            let c = char_of(number).filter(|&c| is_allowed(c));
            let refused = || wrong(format!("`&{name};` is not a character that XML allows"));
            let c = c.ok_or_else(refused)?;
            return Ok(Replacement::Text(c.to_string()));
        }
        if let Some(text) = resolve_predefined_entity(name) {
            return Ok(Replacement::Text(text.to_owned()));
        }
        let Some(entity) = self.doctype.entities.get(name) else {
            let what = format!("the entity `&{name};` is not declared");
            return Err(wrong(what).help("a plain `&` is written `&amp;`"));
        };
        if depth >= DEPTH_MAX {
            return Err(wrong(format!("the entity `&{name};` refers too deep or to itself")));
        }
        let text = match entity {
            Entity::Text(text) => text.clone(),
            Entity::File(file) => {
                let bytes = self.environment.file(file).map_err(|error| {
                    wrong(format!("the entity `&{name};`: cannot read {file}: {error}"))
                })?;
                let no_text = |_| wrong(format!("the entity `&{name};`: {file} is not UTF-8"));
                String::from_utf8(bytes).map_err(no_text)?
            }
        };
        self.bytes = self.bytes.saturating_add(text.len());
        if self.bytes > BYTES_MAX {
            return Err(Diagnostic::at(line, "the entities are larger than 8 MiB together"));
        }
        Ok(Replacement::Markup(text))
    }

    /// An attribute's value: references replaced, white space normalised to blanks.
    pub(super) fn value(&mut self, raw: &str, line: u32, depth: u32) -> Result<String, Diagnostic> {
        let mut value = String::with_capacity(raw.len());
        let mut rest = raw;
        while let Some(at) = rest.find(['&', '\n', '\t', '\r', '<']) {
            let (before, from) = rest.split_at(at);
            value.push_str(before);
            let after = from.get(1..).unwrap_or_default();
            match from.as_bytes().first() {
                Some(b'&') => {
                    let Some((name, after)) = after.split_once(';') else {
                        return Err(ampersand(line));
                    };
                    if name.is_empty() || !name.chars().all(is_name_char) {
                        return Err(ampersand(line));
                    }
                    match self.reference(name, line, depth)? {
                        Replacement::Text(text) => value.push_str(&text),
                        Replacement::Markup(text) => {
                            value.push_str(&self.value(&text, line, depth + 1)?);
                        }
                    }
                    rest = after;
                }
                Some(b'<') => {
                    return Err(Diagnostic::at(line, "a `<` is in the value of an attribute")
                        .help("write `&lt;`, or close the quotes before it"));
                }
                _ => {
                    value.push(' ');
                    rest = after;
                }
            }
        }
        value.push_str(rest);
        Ok(value)
    }
}

pub(super) enum Replacement {
    /// Literal characters.
    Text(String),
    /// Text whose markup and references are interpreted.
    Markup(String),
}

/// The message about a single `&`.
pub(super) fn ampersand(line: u32) -> Diagnostic {
    Diagnostic::at(line, "not well-formed: a `&` begins no reference").help("write `&amp;`")
}

pub(super) fn is_allowed(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '#' | '_' | '-' | '.' | ':')
}

fn char_of(number: &str) -> Option<char> {
    let code = match number.strip_prefix('x') {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => number.parse(),
    };
    code.ok().and_then(char::from_u32)
}
