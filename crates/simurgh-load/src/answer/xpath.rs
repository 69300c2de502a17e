//! XPath 1.0 over answers.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use sxd_xpath::{Context, Factory, Value};

use super::markup::{Markup, prefixes};

/// Brackets within brackets: each takes stack while the expression is read.
const NESTING_MAX: usize = 32;
/// Bytes of an expression.
const LENGTH_MAX: usize = 1024;

thread_local! {
    /// Expressions as this thread compiled them: `sxd_xpath` binds them to one thread. Bounded by
    /// the scenario, which is where they all come from.
    static COMPILED: RefCell<HashMap<Arc<str>, Rc<sxd_xpath::XPath>>> = RefCell::default();
}

/// An expression that is known to be right.
#[derive(Clone, Debug)]
pub(super) struct XPath(Arc<str>);

impl XPath {
    pub(super) fn new(expression: &str) -> Result<Self, String> {
        let wrong = |what: String| format!("'{expression}' is no XPath that can be used: {what}");
        if expression.len() > LENGTH_MAX {
            return Err(wrong(format!("it is longer than {LENGTH_MAX} bytes")));
        }
        if nesting(expression) > NESTING_MAX {
            return Err(wrong(format!("it nests deeper than {NESTING_MAX}")));
        }
        let xpath = Self(expression.into());
        xpath.compiled().map_err(wrong)?;
        if let Some(unknown) = unknown_name(expression) {
            return Err(wrong(format!("'{unknown}' is not known")));
        }
        // Wrong arguments are only found by use.
        xpath.evaluate(&Markup::parse(None, b"<html></html>")).map_err(wrong)?;
        Ok(xpath)
    }

    /// The string values of all nodes in the document's order, or the value it comes to.
    pub(super) fn find(&self, markup: &Markup) -> Vec<String> {
        self.evaluate(markup).unwrap_or_default()
    }

    fn evaluate(&self, markup: &Markup) -> Result<Vec<String>, String> {
        let mut context = Context::new();
        for (prefix, namespace) in prefixes(&self.0) {
            context.set_namespace(&prefix, &namespace);
        }
        let document = markup.document();
        let value = self.compiled()?.evaluate(&context, document.root());
        Ok(match value.map_err(|error| error.to_string())? {
            Value::Nodeset(nodes) => {
                nodes.document_order().iter().map(|node| node.string_value()).collect()
            }
            Value::String(text) if text.is_empty() => Vec::new(),
            other => vec![other.string()],
        })
    }

    fn compiled(&self) -> Result<Rc<sxd_xpath::XPath>, String> {
        COMPILED.with_borrow_mut(|compiled| {
            if let Some(xpath) = compiled.get(&self.0) {
                return Ok(xpath.clone());
            }
            let built = Factory::new().build(&self.0).map_err(|error| error.to_string())?;
            let xpath = Rc::new(built.ok_or("it is empty")?);
            compiled.insert(self.0.clone(), xpath.clone());
            Ok(xpath)
        })
    }
}

/// How deep brackets and signs are nested, quotes not heeded: rather too much than too little.
fn nesting(expression: &str) -> usize {
    let (mut depth, mut deepest, mut minus) = (0_usize, 0, 0);
    for byte in expression.bytes() {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b'-' => minus += 1,
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest.max(minus)
}

/// What may stand before a bracket: functions of XPath 1.0, tests of nodes, operators.
const KNOWN: [&str; 35] = [
    "and",
    "boolean",
    "ceiling",
    "comment",
    "concat",
    "contains",
    "count",
    "div",
    "false",
    "floor",
    "id",
    "lang",
    "last",
    "local-name",
    "mod",
    "name",
    "namespace-uri",
    "node",
    "normalize-space",
    "not",
    "number",
    "or",
    "position",
    "processing-instruction",
    "round",
    "starts-with",
    "string",
    "string-length",
    "substring",
    "substring-after",
    "substring-before",
    "sum",
    "text",
    "translate",
    "true",
];

/// A variable, or a function that is none: both are an error only where they are used, which in
/// a predicate is when the first page comes.
fn unknown_name(expression: &str) -> Option<&str> {
    let mut quote = None;
    for (at, char) in expression.char_indices() {
        match (quote, char) {
            (None, '"' | '\'') => quote = Some(char),
            (Some(open), char) if open == char => quote = None,
            (None, '$') => return expression.get(at..),
            (None, '(') => {
                let front = expression.get(..at).unwrap_or_default().trim_end();
                let is_name =
                    |char: char| char.is_alphanumeric() || matches!(char, '_' | '-' | ':');
                let name = front.get(front.trim_end_matches(is_name).len()..).unwrap_or_default();
                // After an axis: `ancestor::node()`.
                let name = name.rsplit("::").next().unwrap_or(name);
                if !name.is_empty() && !KNOWN.contains(&name) {
                    return Some(name);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &[u8] = b"<!doctype html><html><head><title>A &amp; B</title>
        <script>if (a < b) document.write('<p id=no>');</script></head><body class=x>
        <form action=/go><input type=hidden name=csrf value=\"t&quot;1\"><input name='n' value=42>
        <p>one<p>two<br>three</form><ul><li>a<li>b<li>c</ul>
        <img src=1.png><div><img src=\"2.png\"/></div>
        <table><tr><td>1<td>2<tr><td>3</table></body></html>";

    fn find(expression: &str, body: &[u8]) -> Vec<String> {
        XPath::new(expression).unwrap().find(&Markup::parse(None, body))
    }

    #[test]
    fn html_is_read_as_browsers_do() {
        let table: [(&str, &[&str]); 18] = [
            ("//input[@name='csrf']/@value", &["t\"1"]),
            ("//input[@name='n']/@value", &["42"]),
            ("/html/head/title/text()", &["A & B"]),
            ("//title", &["A & B"]),
            ("//img/@src", &["1.png", "2.png"]),
            ("//img[1]/@src", &["1.png", "2.png"]),
            ("(//img)[2]/@src", &["2.png"]),
            ("//li", &["a", "b", "c"]),
            ("/html/body/ul/li[2]", &["b"]),
            ("//tr[1]/td", &["1", "2"]),
            ("//p[1]", &["one"]),
            ("count(//li)", &["3"]),
            ("boolean(//form)", &["true"]),
            ("string(//li[@none])", &[]),
            ("concat(//li[1], '-', //li[3])", &["a-c"]),
            ("//p[@id]", &[]),
            (
                "//li[not(contains(., '$')) and (position()=2 or true())]/ancestor::node()/@class",
                &["x"],
            ),
            ("//nothing", &[]),
        ];
        for (expression, wanted) in table {
            assert_eq!(find(expression, PAGE), wanted, "{expression}");
        }
    }

    #[test]
    fn xml_keeps_its_names_and_prefixes() {
        let xml: &[u8] = b"<?xml version='1.0'?><iq type='result' xmlns='jabber:client'>
            <query xmlns=\"jabber:iq:roster\"><Item jid='a@x' wr:type=''/>
            <Item jid='b@x&lt;' wr:type='t'>T<![CDATA[<&>]]>&amp;&#65;</Item></query>
            <wr:more/></iq>";
        let table: [(&str, &[&str]); 7] = [
            ("//Item/@jid", &["a@x", "b@x<"]),
            ("//item", &[]),
            ("/iq/query/Item[2]", &["T<&>&A"]),
            (
                "/iq/query[@xmlns='jabber:iq:roster']//Item[string-length(@wr:type)=0]/@jid",
                &["a@x"],
            ),
            ("count(//wr:more)", &["1"]),
            ("count(//more)", &["0"]),
            ("count(//other:more)", &["0"]),
        ];
        for (expression, wanted) in table {
            assert_eq!(find(expression, xml), wanted, "{expression}");
        }
    }

    #[test]
    fn whatever_comes_becomes_a_tree() {
        assert_eq!(find("//b", b"<b>1</i></b></b><b>2"), ["1", "2"]);
        assert_eq!(find("/html/b[2]", b"<b>1</b><b>2</b>"), ["2"]);
        assert_eq!(find("/a/b", b"<a><b>1"), ["1"]);
        assert_eq!(find("//b", b"<?xml version='1.0'?><a><b>1</c></b><b>2</b"), ["1", "2"]);
        assert_eq!(find("//b", b"plain text, \xff\xfe"), [""; 0]);
        assert_eq!(find("//b", b""), [""; 0]);
        let deep = b"<div>".repeat(100_000);
        assert_eq!(find("count(//div)", &deep), ["100000"]);
    }

    #[test]
    fn what_is_no_xpath_is_refused() {
        let deep = "(".repeat(500);
        for expression in
            ["", "//", "//a[", "foo(", "//a[foo()]", "//a[$v]", "count()", &deep, &"-".repeat(100)]
        {
            assert!(XPath::new(expression).is_err(), "{expression}");
        }
    }
}
