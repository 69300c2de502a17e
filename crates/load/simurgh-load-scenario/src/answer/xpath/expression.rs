//! An XPath 1.0 expression as it was understood.

/// Of one kind each; operators that bind alike are in one list, so that a long row of them is no
/// deeper than a short one.
#[derive(Debug)]
pub(super) enum Expression {
    Or(Vec<Expression>),
    And(Vec<Expression>),
    Compare(Box<Expression>, Vec<(Comparison, Expression)>),
    Calculate(Box<Expression>, Vec<(Calculation, Expression)>),
    Negative(Box<Expression>),
    Union(Vec<Expression>),
    Path(Box<Path>),
    Call(Function, Vec<Expression>),
    Literal(Box<str>),
    Number(f64),
}

impl Expression {
    /// Whether it comes to nodes: without variables that is known beforehand.
    pub(super) fn is_nodes(&self) -> bool {
        matches!(self, Self::Union(_) | Self::Path(_) | Self::Call(Function::Id, _))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    /// The same with its sides exchanged.
    pub(super) fn turned(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
            Self::Equal | Self::NotEqual => self,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Calculation {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// From where, which of these, and on from there step by step.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) start: Start,
    pub(super) predicates: Vec<Expression>,
    pub(super) steps: Vec<Step>,
}

#[derive(Debug)]
pub(super) enum Start {
    Here,
    Root,
    Nodes(Expression),
}

#[derive(Debug)]
pub(super) struct Step {
    pub(super) axis: Axis,
    pub(super) test: Test,
    pub(super) predicates: Vec<Expression>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    Here,
}

impl Axis {
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "ancestor" => Self::Ancestor,
            "ancestor-or-self" => Self::AncestorOrSelf,
            "attribute" => Self::Attribute,
            "child" => Self::Child,
            "descendant" => Self::Descendant,
            "descendant-or-self" => Self::DescendantOrSelf,
            "following" => Self::Following,
            "following-sibling" => Self::FollowingSibling,
            "namespace" => Self::Namespace,
            "parent" => Self::Parent,
            "preceding" => Self::Preceding,
            "preceding-sibling" => Self::PrecedingSibling,
            "self" => Self::Here,
            _ => return None,
        })
    }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// A function of XPath 1.0, and how many arguments it takes at least and at most.
    pub(super) fn named(name: &str) -> Option<(Self, usize, usize)> {
        Some(match name {
            "boolean" => (Self::Boolean, 1, 1),
            "ceiling" => (Self::Ceiling, 1, 1),
            "concat" => (Self::Concat, 2, usize::MAX),
            "contains" => (Self::Contains, 2, 2),
            "count" => (Self::Count, 1, 1),
            "false" => (Self::False, 0, 0),
            "floor" => (Self::Floor, 1, 1),
            "id" => (Self::Id, 1, 1),
            "lang" => (Self::Lang, 1, 1),
            "last" => (Self::Last, 0, 0),
            "local-name" => (Self::LocalName, 0, 1),
            "name" => (Self::Name, 0, 1),
            "namespace-uri" => (Self::NamespaceUri, 0, 1),
            "normalize-space" => (Self::NormalizeSpace, 0, 1),
            "not" => (Self::Not, 1, 1),
            "number" => (Self::Number, 0, 1),
            "position" => (Self::Position, 0, 0),
            "round" => (Self::Round, 1, 1),
            "starts-with" => (Self::StartsWith, 2, 2),
            "string" => (Self::String, 0, 1),
            "string-length" => (Self::StringLength, 0, 1),
            "substring" => (Self::Substring, 2, 3),
            "substring-after" => (Self::SubstringAfter, 2, 2),
            "substring-before" => (Self::SubstringBefore, 2, 2),
            "sum" => (Self::Sum, 1, 1),
            "translate" => (Self::Translate, 3, 3),
            "true" => (Self::True, 0, 0),
            _ => return None,
        })
    }

    /// Whether its argument must be nodes.
    pub(super) fn wants_nodes(self) -> bool {
        use Function::{Count, LocalName, Name, NamespaceUri, Sum};
        matches!(self, Count | LocalName | Name | NamespaceUri | Sum)
    }
}
