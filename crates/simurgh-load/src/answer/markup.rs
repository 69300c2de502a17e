//! HTML and XML as a tree that XPath can walk.
//!
//! Tolerant, as Tsung's parser is: whatever comes becomes a tree, and names with a prefix are in
//! the namespace of that very prefix, declared or not, so that `//wr:item` just works.

use std::collections::HashMap;

use html5gum::{DefaultEmitter, Token, Tokenizer};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use sxd_document::dom::{Document, Element};
use sxd_document::{Package, QName};

use super::decode_html;
use crate::http::header_values;

/// Deeper elements become siblings: walking the tree takes stack for each level.
const DEPTH_MAX: usize = 128;

/// Elements that have no content (HTML, "void elements").
const VOID: [&str; 14] = [
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source",
    "track", "wbr",
];

/// A body as a tree.
pub(super) struct Markup {
    package: Package,
}

impl Markup {
    /// Reads a body; as XML if the head or the body itself says so.
    pub(super) fn parse(head: Option<&[u8]>, body: &[u8]) -> Self {
        let package = Package::new();
        let tree = Tree { document: package.as_document(), open: Vec::new(), tops: Vec::new() };
        if is_xml(head, body) {
            read_xml(body, tree);
        } else {
            read_html(body, tree);
        }
        Self { package }
    }

    pub(super) fn document(&self) -> Document<'_> {
        self.package.as_document()
    }
}

fn is_xml(head: Option<&[u8]>, body: &[u8]) -> bool {
    let kind = head.and_then(|head| header_values(head, "content-type").next());
    let says = |word: &[u8]| kind.is_some_and(|kind| memchr::memmem::find(kind, word).is_some());
    body.trim_ascii_start().starts_with(b"<?xml") || (says(b"xml") && !says(b"html"))
}

/// The `value` of all elements of that `name`.
pub(super) fn form_values(html: &[u8], name: &str) -> Vec<String> {
    let mut values = Vec::new();
    for token in tokens(html) {
        let Token::StartTag(tag) = token else { continue };
        let is_it =
            tag.attributes.get(&b"name"[..]).is_some_and(|found| **found == name.as_bytes());
        if let Some(value) = tag.attributes.get(&b"value"[..]).filter(|_| is_it) {
            values.push(String::from_utf8_lossy(value).into_owned());
        }
    }
    values
}

fn tokens(html: &[u8]) -> impl Iterator<Item = Token> {
    let mut emitter = DefaultEmitter::default();
    // `<` in a script begins no element.
    emitter.naively_switch_states(true);
    Tokenizer::new_with_emitter(html, emitter).flatten()
}

fn read_html(body: &[u8], mut tree: Tree<'_>) {
    for token in tokens(body) {
        match token {
            Token::StartTag(tag) => {
                let name = String::from_utf8_lossy(&tag.name);
                tree.imply_ends(&name);
                let attributes = tag.attributes.iter().map(|(name, value)| {
                    (String::from_utf8_lossy(name), String::from_utf8_lossy(value))
                });
                tree.open(&name, attributes);
                if tag.self_closing || VOID.contains(&&*name) {
                    tree.close(&name);
                }
            }
            Token::EndTag(tag) => tree.close(&String::from_utf8_lossy(&tag.name)),
            Token::String(text) => tree.text(&String::from_utf8_lossy(&text)),
            Token::Comment(_) | Token::Doctype(_) | Token::Error(_) => {}
        }
    }
    tree.finish();
}

/// Reads as far as it is XML.
fn read_xml(body: &[u8], mut tree: Tree<'_>) {
    let mut reader = Reader::from_reader(body);
    let config = reader.config_mut();
    (config.check_end_names, config.allow_unmatched_ends) = (false, true);
    loop {
        match reader.read_event() {
            Ok(Event::Start(tag)) => open_xml(&tag, &mut tree),
            Ok(Event::Empty(tag)) => {
                open_xml(&tag, &mut tree);
                tree.close(&String::from_utf8_lossy(tag.name().as_ref()));
            }
            Ok(Event::End(tag)) => tree.close(&String::from_utf8_lossy(tag.name().as_ref())),
            Ok(Event::Text(text)) => tree.text(&String::from_utf8_lossy(&text)),
            Ok(Event::CData(text)) => tree.text(&String::from_utf8_lossy(&text)),
            Ok(Event::GeneralRef(name)) => {
                tree.text(&decode_html(&format!("&{};", String::from_utf8_lossy(&name))));
            }
            Ok(Event::Eof) | Err(_) => break,
            Ok(_) => {}
        }
    }
    tree.finish();
}

fn open_xml(tag: &BytesStart<'_>, tree: &mut Tree<'_>) {
    let mut attributes = tag.attributes();
    let attributes = attributes.with_checks(false).flatten().map(|attribute| {
        let value = String::from_utf8_lossy(&attribute.value).into_owned();
        let name = String::from_utf8_lossy(attribute.key.as_ref()).into_owned();
        (name, decode_html(&value).into_owned())
    });
    tree.open(&String::from_utf8_lossy(tag.name().as_ref()), attributes);
}

/// A tree that is being built.
struct Tree<'d> {
    document: Document<'d>,
    /// From the outermost to the innermost; what is too deep has no element of its own.
    open: Vec<(String, Element<'d>)>,
    /// Elements that are in no other.
    tops: Vec<Element<'d>>,
}

impl<'d> Tree<'d> {
    fn open<N: AsRef<str>>(&mut self, name: &str, attributes: impl Iterator<Item = (N, N)>) {
        let element = self.document.create_element(qualified(name));
        for (name, value) in attributes {
            element.set_attribute_value(qualified(name.as_ref()), value.as_ref());
        }
        match self.open.last() {
            Some((_, parent)) => parent.append_child(element),
            None => self.tops.push(element),
        }
        if self.open.len() < DEPTH_MAX {
            self.open.push((name.to_owned(), element));
        }
    }

    /// Ends the innermost element of that name, and what is open in it.
    fn close(&mut self, name: &str) {
        if let Some(at) = self.open.iter().rposition(|(open, _)| open == name) {
            self.open.truncate(at);
        }
    }

    fn text(&mut self, text: &str) {
        // Outside of all elements there are only blanks, or what nobody can ask for.
        if let Some((_, parent)) = self.open.last().filter(|_| !text.is_empty()) {
            parent.append_child(self.document.create_text(text));
        }
    }

    /// Ends what the start of `name` ends in HTML, where end tags may be left out.
    fn imply_ends(&mut self, name: &str) {
        let (ended, within): (&[&str], &[&str]) = match name {
            "li" => (&["li"], &["ul", "ol", "menu"]),
            "option" | "optgroup" => (&["option"], &["select", "datalist"]),
            "dt" | "dd" => (&["dt", "dd"], &["dl"]),
            "td" | "th" => (&["td", "th"], &["tr", "table"]),
            "tr" => (&["tr"], &["table"]),
            "tbody" | "thead" | "tfoot" => (&["tbody", "thead", "tfoot"], &["table"]),
            "p" | "div" | "ul" | "ol" | "dl" | "table" | "form" | "section" | "article" | "pre"
            | "h1" | "h2" | "h3" | "h4" | "h5" | "h6" | "hr" | "blockquote" => (&["p"], &[]),
            _ => return,
        };
        for (at, (open, _)) in self.open.iter().enumerate().rev() {
            if ended.contains(&open.as_str()) {
                self.open.truncate(at);
                return;
            }
            // A paragraph ends only where nothing else is open in it: else it is no plain text.
            if within.is_empty() || within.contains(&open.as_str()) {
                return;
            }
        }
    }

    /// Puts the outermost elements into the document, which can hold only one.
    fn finish(self) {
        let root = self.document.root();
        match self.tops.as_slice() {
            [] => {}
            [top] => root.append_child(*top),
            tops => {
                let html = self.document.create_element("html");
                tops.iter().for_each(|top| html.append_child(*top));
                root.append_child(html);
            }
        }
    }
}

/// A name with its prefix as its namespace.
fn qualified(name: &str) -> QName<'_> {
    match name.split_once(':') {
        Some((prefix, local)) if !prefix.is_empty() && !local.is_empty() => {
            QName::with_namespace_uri(Some(prefix), local)
        }
        _ => QName::new(name),
    }
}

/// All prefixes that an expression might use, as the namespaces they stand for.
pub(super) fn prefixes(expression: &str) -> HashMap<String, String> {
    let mut found = HashMap::new();
    for (at, _) in expression.match_indices(':') {
        let front = expression.get(..at).unwrap_or_default();
        let is_name = |char: char| char.is_alphanumeric() || matches!(char, '_' | '-' | '.');
        let start = front.trim_end_matches(is_name).len();
        let prefix = front.get(start..).unwrap_or_default();
        if !prefix.is_empty() {
            found.insert(prefix.to_owned(), prefix.to_owned());
        }
    }
    found
}
