//! Parses XML to a tree with line numbers.

use std::collections::HashSet;

use quick_xml::errors::{Error, IllFormedError};
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;
use simurgh_load_scenario::Diagnostic;

use super::entity::{Doctype, Expander, Replacement, ampersand, is_allowed};
use super::environment::Environment;

/// Maximum depth of elements; Tsung's own files need six.
const DEPTH_MAX: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct Document {
    pub(super) doctype: Option<Doctype>,
    pub(super) root: Element,
}

#[derive(Clone, Debug)]
pub(super) struct Element {
    pub(super) name: String,
    pub(super) line: u32,
    pub(super) attributes: Vec<Attribute>,
    pub(super) nodes: Vec<Node>,
}

#[derive(Clone, Debug)]
pub(super) struct Attribute {
    pub(super) name: String,
    pub(super) line: u32,
    pub(super) value: String,
}

#[derive(Clone, Debug)]
pub(super) enum Node {
    Element(Element),
    /// Text and CDATA up to the next other node, with the line of its beginning.
    Text(String, u32),
    /// Comments and instructions separate texts, as in Tsung.
    Break,
}

impl Element {
    pub(super) fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|attribute| attribute.name == name)
    }

    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.attribute(name).map(|attribute| attribute.value.as_str())
    }

    /// The line of the attribute, or that of the element if it is missing.
    pub(super) fn line_of(&self, name: &str) -> u32 {
        self.attribute(name).map_or(self.line, |attribute| attribute.line)
    }

    pub(super) fn children(&self) -> impl Iterator<Item = &Element> {
        self.nodes.iter().filter_map(|node| match node {
            Node::Element(element) => Some(element),
            _ => None,
        })
    }

    /// The contents of all children with this name, and the line of the last, or of this element.
    pub(super) fn within(&self, name: &str) -> (u32, Vec<&Element>) {
        let groups = || self.children().filter(|child| child.name == name);
        let line = groups().last().map_or(self.line, |group| group.line);
        (line, groups().flat_map(Element::children).collect())
    }

    pub(super) fn children_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.children().filter(move |child| child.name == name)
    }

    /// Texts that are not blank, each with its line.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&str, u32)> {
        self.nodes.iter().filter_map(|node| match node {
            Node::Text(text, line) if !text.trim().is_empty() => Some((text.as_str(), *line)),
            _ => None,
        })
    }
}

pub(super) fn parse(text: &str, environment: &dyn Environment) -> Result<Document> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some((at, c)) = text.char_indices().find(|&(_, c)| !is_allowed(c)) {
        let line = 1 + lines(text.get(..at).unwrap_or_default());
        let what =
            format!("not well-formed: XML does not allow the character U+{:04X}", u32::from(c));
        return Err(Diagnostic::at(line, what));
    }
    // XML 1.0, 2.11: line ends are one character, so a file from Windows sends the same bytes.
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut parser = Parser { expander: Expander::new(environment), doctype: None, opened: 0 };
    let nodes = parser.nodes(&text, None, 0)?;
    let mut root = None;
    for node in nodes {
        match node {
            Node::Break => {}
            Node::Text(text, line) => {
                if !text.trim().is_empty() {
                    return Err(Diagnostic::at(
                        line,
                        "not well-formed: text outside of the root element",
                    ));
                }
            }
            Node::Element(element) if root.is_none() => root = Some(element),
            Node::Element(element) => {
                let what = format!("not well-formed: <{}> after the root element", element.name);
                return Err(Diagnostic::at(element.line, what));
            }
        }
    }
    match root {
        Some(root) => Ok(Document { doctype: parser.doctype, root }),
        None => {
            Err(Diagnostic::at(0, "it contains no element").help("a scenario begins with <tsung>"))
        }
    }
}

fn leading_blanks(text: &str) -> &str {
    text.get(..text.len() - text.trim_start().len()).unwrap_or_default()
}

fn lines(text: &str) -> u32 {
    u32::try_from(memchr::memchr_iter(b'\n', text.as_bytes()).count()).unwrap_or(u32::MAX - 1)
}

/// Counts lines as the parser advances.
struct Place<'a> {
    text: &'a str,
    at: usize,
    line: u32,
    fixed: Option<u32>,
}

impl Place<'_> {
    fn line_at(&mut self, at: u64) -> u32 {
        if let Some(line) = self.fixed {
            return line;
        }
        let at = usize::try_from(at).unwrap_or(usize::MAX).min(self.text.len());
        match self.text.get(self.at..at) {
            Some(between) => {
                self.line = self.line.saturating_add(lines(between));
                self.at = at;
            }
            None => self.line = 1 + lines(self.text.get(..at).unwrap_or_default()),
        }
        self.line
    }
}

struct Parser<'a> {
    expander: Expander<'a>,
    doctype: Option<Doctype>,
    opened: usize,
}

type Result<T> = std::result::Result<T, Diagnostic>;

/// The state of one text: of the file, or of an entity.
struct Context {
    line: u32,
    /// The line of the reference, in an entity.
    fixed: Option<u32>,
    /// How many entities are around it.
    depth: u32,
    tree: Tree,
}

/// Open elements, and complete nodes of the outermost level.
#[derive(Default)]
struct Tree {
    open: Vec<Element>,
    done: Vec<Node>,
}

impl Tree {
    fn push(&mut self, node: Node) {
        let Some(element) = self.open.last_mut() else {
            // Not merged: text outside of the root is a mistake, reported at its own line.
            return self.done.push(node);
        };
        let nodes = &mut element.nodes;
        match (nodes.last_mut(), node) {
            (Some(Node::Text(before, _)), Node::Text(text, _)) => before.push_str(&text),
            (_, node) => nodes.push(node),
        }
    }

    fn close(&mut self, name: &str, line: u32) -> Result<()> {
        match self.open.pop() {
            Some(element) if element.name == name => {
                self.push(Node::Element(element));
                Ok(())
            }
            Some(element) => {
                let what = format!(
                    "not well-formed: </{name}> found where <{}> of line {} should be closed",
                    element.name, element.line
                );
                Err(Diagnostic::at(line, what))
            }
            None => Err(Diagnostic::at(line, format!("not well-formed: </{name}> closes nothing"))),
        }
    }
}

impl Parser<'_> {
    /// The nodes of a text; those of an entity all have the line of the reference.
    fn nodes(&mut self, text: &str, fixed: Option<u32>, depth: u32) -> Result<Vec<Node>> {
        let mut reader = Reader::from_str(text);
        let config = reader.config_mut();
        config.check_end_names = false;
        config.allow_unmatched_ends = true;
        let mut place = Place { text, at: 0, line: 1, fixed };
        let mut context = Context { line: 1, fixed, depth, tree: Tree::default() };
        loop {
            let start = reader.buffer_position();
            context.line = place.line_at(start);
            let event = match reader.read_event() {
                Ok(Event::Eof) => break,
                Ok(Event::Decl(_)) if start > 0 => {
                    let what = "not well-formed: `<?xml` must be first";
                    let diagnostic = Diagnostic::at(context.line, what);
                    return Err(diagnostic.help("it must be the very first"));
                }
                Ok(event) => event,
                Err(error) => {
                    let line = place.line_at(reader.error_position());
                    return Err(match error {
                        Error::IllFormed(IllFormedError::UnclosedReference) => ampersand(line),
                        error => Diagnostic::at(line, format!("not well-formed: {error}")),
                    });
                }
            };
            self.event(event, &mut context)?;
        }
        match context.tree.open.pop() {
            Some(element) => {
                let what = format!("not well-formed: <{}> is never closed", element.name);
                Err(Diagnostic::at(element.line, what))
            }
            None => Ok(context.tree.done),
        }
    }

    fn event(&mut self, event: Event<'_>, context: &mut Context) -> Result<()> {
        let (line, text_of) =
            (context.line, |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned());
        match event {
            Event::Start(start) => {
                let element = self.element(&start, context)?;
                if self.opened + context.tree.open.len() >= DEPTH_MAX {
                    let what = format!("elements nest deeper than {DEPTH_MAX}");
                    return Err(Diagnostic::at(line, what));
                }
                context.tree.open.push(element);
            }
            Event::Empty(start) => {
                let element = self.element(&start, context)?;
                context.tree.push(Node::Element(element));
            }
            Event::End(end) => {
                context.tree.close(text_of(end.name().as_ref()).trim_end(), line)?;
            }
            Event::Text(text) => {
                let text = text_of(&text);
                let is_outside = context.tree.open.is_empty() && context.fixed.is_none();
                let blanks = if is_outside { lines(leading_blanks(&text)) } else { 0 };
                context.tree.push(Node::Text(text, line + blanks));
            }
            Event::CData(text) => context.tree.push(Node::Text(text_of(&text), line)),
            Event::GeneralRef(name) => self.reference(&text_of(&name), context)?,
            Event::DocType(text) => {
                let doctype = Doctype::parse(&text_of(&text), line)?;
                self.expander.set_doctype(doctype.clone());
                self.doctype = Some(doctype);
            }
            Event::Comment(_) | Event::PI(_) => context.tree.push(Node::Break),
            Event::Decl(_) | Event::Eof => {}
        }
        Ok(())
    }

    fn reference(&mut self, name: &str, context: &mut Context) -> Result<()> {
        let Context { line, depth, ref mut tree, .. } = *context;
        match self.expander.reference(name, line, depth)? {
            Replacement::Text(text) => tree.push(Node::Text(text, line)),
            Replacement::Markup(text) => {
                let before = self.opened;
                self.opened += tree.open.len();
                let nodes = self.nodes(&text, Some(line), depth + 1);
                self.opened = before;
                for node in nodes.map_err(|diagnostic| Diagnostic {
                    what: format!("in the entity `&{name};`: {}", diagnostic.what),
                    ..diagnostic
                })? {
                    tree.push(node);
                }
            }
        }
        Ok(())
    }

    fn element(&mut self, start: &BytesStart<'_>, context: &Context) -> Result<Element> {
        let line = context.line;
        let name = String::from_utf8_lossy(start.name().as_ref()).into_owned();
        let whole: &[u8] = start;
        let mut attributes = Vec::new();
        let mut seen = HashSet::new();
        for found in start.attributes().with_checks(false) {
            let found = found.map_err(|error| {
                Diagnostic::at(line, format!("not well-formed: an attribute of <{name}>: {error}"))
            })?;
            let key = found.key.as_ref();
            let offset = (key.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
            let before = whole.get(..offset).unwrap_or_default();
            let newlines = memchr::memchr_iter(b'\n', before).count();
            let own = u32::try_from(newlines).unwrap_or_default();
            let line = context.fixed.unwrap_or_else(|| line.saturating_add(own));
            let key = String::from_utf8_lossy(key).into_owned();
            if !seen.insert(key.clone()) {
                let what = format!("not well-formed: <{name}> has the attribute `{key}` twice");
                return Err(Diagnostic::at(line, what));
            }
            let raw = String::from_utf8_lossy(&found.value).into_owned();
            let value = self.expander.value(&raw, line, context.depth)?;
            attributes.push(Attribute { name: key, line, value });
        }
        Ok(Element { name, line, attributes, nodes: Vec::new() })
    }
}
