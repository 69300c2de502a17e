//! A page as a tree: all nodes in document order in one list.
//!
//! The descendants of a node are a range of that list, and its text is a range of one string, so a
//! query costs no more than the nodes it visits.

use std::collections::HashMap;
use std::ops::Range;

pub(super) type NodeId = u32;

/// The root, which holds the outermost elements.
pub(super) const ROOT: NodeId = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Root,
    Element,
    Attribute,
    Text,
}

/// A name with its prefix, which is used as its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) prefix: Option<Box<str>>,
    pub(super) local: Box<str>,
}

#[derive(Clone, Debug)]
struct Node {
    kind: Kind,
    /// Index in [`Tree::names`]; only of elements and attributes.
    name: u32,
    parent: NodeId,
    /// The node after its attributes: its first child, if it has any.
    content: NodeId,
    /// The node after its last descendant.
    end: NodeId,
    /// In [`Tree::text`], or in [`Tree::values`] for an attribute.
    text: Range<usize>,
}

#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    names: Vec<Name>,
    text: String,
    values: String,
}

impl Tree {
    pub(super) fn len(&self) -> NodeId {
        self.nodes.len() as NodeId
    }

    pub(super) fn kind(&self, node: NodeId) -> Kind {
        self.node(node).map_or(Kind::Root, |node| node.kind)
    }

    /// Only elements and attributes have a name.
    pub(super) fn name(&self, node: NodeId) -> Option<&Name> {
        let node = self.node(node)?;
        let is_named = matches!(node.kind, Kind::Element | Kind::Attribute);
        self.names.get(node.name as usize).filter(|_| is_named)
    }

    pub(super) fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.node(node).filter(|_| node != ROOT).map(|node| node.parent)
    }

    pub(super) fn attributes(&self, node: NodeId) -> Range<NodeId> {
        self.node(node).map_or(0..0, |found| node + 1..found.content)
    }

    /// A node's descendants with their attributes, but not its own attributes.
    pub(super) fn below(&self, node: NodeId) -> Range<NodeId> {
        self.node(node).map_or(0..0, |found| found.content..found.end)
    }

    /// The string value (XPath 1.0 §5): all text of descendants, or the attribute's value.
    pub(super) fn text(&self, node: NodeId) -> &str {
        let Some(node) = self.node(node) else { return "" };
        let all = if node.kind == Kind::Attribute { &self.values } else { &self.text };
        all.get(node.text.clone()).unwrap_or_default()
    }

    fn node(&self, node: NodeId) -> Option<&Node> {
        self.nodes.get(node as usize)
    }
}

pub(super) struct Builder {
    tree: Tree,
    known: HashMap<Box<str>, u32>,
    /// From the outermost to the innermost; without elements that are too deep.
    open: Vec<NodeId>,
    depth_max: usize,
    begun: NodeId,
    tops: usize,
}

impl Builder {
    /// The content of elements deeper than `depth_max` is added to their parent.
    pub(super) fn new(depth_max: usize) -> Self {
        let root = Node { kind: Kind::Root, name: 0, parent: ROOT, content: 1, end: 1, text: 0..0 };
        let (names, text, values) = (Vec::new(), String::new(), String::new());
        let tree = Tree { nodes: vec![root], names, text, values };
        Self { tree, known: HashMap::new(), open: Vec::new(), depth_max, begun: ROOT, tops: 0 }
    }

    pub(super) fn open(&mut self, name: &str) {
        let parent = self.open.last().copied().unwrap_or(ROOT);
        self.tops += usize::from(parent == ROOT);
        let at = self.tree.text.len();
        self.begun = self.push(Kind::Element, name, parent, at..at);
        if self.open.len() < self.depth_max {
            self.open.push(self.begun);
        }
    }

    pub(super) fn attribute(&mut self, name: &str, value: &str) {
        let (element, start) = (self.begun, self.tree.values.len());
        self.tree.values.push_str(value);
        self.push(Kind::Attribute, name, element, start..start + value.len());
        let end = self.tree.len();
        if let Some(element) = self.tree.nodes.get_mut(element as usize) {
            (element.content, element.end) = (end, end);
        }
    }

    /// Adds text to the innermost open element; text outside of all elements is dropped.
    pub(super) fn text(&mut self, text: &str) {
        let Some(parent) = self.open.last().copied().filter(|_| !text.is_empty()) else { return };
        let start = self.tree.text.len();
        self.tree.text.push_str(text);
        let end = self.tree.text.len();
        match self.tree.nodes.last_mut() {
            // Adjacent texts are one node (XPath 1.0 §5.7).
            Some(last) if last.kind == Kind::Text && last.parent == parent => last.text.end = end,
            _ => {
                self.push(Kind::Text, "", parent, start..end);
            }
        }
    }

    /// Closes the innermost element with this name, and all elements in it.
    pub(super) fn close(&mut self, name: &str) {
        let Some(id) = self.known.get(name) else { return };
        let is_it = |node: &NodeId| self.tree.node(*node).is_some_and(|node| node.name == *id);
        if let Some(at) = self.open.iter().rposition(is_it) {
            self.close_from(at);
        }
    }

    /// Closes the innermost open element for which `is_it`, unless one for which `is_border` comes
    /// first. Neither is called for a name with a prefix.
    pub(super) fn close_within(
        &mut self,
        is_it: impl Fn(&str) -> bool,
        is_border: impl Fn(&str) -> bool,
    ) {
        for (at, node) in self.open.iter().enumerate().rev() {
            let name = self.tree.name(*node).filter(|name| name.prefix.is_none());
            let name = name.map_or("", |name| &name.local);
            if is_it(name) {
                return self.close_from(at);
            }
            if is_border(name) {
                return;
            }
        }
    }

    /// Returns the tree. Several outermost elements are put into an `html`.
    pub(super) fn finish(mut self) -> Tree {
        self.close_from(0);
        let (end, text) = (self.tree.len(), 0..self.tree.text.len());
        if let Some(root) = self.tree.nodes.first_mut() {
            (root.end, root.text) = (end, text.clone());
        }
        if self.tops > 1 {
            let name = self.name("html");
            for node in &mut self.tree.nodes {
                (node.parent, node.content, node.end) =
                    (node.parent + 1, node.content + 1, node.end + 1);
            }
            let all =
                Node { kind: Kind::Element, name, parent: ROOT, content: 2, end: end + 1, text };
            self.tree.nodes.insert(1, all);
            if let Some(root) = self.tree.nodes.first_mut() {
                (root.parent, root.content) = (ROOT, 1);
            }
        }
        self.tree
    }

    fn close_from(&mut self, at: usize) {
        let (end, text_end) = (self.tree.len(), self.tree.text.len());
        for node in self.open.drain(at.min(self.open.len())..) {
            if let Some(node) = self.tree.nodes.get_mut(node as usize) {
                (node.end, node.text.end) = (end, text_end);
            }
        }
    }

    fn push(&mut self, kind: Kind, name: &str, parent: NodeId, text: Range<usize>) -> NodeId {
        let node = self.tree.len();
        let name = if kind == Kind::Text { 0 } else { self.name(name) };
        self.tree.nodes.push(Node { kind, name, parent, content: node + 1, end: node + 1, text });
        node
    }

    fn name(&mut self, written: &str) -> u32 {
        if let Some(id) = self.known.get(written) {
            return *id;
        }
        let (prefix, local) = match written.split_once(':') {
            Some((prefix, local)) if !prefix.is_empty() && !local.is_empty() => {
                (Some(prefix.into()), local)
            }
            _ => (None, written),
        };
        let id = self.tree.names.len() as u32;
        self.tree.names.push(Name { prefix, local: local.into() });
        self.known.insert(written.into(), id);
        id
    }
}
