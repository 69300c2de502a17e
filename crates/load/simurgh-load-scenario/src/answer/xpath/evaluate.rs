//! Evaluates an expression with limited steps: one for each visited node and few bytes of text.
//!
//! XPath has expressions that take quadratic or cubic time in a page's size, and the page comes
//! from a server. `None` everywhere here means that the steps are used up.

use std::borrow::Cow;
use std::collections::HashSet;

use super::expression::{Axis, Expression, Operator, Path, Start, Step, Test};
use super::function::Body;
use super::value::{Value, number, substring};
use crate::Compare;
use crate::answer::tree::{Kind, Name, NodeId, ROOT, Tree};

/// Bytes of text that cost as much as one node.
const BYTES_A_STEP: usize = 4;

pub(super) struct Evaluation<'t> {
    tree: &'t Tree,
    steps_left: usize,
}

#[derive(Clone, Copy)]
struct Focus {
    node: NodeId,
    position: usize,
    size: usize,
}

impl<'t> Evaluation<'t> {
    pub(super) fn new(tree: &'t Tree, steps_max: usize) -> Self {
        Self { tree, steps_left: steps_max }
    }

    /// The string values of all nodes in document order, or the value as text.
    pub(super) fn texts(&mut self, expression: &Expression) -> Option<Vec<String>> {
        let root = Focus { node: ROOT, position: 1, size: 1 };
        match self.value(expression, root)? {
            Value::Nodes(nodes) => {
                let texts = nodes.iter().map(|node| Some(self.text_of(*node)?.to_owned()));
                texts.collect()
            }
            Value::Text(text) if text.is_empty() => Some(Vec::new()),
            other => Some(vec![other.into_text(self.tree).into_owned()]),
        }
    }

    fn value(&mut self, expression: &Expression, focus: Focus) -> Option<Value<'t>> {
        self.spend(1)?;
        Some(match expression {
            Expression::Operators(first, others) => {
                let mut left = self.value(first, focus)?;
                for (operator, right) in others {
                    left = self.operation(*operator, left, right, focus)?;
                }
                left
            }
            Expression::Negative(inner) => Value::Number(-self.number(inner, focus)?),
            Expression::Union(all) => {
                let mut nodes = Vec::new();
                for one in all {
                    nodes.extend(self.nodes(one, focus)?);
                }
                Value::Nodes(in_order(nodes))
            }
            Expression::Path(path) => Value::Nodes(self.path(path, focus)?),
            Expression::Call(function, arguments) => self.call(*function, arguments, focus)?,
            Expression::Literal(text) => Value::Text(self.owned(text)?.into()),
            Expression::Number(number) => Value::Number(*number),
        })
    }

    /// One operator; its right side is evaluated only if needed.
    fn operation(
        &mut self,
        operator: Operator,
        left: Value<'t>,
        right: &Expression,
        focus: Focus,
    ) -> Option<Value<'t>> {
        Some(match operator {
            Operator::Or | Operator::And => {
                let is_decided = left.is_true() == matches!(operator, Operator::Or);
                let decides = if is_decided { left } else { self.value(right, focus)? };
                Value::Boolean(decides.is_true())
            }
            Operator::Compare(comparison) => {
                let right = self.value(right, focus)?;
                Value::Boolean(self.compare(comparison, left, right)?)
            }
            Operator::Calculate(calculate) => {
                let left = self.number_of(&left)?;
                Value::Number(calculate(left, self.number(right, focus)?))
            }
        })
    }

    fn number(&mut self, expression: &Expression, focus: Focus) -> Option<f64> {
        let value = self.value(expression, focus)?;
        self.number_of(&value)
    }

    fn nodes(&mut self, expression: &Expression, focus: Focus) -> Option<Vec<NodeId>> {
        Some(self.value(expression, focus)?.into_nodes())
    }

    fn path(&mut self, path: &Path, focus: Focus) -> Option<Vec<NodeId>> {
        let mut nodes = match &path.start {
            Start::Context => vec![focus.node],
            Start::Root => vec![ROOT],
            Start::Nodes(expression) => self.nodes(expression, focus)?,
        };
        nodes = self.filtered(nodes, &path.predicates)?;
        for step in &path.steps {
            let mut next = Vec::new();
            for node in nodes {
                next.extend(self.step(step, node)?);
            }
            nodes = in_order(next);
        }
        Some(nodes)
    }

    fn step(&mut self, step: &Step, node: NodeId) -> Option<Vec<NodeId>> {
        let mut found = Vec::new();
        self.walk(step.axis, node, |tree, node| {
            if passes(tree, &step.test, step.axis, node) {
                found.push(node);
            }
        })?;
        self.filtered(found, &step.predicates)
    }

    /// The nodes for which all predicates are true; a number is a position.
    fn filtered(
        &mut self,
        mut nodes: Vec<NodeId>,
        predicates: &[Expression],
    ) -> Option<Vec<NodeId>> {
        for predicate in predicates {
            let size = nodes.len();
            let mut kept = Vec::new();
            for (node, position) in nodes.into_iter().zip(1..) {
                let is_kept = match self.value(predicate, Focus { node, position, size })? {
                    Value::Number(number) => number == position as f64,
                    other => other.is_true(),
                };
                kept.extend(Some(node).filter(|_| is_kept));
            }
            nodes = kept;
        }
        Some(nodes)
    }

    /// Calls `each` with the nodes on an axis, the nearest first.
    fn walk(
        &mut self,
        axis: Axis,
        node: NodeId,
        mut each: impl FnMut(&Tree, NodeId),
    ) -> Option<()> {
        let tree = self.tree;
        let is_attribute = |node: NodeId| tree.kind(node) == Kind::Attribute;
        let parent = tree.parent(node).unwrap_or(ROOT);
        let mut visit = |node: NodeId| {
            self.spend(1)?;
            each(tree, node);
            Some(())
        };
        // Attributes of descendants are skipped, but cost a step.
        let wide = match axis {
            Axis::Descendant | Axis::DescendantOrSelf => tree.below(node),
            Axis::Following if is_attribute(node) => tree.below(parent).start..tree.len(),
            Axis::Following => tree.below(node).end..tree.len(),
            Axis::Preceding => 0..node,
            _ => 0..0,
        };
        match axis {
            Axis::Itself => visit(node)?,
            Axis::Parent => tree.parent(node).into_iter().try_for_each(visit)?,
            Axis::Ancestor | Axis::AncestorOrSelf => {
                let above = std::iter::successors(Some(node), |node| tree.parent(*node));
                above.skip(usize::from(axis == Axis::Ancestor)).try_for_each(visit)?;
            }
            Axis::DescendantOrSelf => visit(node)?,
            _ if is_attribute(node) => {}
            Axis::Attribute => tree.attributes(node).try_for_each(visit)?,
            Axis::Child => children(tree, node).try_for_each(visit)?,
            Axis::FollowingSibling if node != ROOT => {
                siblings(tree, tree.below(node).end, tree.below(parent).end).try_for_each(visit)?;
            }
            Axis::PrecedingSibling => {
                let before: Vec<NodeId> =
                    children(tree, parent).take_while(|it| *it < node).collect();
                before.into_iter().rev().try_for_each(visit)?;
            }
            _ => {}
        }
        self.spend(wide.len())?;
        let is_before = axis == Axis::Preceding;
        let is_passed =
            |other: NodeId| is_attribute(other) || (is_before && tree.below(other).end > node);
        let found = wide.filter(|other| !is_passed(*other));
        if is_before {
            found.rev().for_each(|it| each(tree, it))
        } else {
            found.for_each(|it| each(tree, it))
        }
        Some(())
    }

    fn compare(&mut self, comparison: Compare, left: Value<'t>, right: Value<'t>) -> Option<bool> {
        let is_equality = matches!(comparison, Compare::Eq | Compare::Neq);
        Some(match (left, right) {
            (left @ Value::Boolean(_), right) | (left, right @ Value::Boolean(_)) => {
                // Nodes compared with a boolean become one; for `=` the other side does too.
                let as_number = |value: Value<'t>| match value {
                    Value::Text(_) | Value::Number(_) if !is_equality => value.number(self.tree),
                    other => f64::from(u8::from(other.is_true())),
                };
                comparison.holds(as_number(left), as_number(right))
            }
            (Value::Nodes(left), Value::Nodes(right)) if is_equality => {
                self.have_in_common(&left, &right, comparison == Compare::Eq)?
            }
            (Value::Nodes(left), Value::Nodes(right)) => {
                // Any pair of nodes may decide, so the extremes of both do.
                let (left, right) = (self.least_and_most(&left)?, self.least_and_most(&right)?);
                let pairs = [(left.0, right.1), (left.1, right.0)];
                pairs.into_iter().any(|(left, right)| comparison.holds(left, right))
            }
            (Value::Nodes(nodes), other) => self.any_holds(&nodes, comparison, &other)?,
            (other, Value::Nodes(nodes)) => self.any_holds(&nodes, comparison.turned(), &other)?,
            (Value::Number(left), right) => comparison.holds(left, self.number_of(&right)?),
            (left, Value::Number(right)) => comparison.holds(self.number_of(&left)?, right),
            (left, right) if is_equality => {
                let (left, right) = (left.into_text(self.tree), right.into_text(self.tree));
                self.spend_text(left.len().min(right.len()))?;
                (left == right) == (comparison == Compare::Eq)
            }
            (left, right) => comparison.holds(self.number_of(&left)?, self.number_of(&right)?),
        })
    }

    /// Whether any of the nodes compares so with another value.
    fn any_holds(
        &mut self,
        nodes: &[NodeId],
        comparison: Compare,
        other: &Value<'t>,
    ) -> Option<bool> {
        let as_number = self.number_of(other)?;
        for node in nodes {
            let text = self.text_of(*node)?;
            let is_found = match (other, comparison) {
                (Value::Text(other), Compare::Eq) => text == other,
                (Value::Text(other), Compare::Neq) => text != other,
                _ => comparison.holds(number(text), as_number),
            };
            if is_found {
                return Some(true);
            }
        }
        Some(false)
    }

    /// Whether a text of one is (not) a text of the other.
    fn have_in_common(&mut self, left: &[NodeId], right: &[NodeId], same: bool) -> Option<bool> {
        let mut texts = HashSet::new();
        for node in left {
            texts.insert(self.text_of(*node)?);
        }
        for node in right {
            let text = self.text_of(*node)?;
            let is_found =
                if same { texts.contains(text) } else { texts.iter().any(|t| *t != text) };
            if is_found {
                return Some(true);
            }
        }
        Some(false)
    }

    /// The least and the greatest of the nodes' numbers; NaN if there are none.
    fn least_and_most(&mut self, nodes: &[NodeId]) -> Option<(f64, f64)> {
        let mut ends = (f64::NAN, f64::NAN);
        for node in nodes {
            let number = number(self.text_of(*node)?);
            ends = (ends.0.min(number), ends.1.max(number));
        }
        Some(ends)
    }

    fn call(
        &mut self,
        function: Body,
        arguments: &[Expression],
        focus: Focus,
    ) -> Option<Value<'t>> {
        let mut values = Vec::new();
        for argument in arguments {
            values.push(self.value(argument, focus)?);
        }
        let mut values = values.into_iter();
        // The default of an argument is the context node.
        let first = values.next().unwrap_or_else(|| Value::Nodes(vec![focus.node]));
        Some(match function {
            Body::Constant(is_true) => Value::Boolean(is_true),
            Body::Boolean(make) => Value::Boolean(make(first.is_true())),
            Body::Number(make) => Value::Number(make(self.number_of(&first)?)),
            Body::Position => Value::Number(focus.position as f64),
            Body::Last => Value::Number(focus.size as f64),
            Body::Count => Value::Number(first.into_nodes().len() as f64),
            Body::Sum => {
                let mut sum = 0.0;
                for node in first.into_nodes() {
                    sum += number(self.text_of(node)?);
                }
                Value::Number(sum)
            }
            Body::Name(make) => {
                let name = first.into_nodes().first().and_then(|node| self.tree.name(*node));
                self.spend_text(name.map_or(0, |name| name.local.len()))?;
                Value::Text(name.map(make).unwrap_or_default().into())
            }
            Body::Id => self.with_ids(first)?,
            Body::Concat => {
                let mut all = self.text(first)?.into_owned();
                for other in values {
                    all += &self.text(other)?;
                }
                Value::Text(all.into())
            }
            Body::Substring => {
                let text = self.text(first)?;
                let from = values.next().map_or(f64::NAN, |value| value.number(self.tree));
                let count = values.next().map_or(f64::INFINITY, |value| value.number(self.tree));
                Value::Text(substring(&text, from, count).into())
            }
            Body::Text(make) => {
                let (first, mut others) = (self.text(first)?, [const { Cow::Borrowed("") }; 2]);
                for (other, value) in others.iter_mut().zip(values) {
                    *other = self.text(value)?;
                }
                let [second, third] = others;
                make(&first, &second, &third)
            }
        })
    }

    /// XPath 1.0 §4.1, `id`: elements whose attribute `id` is one of these words.
    fn with_ids(&mut self, wanted: Value<'t>) -> Option<Value<'t>> {
        let mut words = HashSet::new();
        let mut add = |text: &str| words.extend(text.split_ascii_whitespace().map(str::to_owned));
        match wanted {
            Value::Nodes(nodes) => {
                for node in nodes {
                    add(self.text_of(node)?);
                }
            }
            other => add(&self.text(other)?),
        }
        let mut found = Vec::new();
        for node in 0..self.tree.len() {
            let is_id = self.tree.kind(node) == Kind::Attribute
                && self
                    .tree
                    .name(node)
                    .is_some_and(|name| name.prefix.is_none() && &*name.local == "id");
            if is_id && words.contains(self.text_of(node)?) {
                found.extend(self.tree.parent(node));
            }
            self.spend(1)?;
        }
        Some(Value::Nodes(in_order(found)))
    }

    fn number_of(&mut self, value: &Value<'t>) -> Option<f64> {
        if let Value::Nodes(nodes) = value
            && let Some(first) = nodes.first()
        {
            self.text_of(*first)?;
        }
        Some(value.number(self.tree))
    }

    fn text(&mut self, value: Value<'t>) -> Option<Cow<'t, str>> {
        let text = value.into_text(self.tree);
        self.spend_text(text.len())?;
        Some(text)
    }

    fn text_of(&mut self, node: NodeId) -> Option<&'t str> {
        let text = self.tree.text(node);
        self.spend_text(text.len())?;
        Some(text)
    }

    fn owned(&mut self, text: &str) -> Option<String> {
        self.spend_text(text.len())?;
        Some(text.to_owned())
    }

    fn spend_text(&mut self, bytes: usize) -> Option<()> {
        self.spend(1 + bytes / BYTES_A_STEP)
    }

    fn spend(&mut self, steps: usize) -> Option<()> {
        self.steps_left = self.steps_left.checked_sub(steps)?;
        Some(())
    }
}

fn children(tree: &Tree, node: NodeId) -> impl Iterator<Item = NodeId> {
    let below = if tree.kind(node) == Kind::Attribute { 0..0 } else { tree.below(node) };
    siblings(tree, below.start, below.end)
}

/// The node `from` and its siblings, up to `end`.
fn siblings(tree: &Tree, from: NodeId, end: NodeId) -> impl Iterator<Item = NodeId> {
    let next = move |node: &NodeId| Some(tree.below(*node).end).filter(|next| *next < end);
    std::iter::successors(Some(from).filter(|from| *from < end), next)
}

fn passes(tree: &Tree, test: &Test, axis: Axis, node: NodeId) -> bool {
    let wanted = if axis == Axis::Attribute { Kind::Attribute } else { Kind::Element };
    let kind = tree.kind(node);
    let has = |is_it: &dyn Fn(&Name) -> bool| kind == wanted && tree.name(node).is_some_and(is_it);
    match test {
        Test::Node => true,
        Test::Text => kind == Kind::Text,
        Test::Nothing => false,
        Test::Named => kind == wanted,
        Test::Prefix(prefix) => has(&|name| name.prefix.as_ref() == Some(prefix)),
        Test::Name(prefix, local) => has(&|name| name.prefix == *prefix && name.local == *local),
    }
}

fn in_order(mut nodes: Vec<NodeId>) -> Vec<NodeId> {
    if !nodes.is_sorted() {
        nodes.sort_unstable();
    }
    nodes.dedup();
    nodes
}
