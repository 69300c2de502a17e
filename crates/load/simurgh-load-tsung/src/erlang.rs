//! The few forms of Erlang code in scenarios: literals, and concatenated values of variables.
//!
//! `fun({Pid,DynVars}) -> {ok,V} = ts_dynvars:lookup(name,DynVars), EXPRESSION end.` where the
//! expression consists of `V`, literals, `++`, and the functions of [`Parser::call`]. It becomes a
//! text with substitutions, or a list of them; anything else is refused.

use std::collections::HashMap;

/// A part of the code's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    Lookup(String),
    Call(String),
    /// A random number from 1 to this.
    Random(i64),
    Md5(Vec<Value>),
}

/// The value of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Term {
    /// An atom, a number or a binary.
    One(Vec<Value>),
    /// A number that is also a character, if it is in a list.
    Byte(u8),
    /// A string.
    Text(Vec<Value>),
    /// Any other list.
    List(Vec<Vec<Value>>),
}

impl Term {
    /// As Tsung puts it into a text.
    pub(super) fn text(self) -> Vec<Value> {
        match self {
            Self::One(values) | Self::Text(values) => values,
            Self::Byte(byte) => vec![Value::Text(byte.to_string())],
            Self::List(elements) => elements.concat(),
        }
    }

    /// As a part of a string.
    fn part(self) -> Vec<Value> {
        match self {
            Self::Byte(byte) => vec![Value::Text(char::from(byte).into())],
            other => other.text(),
        }
    }

    /// The values for several variables: the elements of a list, or the characters of a string.
    pub(super) fn elements(&self) -> Option<Vec<Vec<Value>>> {
        match self {
            Self::List(elements) => Some(elements.clone()),
            Self::Text(values) => {
                let text = |value: &Value| match value {
                    Value::Text(text) => Some(text.clone()),
                    _ => None,
                };
                let text: String = values.iter().map(text).collect::<Option<_>>()?;
                let number = |c: char| vec![Value::Text(u32::from(c).to_string())];
                Some(text.chars().map(number).collect())
            }
            Self::One(_) | Self::Byte(_) => None,
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::One(values) | Self::Text(values) => 1 + size(values),
            Self::Byte(_) => 1,
            Self::List(elements) => elements.iter().map(|element| 1 + size(element)).sum(),
        }
    }
}

const DEPTH_MAX: u32 = 16;
/// Maximum of parts that the code's variables are replaced by: `B=A++A, C=B++B` doubles.
const PIECES_MAX: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// Begins with a small letter, or is in single quotes.
    Atom(String),
    /// Begins with a capital letter or `_`.
    Variable(String),
    Text(String),
    Number(i64),
    Float(String),
    /// `->`, `++`, `<<`, `>>` or one character.
    Sign(&'static str),
}

/// The value of the code; `None` if it has another form.
pub(super) fn evaluate(code: &str) -> Option<Term> {
    let (tokens, bound) = (tokens(code)?, HashMap::new());
    let mut parser = Parser { tokens, at: 0, bound, depth: 0, left: PIECES_MAX };
    let value = parser.function()?;
    (parser.at == parser.tokens.len()).then_some(value)
}

const SIGNS: &[&str] =
    &["->", "++", "<<", ">>", "(", ")", "{", "}", "[", "]", ",", "=", ":", ".", "|", ";", "-"];

fn tokens(code: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, after) = if first == '"' || first == '\'' {
            let (text, after) = quoted(rest.get(1..)?, first)?;
            (if first == '"' { Token::Text(text) } else { Token::Atom(text) }, after)
        } else if first.is_ascii_digit() {
            number(rest)?
        } else if first == '$' {
            let (c, after) = character(rest.get(1..)?)?;
            (Token::Number(i64::from(u32::from(c))), after)
        } else if first.is_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '@');
            let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
            let variable = first.is_uppercase() || first == '_';
            let word = word.to_owned();
            (if variable { Token::Variable(word) } else { Token::Atom(word) }, after)
        } else {
            let sign = SIGNS.iter().copied().find(|&sign| rest.starts_with(sign))?;
            (Token::Sign(sign), rest.get(sign.len()..)?)
        };
        tokens.push(token);
        rest = after.trim_start();
    }
    Some(tokens)
}

/// An integer, perhaps in another base as `16#ff`, or a float; and the rest after it.
fn number(text: &str) -> Option<(Token, &str)> {
    let end = |text: &str, radix| text.find(|c: char| !c.is_digit(radix)).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end(text, 10));
    if let Some(rest) = rest.strip_prefix('#') {
        let radix = digits.parse().ok().filter(|radix| (2..=36).contains(radix))?;
        let (digits, rest) = rest.split_at(end(rest, radix));
        return Some((Token::Number(i64::from_str_radix(digits, radix).ok()?), rest));
    }
    if !rest.strip_prefix('.').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
        return Some((Token::Number(digits.parse().ok()?), rest));
    }
    let is_part = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '-');
    let (float, rest) = text.split_at(text.find(|c| !is_part(c)).unwrap_or(text.len()));
    // As Erlang writes it, with a sign and two digits in the exponent.
    let float = format!("{:.20e}", float.parse::<f64>().ok().filter(|float| float.is_finite())?);
    let (mantissa, exponent) = float.split_once('e')?;
    let exponent: i32 = exponent.parse().ok()?;
    Some((Token::Float(format!("{mantissa}e{exponent:+03}")), rest))
}

/// A quoted text and the rest after it.
fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let (mut value, mut rest) = (String::new(), text);
    while !rest.starts_with(quote) {
        let (c, after) = character(rest)?;
        value.push(c);
        rest = after;
    }
    Some((value, rest.get(quote.len_utf8()..)?))
}

/// A character, perhaps escaped, and the rest after it.
fn character(text: &str) -> Option<(char, &str)> {
    let mut chars = text.chars();
    let first = chars.next()?;
    if first != '\\' {
        return Some((first, chars.as_str()));
    }
    let (escaped, rest) = (chars.next()?, chars.as_str());
    let coded = |digits: &str, radix| char::from_u32(u32::from_str_radix(digits, radix).ok()?);
    if let Some(at) = "bdefnrstv".find(escaped) {
        return Some((char::from(*b"\x08\x7f\x1b\x0c\n\r \t\x0b".get(at)?), rest));
    }
    Some(match escaped {
        'x' if rest.starts_with('{') => {
            let (digits, rest) = rest.get(1..)?.split_once('}')?;
            (coded(digits, 16)?, rest)
        }
        'x' => (coded(rest.get(..2)?, 16)?, rest.get(2..)?),
        '0'..='7' => {
            let text = text.get(1..)?;
            let octal = |c: &char| c.is_digit(8);
            let (digits, rest) = text.split_at(text.chars().take(3).take_while(octal).count());
            (coded(digits, 8)?, rest)
        }
        other => (other, rest),
    })
}

fn size(values: &[Value]) -> usize {
    let sizes = values.iter().map(|value| match value {
        Value::Md5(inner) => 1 + size(inner),
        _ => 1,
    });
    sizes.sum()
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    /// Values of the code's variables.
    bound: HashMap<String, Term>,
    depth: u32,
    /// Parts that may still be copied.
    left: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token
    }

    /// Takes tokens equal to those of `code`; its variables match any, whose names are returned.
    fn like(&mut self, code: &str) -> Option<Vec<String>> {
        let mut names = Vec::new();
        for wanted in tokens(code)? {
            match (wanted, self.next()?) {
                (Token::Variable(_), Token::Variable(name)) => names.push(name),
                (wanted, found) if wanted == found => {}
                _ => return None,
            }
        }
        Some(names)
    }

    fn take(&mut self, wanted: &str) -> bool {
        let is_next = self.is_sign(wanted);
        self.at += usize::from(is_next);
        is_next
    }

    fn is_sign(&self, wanted: &str) -> bool {
        matches!(self.peek(), Some(Token::Sign(sign)) if *sign == wanted)
    }

    fn function(&mut self) -> Option<Term> {
        self.like("fun(")?;
        self.like(if self.is_sign("{") { "{Pid,DynVars})->" } else { "X)->" })?;
        let value = loop {
            if self.is_sign("{") {
                self.lookup()?;
            } else if self.is_match() {
                let name = self.like("V=")?.pop()?;
                let value = self.expression()?;
                self.bound.insert(name, value);
            } else {
                break self.expression()?;
            }
            self.like(",")?;
        };
        self.like("end")?;
        self.take(".");
        Some(value)
    }

    /// Whether `V =` follows.
    fn is_match(&self) -> bool {
        matches!(self.peek(), Some(Token::Variable(_)))
            && self.tokens.get(self.at + 1) == Some(&Token::Sign("="))
    }

    /// `{ok,V} = ts_dynvars:lookup(name,DynVars)`.
    fn lookup(&mut self) -> Option<()> {
        let name = self.like("{ok,V}=ts_dynvars:lookup(")?.pop()?;
        let Token::Atom(variable) = self.next()? else { return None };
        self.like(",DynVars)")?;
        self.bound.insert(name, Term::Text(vec![Value::Lookup(variable)]));
        Some(())
    }

    /// Terms joined by `++`.
    fn expression(&mut self) -> Option<Term> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return None;
        }
        let mut term = self.term()?;
        while self.take("++") {
            term = joined(term, self.term()?)?;
        }
        self.depth -= 1;
        Some(term)
    }

    fn term(&mut self) -> Option<Term> {
        let text = |text: String| vec![Value::Text(text)];
        match self.next()? {
            Token::Text(mut value) => {
                // Strings side by side are one.
                while let Some(Token::Text(more)) = self.peek() {
                    value.push_str(more);
                    self.at += 1;
                }
                Some(Term::Text(if value.is_empty() { Vec::new() } else { text(value) }))
            }
            Token::Number(number) => Some(match u8::try_from(number) {
                Ok(byte) => Term::Byte(byte),
                Err(_) => Term::One(text(number.to_string())),
            }),
            Token::Float(float) => Some(Term::One(text(float))),
            Token::Variable(name) => {
                let value = self.bound.get(&name)?;
                self.left = self.left.checked_sub(value.size())?;
                Some(value.clone())
            }
            Token::Sign("-") => match self.next()? {
                Token::Number(number) => Some(Term::One(text(number.checked_neg()?.to_string()))),
                Token::Float(float) => Some(Term::One(text(format!("-{float}")))),
                _ => None,
            },
            Token::Sign("<<") => {
                let parts = self.list(">>")?.into_iter();
                Some(Term::One(parts.flat_map(Term::part).collect()))
            }
            Token::Sign("[") => {
                let terms = self.list("]")?;
                let is_text = terms.iter().all(|term| matches!(term, Term::Byte(_)));
                Some(match is_text {
                    true => Term::Text(terms.into_iter().flat_map(Term::part).collect()),
                    false => Term::List(terms.into_iter().map(Term::text).collect()),
                })
            }
            Token::Sign("(") => {
                let value = self.expression()?;
                self.like(")")?;
                Some(value)
            }
            Token::Atom(name) if self.is_sign("(") || self.is_sign(":") => self.call(&name),
            Token::Atom(name) => Some(Term::One(text(name))),
            Token::Sign(_) => None,
        }
    }

    /// Terms up to this character, separated by commas.
    fn list(&mut self, end: &str) -> Option<Vec<Term>> {
        let mut terms = Vec::new();
        while !self.take(end) {
            if !terms.is_empty() {
                self.like(",")?;
            }
            terms.push(self.expression()?);
        }
        Some(terms)
    }

    fn call(&mut self, name: &str) -> Option<Term> {
        let mut name = name.to_owned();
        if self.take(":") {
            let Token::Atom(function) = self.next()? else { return None };
            name = format!("{name}:{function}");
        }
        self.like("(")?;
        let value = match name.as_str() {
            // All values are texts here.
            "binary_to_list"
            | "list_to_binary"
            | "integer_to_list"
            | "integer_to_binary"
            | "list_to_integer"
            | "ts_utils:term_to_list" => self.expression()?.text(),
            "ts_digest:md5hex" => vec![Value::Md5(self.expression()?.text())],
            "random:uniform" | "rand:uniform" => {
                let Token::Number(last) = self.next()? else { return None };
                if last < 1 {
                    return None;
                }
                vec![Value::Random(last)]
            }
            name if super::subst::CALLS.contains(&name) => {
                if self.is_sign("{") {
                    self.like("{Pid,DynVars}")?;
                } else if !self.is_sign(")") {
                    self.like("X")?;
                }
                vec![Value::Call(name.to_owned())]
            }
            _ => return None,
        };
        self.like(")")?;
        Some(Term::Text(value))
    }
}

/// Concatenates two strings or lists.
fn joined(first: Term, second: Term) -> Option<Term> {
    match (first, second) {
        (Term::List(first), Term::List(second)) => Some(Term::List([first, second].concat())),
        (Term::List(_), _) | (_, Term::List(_)) => None,
        // A binary or a number would be a fault in Erlang; values of variables are both.
        (first, second) => Some(Term::Text([first.part(), second.part()].concat())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    fn one(code: &str) -> Option<Vec<Value>> {
        evaluate(code).map(Term::text)
    }

    fn lookup(name: &str) -> Value {
        Value::Lookup(name.to_owned())
    }

    #[test]
    fn erlang_lookup_followed_by_text_is_evaluated() {
        let code = "fun({Pid,DynVars})-> {ok,V}=ts_dynvars:lookup(user,DynVars), \
                    binary_to_list(V) ++ \"!\" end.";
        assert_eq!(one(code), Some(vec![lookup("user"), text("!")]));
    }

    #[test]
    fn erlang_example_of_the_tsung_manual_is_evaluated() {
        let code = "fun({Pid,DynVars})->\n  {ok,Val}=ts_dynvars:lookup(md5data,DynVars),\n  \
                    ts_digest:md5hex(Val) end.";
        assert_eq!(one(code), Some(vec![Value::Md5(vec![lookup("md5data")])]));
    }

    #[test]
    fn several_erlang_lookups_and_calls_are_evaluated() {
        let code = "fun({_Pid, D}) -> {ok, A} = ts_dynvars:lookup('a b', D), \
                    {ok, B} = ts_dynvars:lookup(b, D), C = A ++ \"-\\\"\", \
                    <<\"x\">> ++ C ++ integer_to_list(rand:uniform(9)) ++ \
                    ts_user_server:get_unique_id({_Pid, D}) ++ B end";
        let wanted = vec![
            text("x"),
            lookup("a b"),
            text("-\""),
            Value::Random(9),
            Value::Call("ts_user_server:get_unique_id".to_owned()),
            lookup("b"),
        ];
        assert_eq!(one(code), Some(wanted));
    }

    #[test]
    fn erlang_literals_are_evaluated() {
        for (code, wanted) in [
            ("\"x y\"", "x y"),
            ("42", "42"),
            ("hello", "hello"),
            ("'He llo'", "He llo"),
            ("[97,98]", "ab"),
            ("-7", "-7"),
            ("1.5", "1.50000000000000000000e+00"),
            ("1.0e3", "1.00000000000000000000e+03"),
            ("<<\"bin\">>", "bin"),
            ("<<1,65,66>>", "\u{1}AB"),
            ("[\"one\"]", "one"),
            ("[7]", "\u{7}"),
            ("-0.1e-3", "-1.00000000000000004792e-04"),
            ("[]", ""),
            ("\"a\" \"b\"", "ab"),
            ("16#ff", "255"),
            ("$a", "97"),
            ("[$a] ++ \"bc\"", "abc"),
            ("true", "true"),
            ("\"\\n\\x41\\101\\d\\e\\\"\\x{42}\"", "\nAA\u{7f}\u{1b}\"B"),
        ] {
            let found = one(&format!("fun(_) -> {code} end.")).unwrap();
            let texts = found.iter().map(|value| match value {
                Value::Text(text) => text.as_str(),
                other => panic!("{other:?}"),
            });
            assert_eq!(texts.collect::<String>(), wanted, "{code}");
        }
    }

    #[test]
    fn erlang_lists_evaluate_to_their_elements() {
        let of = |code: &str| evaluate(&format!("fun(_) -> {code} end.")).unwrap().elements();
        let all = |texts: &[&str]| Some(texts.iter().map(|one| vec![text(one)]).collect());
        assert_eq!(of("[\"a\", \"b\"]"), all(&["a", "b"]));
        assert_eq!(of("[1,2,3]"), all(&["1", "2", "3"]));
        assert_eq!(of("[foo, <<\"b\">>]"), all(&["foo", "b"]));
        assert_eq!(of("\"xy\""), all(&["120", "121"]));
        assert_eq!(of("[\"a\"] ++ [b]"), all(&["a", "b"]));
        assert_eq!(of("[]"), all(&[]));
        assert_eq!(of("foo"), None);
    }

    #[test]
    fn unsupported_erlang_code_is_refused() {
        for code in [
            "",
            "fun(X) -> os:cmd(\"ls\") end.",
            "fun({P,D}) -> Unbound end.",
            "fun({P,D}) -> \"a\" end. fun(X) -> \"b\" end.",
            "fun({P,D}) -> \"a",
            "fun({P,D}) -> \"\\xg1\" end.",
            "fun() -> 1 end.",
            "fun(X) -> [1,] end.",
            "fun(X) -> 1 + 2 end.",
            "fun(X) -> [1|2] end.",
            "fun(X) -> {a, b} end.",
            "fun(X) -> lists:nth(1, [2]) end.",
            "fun({P,D}) -> rand:uniform(0) end.",
            "fun({P,D}) -> case D of _ -> \"a\" end end.",
            "#",
        ] {
            assert_eq!(evaluate(code), None, "{code}");
        }
        let lookup = "{ok,V0}=ts_dynvars:lookup(v,D), ".to_owned();
        let doubled = (0..60).map(|n| format!("V{}=V{n}++V{n}, ", n + 1));
        let doubled: String = std::iter::once(lookup).chain(doubled).collect();
        assert_eq!(evaluate(&format!("fun(D) -> {doubled}V60 end.")), None);
        let empty = (0..60).map(|n| format!("V{}=[V{n},V{n}], ", n + 1)).collect::<String>();
        assert_eq!(evaluate(&format!("fun(_) -> V0=[], {empty}V60 end.")).unwrap().size(), 2);
        let lists = (0..60).map(|n| format!("V{}=V{n}++V{n}, ", n + 1)).collect::<String>();
        assert_eq!(evaluate(&format!("fun(_) -> V0=[a], {lists}V60 end.")), None);
        let deep = format!("fun(X) -> {}\"a\"{} end.", "(".repeat(99), ")".repeat(99));
        assert_eq!(evaluate(&deep), None);
    }
}
