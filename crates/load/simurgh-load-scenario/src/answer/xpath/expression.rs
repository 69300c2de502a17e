//! A parsed XPath 1.0 expression.

use strum::EnumString;

use super::function::Body;
use crate::Compare;

/// Operators of one precedence are in one list: a long row of them is not deep.
#[derive(Debug)]
pub(super) enum Expression {
    Operators(Box<Expression>, Vec<(Operator, Expression)>),
    Negative(Box<Expression>),
    Union(Vec<Expression>),
    Path(Box<Path>),
    Call(Body, Vec<Expression>),
    Literal(Box<str>),
    Number(f64),
}

impl Expression {
    /// Whether its value is nodes; known to the parser, as there are no variables.
    pub(super) fn is_nodes(&self) -> bool {
        matches!(self, Self::Union(_) | Self::Path(_) | Self::Call(Body::Id, _))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Operator {
    Or,
    And,
    Compare(Compare),
    Calculate(fn(f64, f64) -> f64),
}

/// A start, the predicates on it, and the steps from there.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) start: Start,
    pub(super) predicates: Vec<Expression>,
    pub(super) steps: Vec<Step>,
}

#[derive(Debug)]
pub(super) enum Start {
    Context,
    Root,
    Nodes(Expression),
}

#[derive(Debug)]
pub(super) struct Step {
    pub(super) axis: Axis,
    pub(super) test: Test,
    pub(super) predicates: Vec<Expression>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString)]
#[strum(serialize_all = "kebab-case")]
pub(super) enum Axis {
    Ancestor,
    AncestorOrSelf,
    Attribute,
    Child,
    Descendant,
    DescendantOrSelf,
    Following,
    FollowingSibling,
    Namespace,
    Parent,
    Preceding,
    PrecedingSibling,
    #[strum(serialize = "self")]
    Itself,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// `node()`
    Node,
    /// `text()`
    Text,
    /// `comment()`, `processing-instruction()`: a tree has neither.
    Nothing,
    /// `*`
    Named,
    /// `a:*`
    Prefix(Box<str>),
    Name(Option<Box<str>>, Box<str>),
}
