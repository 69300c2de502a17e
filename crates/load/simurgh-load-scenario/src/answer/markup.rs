//! HTML and XML as a tree for XPath.
//!
//! Tolerant, as Tsung's parser is: any text becomes a tree, and a prefix is its own namespace,
//! declared or not, so that `//wr:item` works.

use html5gum::{DefaultEmitter, Token, Tokenizer};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use simurgh_load_client::http::header_values;

use super::decode_html;
use super::tree::{Builder, Tree};

/// Deeper elements become siblings: an end tag searches all open elements for its start.
const DEPTH_MAX: usize = 128;
/// Elements without content (HTML, "void elements").
const VOID: [&str; 14] = [
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source",
    "track", "wbr",
];

/// Parses a body; as XML if the head or the body declares it.
pub(super) fn parse(head: Option<&[u8]>, body: &[u8]) -> Tree {
    let mut tree = Builder::new(DEPTH_MAX);
    if is_xml(head, body) {
        read_xml(body, &mut tree);
    } else {
        read_html(body, &mut tree);
    }
    tree.finish()
}

fn is_xml(head: Option<&[u8]>, body: &[u8]) -> bool {
    let kind = head.and_then(|head| header_values(head, "content-type").next());
    let has = |word: &[u8]| kind.is_some_and(|kind| memchr::memmem::find(kind, word).is_some());
    body.trim_ascii_start().starts_with(b"<?xml") || (has(b"xml") && !has(b"html"))
}

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
    // `<` in a script does not begin an element.
    emitter.naively_switch_states(true);
    Tokenizer::new_with_emitter(html, emitter).flatten()
}

fn read_html(body: &[u8], tree: &mut Builder) {
    for token in tokens(body) {
        match token {
            Token::StartTag(tag) => {
                let name = String::from_utf8_lossy(&tag.name);
                imply_ends(&name, tree);
                tree.open(&name);
                for (name, value) in &tag.attributes {
                    let name = String::from_utf8_lossy(name);
                    tree.attribute(&name, &String::from_utf8_lossy(value));
                }
                if tag.self_closing || VOID.contains(&&*name) {
                    tree.close(&name);
                }
            }
            Token::EndTag(tag) => tree.close(&String::from_utf8_lossy(&tag.name)),
            Token::String(text) => tree.text(&String::from_utf8_lossy(&text)),
            Token::Comment(_) | Token::Doctype(_) | Token::Error(_) => {}
        }
    }
}

/// Parses up to the first text that is not XML.
fn read_xml(body: &[u8], tree: &mut Builder) {
    let mut reader = Reader::from_reader(body);
    let config = reader.config_mut();
    (config.check_end_names, config.allow_unmatched_ends) = (false, true);
    loop {
        match reader.read_event() {
            Ok(Event::Start(tag)) => open_xml(&tag, tree),
            Ok(Event::Empty(tag)) => {
                open_xml(&tag, tree);
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
}

fn open_xml(tag: &BytesStart<'_>, tree: &mut Builder) {
    tree.open(&String::from_utf8_lossy(tag.name().as_ref()));
    let mut attributes = tag.attributes();
    for attribute in attributes.with_checks(false).flatten() {
        let value = String::from_utf8_lossy(&attribute.value);
        let name = String::from_utf8_lossy(attribute.key.as_ref());
        tree.attribute(&name, &decode_html(&value));
    }
}

/// Closes the elements that the start of `name` closes in HTML, where end tags are optional.
fn imply_ends(name: &str, tree: &mut Builder) {
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
    // A paragraph is only closed if no other element is open in it.
    let is_border = |open: &str| within.is_empty() || within.contains(&open);
    tree.close_within(|open| ended.contains(&open), is_border);
}
