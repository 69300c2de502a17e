//! An XPath 1.0 expression as it was understood.

use std::ops::RangeInclusive;

use strum::EnumString;

use crate::Compare;

/// Operators that bind alike are in one list, so that a long row of them is no
/// deeper than a short one.
#[derive(Debug)]
pub(super) enum Expression {
    Operators(Box<Expression>, Vec<(Operator, Expression)>),
    Negative(Box<Expression>),
    Union(Vec<Expression>),
    Path(Box<Path>),
    Call(Function, Vec<Expression>),
    Literal(Box<str>),
    Number(f64),
}

impl Expression {
    /// Whether its value is nodes, which the parser knows as there are no variables.
    pub(super) fn is_nodes(&self) -> bool {
        matches!(self, Self::Union(_) | Self::Path(_) | Self::Call(Function::Id, _))
    }
}

/// What stands between two expressions.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operator {
    Or,
    And,
    Compare(Compare),
    Calculate(fn(f64, f64) -> f64),
}

/// Where it starts, which of those nodes are taken, and the steps from there.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) start: Start,
    pub(super) predicates: Vec<Expression>,
    pub(super) steps: Vec<Step>,
}

#[derive(Debug)]
pub(super) enum Start {
    /// The node that the expression is evaluated for.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString)]
#[strum(serialize_all = "kebab-case")]
pub(super) enum Function {
    Boolean,
    Ceiling,
    Concat,
    Contains,
    Count,
    False,
    Floor,
    Id,
    Lang,
    Last,
    LocalName,
    Name,
    NamespaceUri,
    NormalizeSpace,
    Not,
    Number,
    Position,
    Round,
    StartsWith,
    String,
    StringLength,
    Substring,
    SubstringAfter,
    SubstringBefore,
    Sum,
    Translate,
    True,
}

impl Function {
    pub(super) fn arguments(self) -> RangeInclusive<usize> {
        match self {
            Self::False | Self::Last | Self::Position | Self::True => 0..=0,
            Self::LocalName | Self::Name | Self::NamespaceUri | Self::NormalizeSpace => 0..=1,
            Self::Number | Self::String | Self::StringLength => 0..=1,
            Self::Contains | Self::StartsWith | Self::SubstringAfter | Self::SubstringBefore => {
                2..=2
            }
            Self::Substring => 2..=3,
            Self::Translate => 3..=3,
            Self::Concat => 2..=usize::MAX,
            _ => 1..=1,
        }
    }

    pub(super) fn wants_nodes(self) -> bool {
        use Function::{Count, LocalName, Name, NamespaceUri, Sum};
        matches!(self, Count | LocalName | Name | NamespaceUri | Sum)
    }
}
