//! Entities of a document: `&amp;`, `&#233;`, and those that its DOCTYPE declares.

use std::collections::HashMap;

use simurgh_load_scenario::Diagnostic;

use super::Environment;

/// How deep one may refer to another.
const DEPTH_MAX: u32 = 8;
/// What all references may bring in together, bytes.
const BYTES_MAX: usize = 8 << 20;

/// What a DOCTYPE says.
#[derive(Clone, Debug, Default)]
pub(super) struct Doctype {
    /// The name of the root.
    pub(super) root: String,
    /// The DTD's address.
    pub(super) system: Option<String>,
    entities: HashMap<String, Entity>,
}

#[derive(Clone, Debug)]
enum Entity {
    Text(String),
    File(String),
}

/// Replaces references, and stops where that would fill the memory.
pub(super) struct Expander<'a> {
    environment: &'a dyn Environment,
    doctype: Doctype,
    bytes: usize,
}

impl Doctype {
    /// Reads what stands between `<!DOCTYPE` and its `>`.
    pub(super) fn parse(text: &str, line: u32) -> Result<Self, Diagnostic> {
        let (head, subset) = match text.find('[') {
            Some(at) => {
                let inner = text.get(at + 1..).unwrap_or_default();
                (text.get(..at).unwrap_or_default(), inner.rsplit_once(']').map_or(inner, |i| i.0))
            }
            None => (text, ""),
        };
        let mut words = Words { rest: head };
        let root = words.next().map_or("", |word| word.text).to_owned();
        let quoted = words.filter(|word| word.quoted).last();
        let mut doctype =
            Self { root, system: quoted.map(|word| word.text.to_owned()), ..Self::default() };
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
            let end = end_of_declaration(inner);
            self.entity(inner.get(..end).unwrap_or_default(), line)?;
            rest = inner.get(end + 1..).unwrap_or_default().trim_start();
        }
        Ok(())
    }

    fn entity(&mut self, text: &str, line: u32) -> Result<(), Diagnostic> {
        let words: Vec<Word<'_>> = Words { rest: text }.collect();
        let entity = match words.as_slice() {
            [name, value] if value.quoted && !name.quoted => {
                Some((name.text, Entity::Text(value.text.to_owned())))
            }
            [name, kind, file] if kind.text == "SYSTEM" && file.quoted => {
                Some((name.text, Entity::File(file.text.to_owned())))
            }
            _ => None,
        };
        let Some((name, entity)) = entity else {
            return Err(Diagnostic::at(
                line,
                format!("the declaration `<!ENTITY{text}>` is not understood"),
            )
            .help("either <!ENTITY name \"text\"> or <!ENTITY name SYSTEM \"file\">"));
        };
        // The first declaration counts (XML 1.0, 4.2).
        self.entities.entry(name.to_owned()).or_insert(entity);
        Ok(())
    }
}

/// Where the `>` of a declaration stands that is in no quotes.
fn end_of_declaration(text: &str) -> usize {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c == '>' => return at,
            None => {}
        }
    }
    text.len()
}

struct Word<'a> {
    text: &'a str,
    quoted: bool,
}

/// Words and quoted words.
struct Words<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Words<'a> {
    type Item = Word<'a>;

    fn next(&mut self) -> Option<Word<'a>> {
        let rest = self.rest.trim_start();
        let quote = rest.chars().next()?;
        let (text, after) = if quote == '"' || quote == '\'' {
            let inner = rest.get(1..).unwrap_or_default();
            inner.split_once(quote).unwrap_or((inner, ""))
        } else {
            let end = rest.find(|c: char| c.is_whitespace() || c == '"' || c == '\'');
            rest.split_at(end.unwrap_or(rest.len()))
        };
        self.rest = after;
        Some(Word { text, quoted: quote == '"' || quote == '\'' })
    }
}

impl<'a> Expander<'a> {
    pub(super) fn new(environment: &'a dyn Environment) -> Self {
        Self { environment, doctype: Doctype::default(), bytes: 0 }
    }

    pub(super) fn set_doctype(&mut self, doctype: Doctype) {
        self.doctype = doctype;
    }

    /// What `&name;` stands for.
    pub(super) fn reference(
        &mut self,
        name: &str,
        line: u32,
        depth: u32,
    ) -> Result<Replacement, Diagnostic> {
        if let Some(number) = name.strip_prefix('#') {
            let c = char_of(number).filter(|&c| is_allowed(c)).ok_or_else(|| {
                Diagnostic::at(line, format!("`&{name};` is no character that XML allows"))
            })?;
            return Ok(Replacement::Text(c.to_string()));
        }
        let plain = match name {
            "lt" => "<",
            "gt" => ">",
            "amp" => "&",
            "quot" => "\"",
            "apos" => "'",
            _ => "",
        };
        if !plain.is_empty() {
            return Ok(Replacement::Text(plain.to_owned()));
        }
        let Some(entity) = self.doctype.entities.get(name) else {
            return Err(Diagnostic::at(line, format!("the entity `&{name};` is not declared"))
                .help("a plain `&` is written `&amp;`"));
        };
        if depth >= DEPTH_MAX {
            return Err(Diagnostic::at(
                line,
                format!("the entity `&{name};` refers too deep or to itself"),
            ));
        }
        let text = match entity {
            Entity::Text(text) => text.clone(),
            Entity::File(file) => {
                let bytes = self.environment.file(file).map_err(|error| {
                    Diagnostic::at(
                        line,
                        format!("the entity `&{name};`: cannot read {file}: {error}"),
                    )
                })?;
                String::from_utf8(bytes).map_err(|_| {
                    Diagnostic::at(line, format!("the entity `&{name};`: {file} is not UTF-8"))
                })?
            }
        };
        self.bytes = self.bytes.saturating_add(text.len());
        if self.bytes > BYTES_MAX {
            return Err(Diagnostic::at(line, "the entities are larger than 8 MiB together"));
        }
        Ok(Replacement::Markup(text))
    }

    /// An attribute's value as it is meant: references replaced, white space made blanks.
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
                    return Err(Diagnostic::at(line, "a `<` stands in the value of an attribute")
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

/// What a reference becomes.
pub(super) enum Replacement {
    /// Characters, whatever they are.
    Text(String),
    /// Text in which markup and further references count.
    Markup(String),
}

/// The message about a lone `&`.
pub(super) fn ampersand(line: u32) -> Diagnostic {
    Diagnostic::at(line, "not well-formed: a `&` begins no reference").help("write `&amp;`")
}

/// Whether XML 1.0 allows the character.
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
