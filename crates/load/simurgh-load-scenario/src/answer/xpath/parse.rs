//! Parses XPath 1.0 (§2, §3): one function for each rule, from the loosest operator to the names.

use super::expression::{Axis, Expression, Operator, Path, Start, Step, Test};
use super::function::FUNCTIONS;
use crate::Compare;

/// Nested expressions: each level needs stack, here and in evaluation.
const NESTING_MAX: usize = 32;

const OPERATORS: &[&[(&str, Operator)]] = &[
    &[("or", Operator::Or)],
    &[("and", Operator::And)],
    &[("!=", Operator::Compare(Compare::Neq)), ("=", Operator::Compare(Compare::Eq))],
    &[
        ("<=", Operator::Compare(Compare::Lte)),
        (">=", Operator::Compare(Compare::Gte)),
        ("<", Operator::Compare(Compare::Lt)),
        (">", Operator::Compare(Compare::Gt)),
    ],
    &[("+", Operator::Calculate(|a, b| a + b)), ("-", Operator::Calculate(|a, b| a - b))],
    &[
        ("*", Operator::Calculate(|a, b| a * b)),
        ("div", Operator::Calculate(|a, b| a / b)),
        ("mod", Operator::Calculate(|a, b| a % b)),
    ],
];

pub(super) fn parse(text: &str) -> Result<Expression, String> {
    let mut parser = Parser { rest: text, depth: 0 };
    let expression = parser.expression()?;
    parser.skip_blanks();
    if parser.rest.is_empty() { Ok(expression) } else { Err(parser.unexpected()) }
}

type Parsed<T> = Result<T, String>;

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn expression(&mut self) -> Parsed<Expression> {
        self.depth += 1;
        if self.depth > NESTING_MAX {
            return Err(format!("it nests deeper than {NESTING_MAX}"));
        }
        let expression = self.operators(OPERATORS)?;
        self.depth -= 1;
        Ok(expression)
    }

    /// Operators of one precedence, left-associative, with tighter ones between them.
    fn operators(&mut self, levels: &[&[(&str, Operator)]]) -> Parsed<Expression> {
        let Some((level, tighter)) = levels.split_first() else { return self.negative() };
        let first = self.operators(tighter)?;
        let mut others = Vec::new();
        while let Some((_, operator)) = level.iter().find(|(sign, _)| self.take_operator(sign)) {
            others.push((*operator, self.operators(tighter)?));
        }
        Ok(if others.is_empty() { first } else { Expression::Operators(first.into(), others) })
    }

    fn negative(&mut self) -> Parsed<Expression> {
        let mut minus = 0_usize;
        while self.take("-") {
            minus += 1;
        }
        let inner = self.union()?;
        Ok(match minus {
            0 => inner,
            // An even number still converts the value to a number.
            _ if minus.is_multiple_of(2) => {
                Expression::Negative(Box::new(Expression::Negative(inner.into())))
            }
            _ => Expression::Negative(inner.into()),
        })
    }

    fn union(&mut self) -> Parsed<Expression> {
        let first = self.path()?;
        if !self.peek("|") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.take("|") {
            all.push(self.path()?);
        }
        if !all.iter().all(Expression::is_nodes) {
            return Err("'|' stands between nodes".into());
        }
        Ok(Expression::Union(all))
    }

    fn path(&mut self) -> Parsed<Expression> {
        if let Some(primary) = self.primary()? {
            return self.filtered(primary);
        }
        let mut steps = Vec::new();
        let start = if self.peek("//") {
            Start::Root
        } else if self.take("/") {
            if !self.is_step() {
                return Ok(path(Start::Root, Vec::new(), steps));
            }
            steps.push(self.step()?);
            Start::Root
        } else {
            steps.push(self.step()?);
            Start::Context
        };
        self.further_steps(&mut steps)?;
        Ok(path(start, Vec::new(), steps))
    }

    fn filtered(&mut self, primary: Expression) -> Parsed<Expression> {
        let predicates = self.predicates()?;
        let mut steps = Vec::new();
        self.further_steps(&mut steps)?;
        if predicates.is_empty() && steps.is_empty() {
            return Ok(primary);
        }
        if !primary.is_nodes() {
            return Err("'[' and '/' follow nodes".into());
        }
        Ok(path(Start::Nodes(primary), predicates, steps))
    }

    fn further_steps(&mut self, steps: &mut Vec<Step>) -> Parsed<()> {
        loop {
            if self.take("//") {
                let (axis, test) = (Axis::DescendantOrSelf, Test::Node);
                steps.push(Step { axis, test, predicates: Vec::new() });
            } else if !self.take("/") {
                return Ok(());
            }
            steps.push(self.step()?);
        }
    }

    fn predicates(&mut self) -> Parsed<Vec<Expression>> {
        let mut predicates = Vec::new();
        while self.take("[") {
            predicates.push(self.expression()?);
            self.want("]")?;
        }
        Ok(predicates)
    }

    /// A literal, a number, a call, or an expression in parentheses.
    fn primary(&mut self) -> Parsed<Option<Expression>> {
        self.skip_blanks();
        let mut chars = self.rest.chars();
        let (first, second) = (chars.next(), chars.next());
        let is_digit = |char: Option<char>| char.is_some_and(|char| char.is_ascii_digit());
        match first {
            Some('(') => {
                self.want("(")?;
                let inner = self.expression()?;
                self.want(")")?;
                Ok(Some(inner))
            }
            Some(quote @ ('"' | '\'')) => {
                let inner = self.rest.get(1..).unwrap_or_default();
                let (text, rest) = inner.split_once(quote).ok_or("a quote is not closed")?;
                self.rest = rest;
                Ok(Some(Expression::Literal(text.into())))
            }
            Some('$') => Err(format!("'{}' is not known", self.rest)),
            Some('.') if is_digit(second) => Ok(Some(self.number())),
            first if is_digit(first) => Ok(Some(self.number())),
            _ => self.call(),
        }
    }

    fn number(&mut self) -> Expression {
        let is_digit = |char: char| char.is_ascii_digit();
        let whole = self.rest.trim_start_matches(is_digit);
        let rest = whole.strip_prefix('.').map_or(whole, |rest| rest.trim_start_matches(is_digit));
        let (text, rest) = self.rest.split_at(self.rest.len() - rest.len());
        self.rest = rest;
        Expression::Number(text.parse().unwrap_or(f64::NAN))
    }

    fn call(&mut self) -> Parsed<Option<Expression>> {
        let name = name(self.rest);
        let behind = self.rest.get(name.len()..).unwrap_or_default().trim_start();
        let is_type = matches!(name, "node" | "text" | "comment" | "processing-instruction");
        if name.is_empty() || is_type || !behind.starts_with('(') {
            return Ok(None);
        }
        let known = FUNCTIONS.iter().find(|function| function.0 == name);
        let (_, least, most, body) = known.ok_or_else(|| format!("'{name}' is not known"))?;
        self.rest = behind;
        self.want("(")?;
        let mut arguments = Vec::new();
        while !self.peek(")") {
            if !arguments.is_empty() {
                self.want(",")?;
            }
            arguments.push(self.expression()?);
        }
        self.want(")")?;
        if !(least..=most).contains(&&arguments.len()) {
            return Err(format!("'{name}' does not take {} arguments", arguments.len()));
        }
        if body.wants_nodes() && !arguments.iter().all(Expression::is_nodes) {
            return Err(format!("'{name}' wants nodes"));
        }
        Ok(Some(Expression::Call(*body, arguments)))
    }

    fn is_step(&mut self) -> bool {
        self.skip_blanks();
        self.rest.starts_with(['.', '@', '*']) || !name(self.rest).is_empty()
    }

    fn step(&mut self) -> Parsed<Step> {
        self.skip_blanks();
        for (short, axis) in [("..", Axis::Parent), (".", Axis::Itself)] {
            if self.take(short) {
                return Ok(Step { axis, test: Test::Node, predicates: Vec::new() });
            }
        }
        let mut axis = Axis::Child;
        let first = name(self.rest);
        if self.take("@") {
            axis = Axis::Attribute;
        } else if self.rest.get(first.len()..).is_some_and(|r| r.trim_start().starts_with("::")) {
            axis = first.parse().map_err(|_| format!("'{first}' is no axis"))?;
            self.rest = self.rest.get(first.len()..).unwrap_or_default();
            self.want("::")?;
        }
        let test = self.test()?;
        Ok(Step { axis, test, predicates: self.predicates()? })
    }

    fn test(&mut self) -> Parsed<Test> {
        if self.take("*") {
            return Ok(Test::Named);
        }
        self.skip_blanks();
        let first = name(self.rest);
        if first.is_empty() {
            return Err(self.unexpected());
        }
        self.rest = self.rest.get(first.len()..).unwrap_or_default();
        if self.peek("(") {
            return self.node_type(first);
        }
        // A name with a prefix contains no blanks.
        let Some(rest) = self.rest.strip_prefix(':').filter(|rest| !rest.starts_with(':')) else {
            return Ok(Test::Name(None, first.into()));
        };
        if let Some(rest) = rest.strip_prefix('*') {
            self.rest = rest;
            return Ok(Test::Prefix(first.into()));
        }
        let local = name(rest);
        if local.is_empty() {
            return Err(self.unexpected());
        }
        self.rest = rest.get(local.len()..).unwrap_or_default();
        Ok(Test::Name(Some(first.into()), local.into()))
    }

    fn node_type(&mut self, kind: &str) -> Parsed<Test> {
        self.want("(")?;
        let test = match kind {
            "node" => Test::Node,
            "text" => Test::Text,
            "comment" => Test::Nothing,
            "processing-instruction" => {
                if !self.peek(")") && !matches!(self.primary()?, Some(Expression::Literal(_))) {
                    return Err(self.unexpected());
                }
                Test::Nothing
            }
            _ => return Err(format!("'{kind}' is not known")),
        };
        self.want(")")?;
        Ok(test)
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
    }

    fn peek(&mut self, sign: &str) -> bool {
        self.skip_blanks();
        self.rest.starts_with(sign)
    }

    fn take(&mut self, sign: &str) -> bool {
        self.skip_blanks();
        let rest: Option<&'a str> = self.rest.strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Takes an operator; one that is a word must be the whole word.
    fn take_operator(&mut self, sign: &str) -> bool {
        self.skip_blanks();
        (name(sign).is_empty() || name(self.rest) == sign) && self.take(sign)
    }

    fn want(&mut self, sign: &str) -> Parsed<()> {
        if self.take(sign) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn unexpected(&self) -> String {
        match self.rest {
            "" => "it ends too early".to_owned(),
            rest => format!("'{rest}' is not expected"),
        }
    }
}

fn path(start: Start, predicates: Vec<Expression>, steps: Vec<Step>) -> Expression {
    Expression::Path(Box::new(Path { start, predicates, steps }))
}

/// The name without a colon at the beginning of `text`; empty if there is none.
fn name(text: &str) -> &str {
    let is_inner = |char: char| char.is_alphanumeric() || matches!(char, '_' | '-' | '.');
    if !text.starts_with(|char: char| char.is_alphabetic() || char == '_') {
        return "";
    }
    text.split_once(|char| !is_inner(char)).map_or(text, |(name, _)| name)
}
