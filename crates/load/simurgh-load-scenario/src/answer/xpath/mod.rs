//! XPath 1.0 on answers.
//!
//! Our own implementation, because the work of an evaluation must be bounded: no crate for XPath
//! 1.0 counts it, and a scenario's expressions are evaluated on pages of servers.

mod evaluate;
mod expression;
mod function;
mod parse;
mod value;

use std::sync::Arc;

use super::tree::Tree;
use evaluate::Evaluation;
use expression::Expression;

const LENGTH_MAX: usize = 1024;
/// Steps of one evaluation (nodes, and bytes of text divided by four): some 50 times a page of a
/// megabyte, and some tenths of a second. Beyond it nothing is found.
const STEPS_MAX: usize = 10_000_000;

#[derive(Clone, Debug)]
pub(super) struct XPath(Arc<Expression>);

impl XPath {
    pub(super) fn new(expression: &str) -> Result<Self, String> {
        let wrong = |what: String| format!("'{expression}' is no XPath that can be used: {what}");
        if expression.len() > LENGTH_MAX {
            return Err(wrong(format!("it is longer than {LENGTH_MAX} bytes")));
        }
        Ok(Self(Arc::new(parse::parse(expression).map_err(wrong)?)))
    }

    pub(super) fn find(&self, tree: &Tree) -> Vec<String> {
        self.find_within(tree, STEPS_MAX).unwrap_or_default()
    }

    /// As [`XPath::find`]; `None` if it takes more steps.
    fn find_within(&self, tree: &Tree, steps_max: usize) -> Option<Vec<String>> {
        Evaluation::new(tree, steps_max).texts(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::markup;

    const PAGE: &[u8] = b"<!doctype html><html><head><title>A &amp; B</title>
        <script>if (a < b) document.write('<p id=no>');</script></head><body class=x>
        <form action=/go><input type=hidden name=csrf value=\"t&quot;1\"><input name='n' value=42>
        <p>one<p>two<br>three</form><ul><li>a<li>b<li>c</ul>
        <img src=1.png><div><img src=\"2.png\"/></div>
        <table><tr><td>1<td>2<tr><td>3</table></body></html>";

    fn find(expression: &str, body: &[u8]) -> Vec<String> {
        XPath::new(expression).unwrap().find(&markup::parse(None, body))
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

    #[test]
    fn operators_and_functions_are_those_of_the_standard() {
        let page = b"<html lang=en-GB><p id=a>1</p><p id=b>2</p><p id=c>x</p><i a:b=k>3</i></html>";
        let table: [(&str, &[&str]); 31] = [
            ("1 + 2 * 3 - 4 div 2 mod 3", &["5"]),
            ("- -3 = 3 and -(1) < 0 or false()", &["true"]),
            ("1 < 2 < 3 = true()", &["true"]),
            ("2 > 1 > 1", &["false"]),
            ("//p > 1", &["true"]),
            ("1 > //p", &["false"]),
            ("//p = 2 and //p != 2", &["true"]),
            ("//p = //i", &["false"]),
            ("//p[1] != //i", &["true"]),
            ("//none != 1 or //none = ''", &["false"]),
            ("//none = false()", &["true"]),
            ("//p < //i", &["true"]),
            ("'a' = \"a\" and 'a' != 'b'", &["true"]),
            ("sum(//p[. != 'x'])", &["3"]),
            ("//p[last()] | //p[1] | //p[1]", &["1", "x"]),
            ("//p[position() > 1][1]", &["2"]),
            ("(//p)[2]/preceding::*[1]", &["1"]),
            ("//p[3]/preceding-sibling::p[1]", &["2"]),
            ("//p[1]/following-sibling::*[last()]", &["3"]),
            ("//p[1]/following::p", &["2", "x"]),
            ("//p[2]/@id/following::p", &["x"]),
            ("//p/@*", &["a", "b", "c"]),
            ("name(//i/@*)", &["a:b"]),
            ("concat(local-name(//i/@a:b), namespace-uri(//@a:*), name(/*))", &["bahtml"]),
            ("id('c a')", &["1", "x"]),
            ("id(//none)/..", &[]),
            ("count(//node()) = count(//*) + count(//text())", &["true"]),
            ("//p[ancestor-or-self::html][self::p]/child::text()[. > 1]", &["2"]),
            ("substring-after('a=b=c', '=')", &["b=c"]),
            ("translate(normalize-space(' a  b '), 'ab ', 'AB')", &["AB"]),
            ("round(2.5) * floor(-1.5) + ceiling(0.2) + string-length('\u{e9}e')", &["-3"]),
        ];
        for (expression, wanted) in table {
            assert_eq!(find(expression, page), wanted, "{expression}");
        }
        for wrong in ["count(1)", "1 | //a", "'a'[1]", "(1)/a", "a b", "a:", "@", "a::b", "//a[]"] {
            assert!(XPath::new(wrong).is_err(), "{wrong}");
        }
    }

    /// The cost of each node must not depend on the page's size or depth.
    #[test]
    fn plain_expressions_take_steps_in_proportion_to_the_page() {
        for piece in ["<b>", "<b><i></i></b>", "<b c=d e=f>"] {
            let page = piece.repeat(10_000);
            let tree = markup::parse(None, page.as_bytes());
            let nodes = tree.len() as usize;
            assert!(nodes > 10_000);
            for expression in ["//b", "//b/@c", "//i[1]", "//*[@e='f']/@c", "count(//b[i])"] {
                let found = XPath::new(expression).unwrap().find_within(&tree, 8 * nodes);
                assert!(found.is_some(), "{expression} on {piece}: more than 8 steps a node");
            }
        }
    }

    #[test]
    fn an_expression_that_takes_the_square_of_the_page_is_given_up() {
        let page = "<b>1</b>".repeat(10_000);
        let tree = markup::parse(None, page.as_bytes());
        for expression in [
            "//b[//b]",
            "//b[count(following::b) = 1]",
            "//b[. = //b[//b = 2]]",
            "//b/preceding-sibling::b",
            "count(//b[sum(//b) = 0])",
            "string-length(translate(concat(/, /, /, /), '1', '2')) = count(//b[contains(/, '2')])",
            "//b[id('x')]",
        ] {
            let xpath = XPath::new(expression).unwrap();
            let steps_max = 50 * tree.len() as usize;
            assert_eq!(xpath.find_within(&tree, steps_max), None, "{expression}");
        }
    }
}
