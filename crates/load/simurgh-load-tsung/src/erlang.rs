//! The few forms of Erlang code in scenarios: concatenated values of variables.
//!
//! `fun({Pid,DynVars}) -> {ok,V} = ts_dynvars:lookup(name,DynVars), EXPRESSION end.` where the
//! expression consists of `V`, strings, `++`, and the functions of [`Parser::call`]. It becomes a
//! text with substitutions; anything else is refused.

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
    /// `->`, `++`, `<<`, `>>` or one character.
    Sign(&'static str),
}

/// The value of the code; `None` if it has another form.
pub(super) fn evaluate(code: &str) -> Option<Vec<Value>> {
    let (tokens, bound) = (tokens(code)?, HashMap::new());
    let mut parser = Parser { tokens, at: 0, bound, depth: 0, left: PIECES_MAX };
    let value = parser.function()?;
    (parser.at == parser.tokens.len()).then_some(value)
}

const SIGNS: &[&str] =
    &["->", "++", "<<", ">>", "(", ")", "{", "}", "[", "]", ",", "=", ":", ".", "|", ";"];

fn tokens(code: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, after) = if first == '"' || first == '\'' {
            let (text, after) = quoted(rest.get(1..)?, first)?;
            (if first == '"' { Token::Text(text) } else { Token::Atom(text) }, after)
        } else if first.is_ascii_digit() {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            (Token::Number(rest.get(..end)?.parse().ok()?), rest.get(end..)?)
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

/// A quoted text and the rest after it.
fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            c if c == quote => return Some((value, text.get(at + c.len_utf8()..)?)),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                's' => ' ',
                c if c.is_alphanumeric() => return None,
                c => c,
            }),
            c => value.push(c),
        }
    }
    None
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
    bound: HashMap<String, Vec<Value>>,
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

    fn function(&mut self) -> Option<Vec<Value>> {
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
        self.bound.insert(name, vec![Value::Lookup(variable)]);
        Some(())
    }

    /// Terms joined by `++`.
    fn expression(&mut self) -> Option<Vec<Value>> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return None;
        }
        let mut values = self.term()?;
        while self.take("++") {
            values.extend(self.term()?);
        }
        self.depth -= 1;
        Some(values)
    }

    fn term(&mut self) -> Option<Vec<Value>> {
        match self.next()? {
            Token::Text(text) => Some(vec![Value::Text(text)]),
            Token::Number(number) => Some(vec![Value::Text(number.to_string())]),
            Token::Variable(name) => {
                let value = self.bound.get(&name)?;
                self.left = self.left.checked_sub(size(value))?;
                Some(value.clone())
            }
            Token::Sign("<<") => {
                let Token::Text(text) = self.next()? else { return None };
                self.like(">>")?;
                Some(vec![Value::Text(text)])
            }
            Token::Sign("(") => {
                let value = self.expression()?;
                self.like(")")?;
                Some(value)
            }
            Token::Atom(name) => self.call(&name),
            Token::Sign(_) => None,
        }
    }

    fn call(&mut self, name: &str) -> Option<Vec<Value>> {
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
            | "ts_utils:term_to_list" => self.expression()?,
            "ts_digest:md5hex" => vec![Value::Md5(self.expression()?)],
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
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    fn lookup(name: &str) -> Value {
        Value::Lookup(name.to_owned())
    }

    #[test]
    fn a_lookup_with_text_behind_it() {
        let code = "fun({Pid,DynVars})-> {ok,V}=ts_dynvars:lookup(user,DynVars), \
                    binary_to_list(V) ++ \"!\" end.";
        assert_eq!(evaluate(code), Some(vec![lookup("user"), text("!")]));
    }

    #[test]
    fn the_example_of_the_manual() {
        let code = "fun({Pid,DynVars})->\n  {ok,Val}=ts_dynvars:lookup(md5data,DynVars),\n  \
                    ts_digest:md5hex(Val) end.";
        assert_eq!(evaluate(code), Some(vec![Value::Md5(vec![lookup("md5data")])]));
    }

    #[test]
    fn several_lookups_and_calls() {
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
        assert_eq!(evaluate(code), Some(wanted));
    }

    #[test]
    fn other_code_is_refused() {
        for code in [
            "",
            "fun(X) -> os:cmd(\"ls\") end.",
            "fun({P,D}) -> Unbound end.",
            "fun({P,D}) -> \"a\" end. fun(X) -> \"b\" end.",
            "fun({P,D}) -> \"a",
            "fun({P,D}) -> \"\\x41\" end.",
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
        let deep = format!("fun(X) -> {}\"a\"{} end.", "(".repeat(99), ")".repeat(99));
        assert_eq!(evaluate(&deep), None);
    }
}
