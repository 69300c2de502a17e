//! The state of the observer and its keys, without a terminal or a server.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use simurgh::observe::view::{
    ClusterOverview, ConnectionRow, List, Members, Overview, Point, TopicRow,
};

use super::client::encoded;
use super::columns::{ERRORS, NODES, SHARDS, Sort};
use super::fetch::{Action, Update, Wanted};

/// Points of the history: five minutes.
const POINTS_MAX: usize = 300;
const ROWS: usize = 100;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum View {
    #[default]
    Overview,
    Shards,
    Topics,
    Connections,
    Errors,
    /// Only for a server that is one of several nodes.
    Cluster,
}

impl View {
    pub(super) const ALL: [(Self, &'static str); 6] = [
        (Self::Overview, "overview"),
        (Self::Shards, "shards"),
        (Self::Topics, "topics"),
        (Self::Connections, "connections"),
        (Self::Errors, "errors"),
        (Self::Cluster, "cluster"),
    ];

    fn place(self) -> usize {
        Self::ALL.iter().position(|(view, _)| *view == self).unwrap_or(0)
    }
}

/// Shown in place of a list.
#[derive(Debug)]
pub(super) enum Detail {
    Members(Members),
    Connection(Box<ConnectionRow>),
}

/// A question in the last line.
#[derive(Debug)]
pub(super) enum Prompt {
    /// Part of a topic's name, or the address of a peer.
    Search(String),
    /// Confirms closing this connection.
    Disconnect(String),
}

/// The order of a list that the server sorts: a word of its query for each of the first columns.
#[derive(Default)]
pub(super) struct ListOrder {
    words: &'static [&'static str],
    pub(super) at: usize,
}

impl ListOrder {
    pub(super) fn word(&self) -> &'static str {
        self.words.get(self.at).copied().unwrap_or_default()
    }

    fn next(&mut self) {
        self.at = (self.at + 1) % self.words.len();
    }
}

#[derive(Default)]
pub(super) struct App {
    pub(super) base: String,
    pub(super) view: View,
    pub(super) overview: Option<Overview>,
    pub(super) points: Vec<Point>,
    pub(super) topics: Option<List<TopicRow>>,
    pub(super) connections: Option<List<ConnectionRow>>,
    pub(super) cluster: Option<ClusterOverview>,
    pub(super) topics_by: ListOrder,
    pub(super) connections_by: ListOrder,
    pub(super) search: String,
    pub(super) peer: String,
    pub(super) shards_sort: Sort,
    pub(super) errors_sort: Sort,
    pub(super) nodes_sort: Sort,
    pub(super) selected: usize,
    pub(super) detail: Option<Detail>,
    pub(super) prompt: Option<Prompt>,
    pub(super) note: Option<String>,
    /// The error if the server does not respond.
    pub(super) unreachable: Option<String>,
}

impl App {
    pub(super) fn new(base: &str) -> Self {
        Self {
            base: base.to_owned(),
            topics_by: ListOrder { words: &["members", "deliveries", "kept"], at: 0 },
            connections_by: ListOrder { words: &["queue", "rate", "age", "channels"], at: 2 },
            errors_sort: Sort { column: 1, is_falling: true },
            ..Self::default()
        }
    }

    pub(super) fn update(&mut self, update: Update) {
        match update {
            Update::Overview(overview) => self.figures(*overview),
            Update::Topics(list) => self.topics = Some(list),
            Update::Connections(list) => self.connections = Some(list),
            Update::Cluster(cluster) => self.cluster = Some(*cluster),
            Update::Members(members) => self.show(Detail::Members(members)),
            Update::Connection(row) => self.show(Detail::Connection(row)),
            Update::Done(text) | Update::Failed(text) => self.note = Some(text),
            Update::Unreachable(text) => self.unreachable = Some(text),
        }
        self.selected = self.selected.min(self.rows().saturating_sub(1));
    }

    fn figures(&mut self, mut overview: Overview) {
        self.unreachable = None;
        let history = std::mem::take(&mut overview.history);
        for point in history.into_iter().chain([overview.now.clone()]) {
            let last = self.points.last().map_or(0.0, |last| last.at_unix_s);
            if point.at_unix_s > last {
                self.points.push(point);
            }
        }
        let over = self.points.len().saturating_sub(POINTS_MAX);
        self.points.drain(..over);
        self.overview = Some(overview);
        if self.view == View::Cluster && self.views().len() < View::ALL.len() {
            self.go(View::Overview);
        }
    }

    /// The view of a cluster is for nodes only.
    pub(super) fn views(&self) -> &'static [(View, &'static str)] {
        let is_alone = self.overview.as_ref().is_none_or(|it| it.cluster.is_none());
        View::ALL.split_at(View::ALL.len() - usize::from(is_alone)).0
    }

    fn at(&self, place: usize) -> View {
        let views = self.views();
        views.get(place % views.len().max(1)).map_or(View::Overview, |(view, _)| *view)
    }

    fn show(&mut self, detail: Detail) {
        self.detail = Some(detail);
        self.selected = 0;
    }

    pub(super) fn wanted(&self) -> Wanted {
        match self.view {
            View::Topics => {
                let by = self.topics_by.word();
                Wanted::Topics(format!("by={by}&most={ROWS}&search={}", encoded(&self.search)))
            }
            View::Connections => {
                let by = self.connections_by.word();
                Wanted::Connections(format!("by={by}&most={ROWS}&peer={}", encoded(&self.peer)))
            }
            View::Cluster => Wanted::Cluster,
            View::Overview | View::Shards | View::Errors => Wanted::Nothing,
        }
    }

    fn rows(&self) -> usize {
        match (&self.detail, self.view) {
            (Some(Detail::Members(members)), _) => members.rows.len(),
            (Some(Detail::Connection(_)), _) | (None, View::Overview) => 0,
            (None, View::Shards) => self.overview.as_ref().map_or(0, |it| it.shards.len()),
            (None, View::Errors) => self.overview.as_ref().map_or(0, |it| it.errors.len()),
            (None, View::Topics) => self.topics.as_ref().map_or(0, |it| it.rows.len()),
            (None, View::Cluster) => self.cluster.as_ref().map_or(0, |it| it.nodes.len()),
            (None, View::Connections) => self.connections.as_ref().map_or(0, |it| it.rows.len()),
        }
    }

    fn connection(&self) -> Option<&ConnectionRow> {
        match (&self.detail, self.view) {
            (Some(Detail::Connection(row)), _) => Some(row),
            (Some(Detail::Members(members)), _) => members.rows.get(self.selected),
            (None, View::Connections) => self.connections.as_ref()?.rows.get(self.selected),
            _ => None,
        }
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Action::Quit,
                _ => Action::None,
            };
        }
        self.note = None;
        match self.prompt.take() {
            Some(Prompt::Search(text)) => self.typed(key.code, text),
            Some(Prompt::Disconnect(id)) => match key.code {
                KeyCode::Char('y' | 'Y') => Action::Disconnect(id),
                _ => Action::None,
            },
            None => self.command(key.code),
        }
    }

    /// Handles a key while a text is typed.
    fn typed(&mut self, key: KeyCode, mut text: String) -> Action {
        const LENGTH_MAX: usize = 256;
        match key {
            KeyCode::Esc => return Action::None,
            KeyCode::Enter => {
                self.selected = 0;
                match self.view {
                    View::Connections => self.peer = text,
                    _ => self.search = text,
                }
                return Action::None;
            }
            KeyCode::Backspace => {
                text.pop();
            }
            KeyCode::Char(c) if text.len() < LENGTH_MAX => text.push(c),
            _ => {}
        }
        self.prompt = Some(Prompt::Search(text));
        Action::None
    }

    fn command(&mut self, key: KeyCode) -> Action {
        match key {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc if self.detail.is_some() => self.detail = None,
            KeyCode::Esc if !(self.search.is_empty() && self.peer.is_empty()) => {
                self.search.clear();
                self.peer.clear();
            }
            KeyCode::Esc => return Action::Quit,
            KeyCode::Tab | KeyCode::Right => self.go(self.at(self.view.place() + 1)),
            KeyCode::BackTab | KeyCode::Left => {
                self.go(self.at(self.view.place() + self.views().len() - 1));
            }
            KeyCode::Char(digit @ '1'..='6') => {
                let place = digit as usize - '1' as usize;
                if place < self.views().len() {
                    self.go(self.at(place));
                }
            }
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::PageDown => self.select(20),
            KeyCode::PageUp => self.select(-20),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.select(isize::MAX),
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('r') => self.reverse(),
            KeyCode::Char('/') if matches!(self.view, View::Topics | View::Connections) => {
                self.detail = None;
                self.prompt = Some(Prompt::Search(String::new()));
            }
            KeyCode::Char('d') => self.ask_to_disconnect(),
            KeyCode::Enter => return self.enter(),
            _ => {}
        }
        Action::None
    }

    pub(super) fn go(&mut self, view: View) {
        self.view = view;
        self.detail = None;
        self.selected = 0;
    }

    fn select(&mut self, by: isize) {
        let last = self.rows().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }

    fn sort_by_next(&mut self) {
        match self.view {
            View::Shards => self.shards_sort.next(SHARDS),
            View::Errors => self.errors_sort.next(ERRORS),
            View::Cluster => self.nodes_sort.next(NODES),
            View::Topics => self.topics_by.next(),
            View::Connections => self.connections_by.next(),
            View::Overview => {}
        }
    }

    fn reverse(&mut self) {
        let sort = match self.view {
            View::Shards => &mut self.shards_sort,
            View::Errors => &mut self.errors_sort,
            View::Cluster => &mut self.nodes_sort,
            View::Overview | View::Topics | View::Connections => return,
        };
        sort.is_falling ^= true;
    }

    fn ask_to_disconnect(&mut self) {
        let Some(id) = self.connection().map(|row| row.id.clone()) else { return };
        if self.overview.as_ref().is_some_and(|overview| overview.can_disconnect) {
            self.prompt = Some(Prompt::Disconnect(id));
        } else {
            let text = "to disconnect clients here, set api_token on the server";
            self.note = Some(text.to_owned());
        }
    }

    fn enter(&mut self) -> Action {
        if let Some(row) = self.connection() {
            return Action::Connection(row.id.clone());
        }
        let is_topic = self.detail.is_none() && self.view == View::Topics;
        let topics = self.topics.as_ref().filter(|_| is_topic);
        match topics.and_then(|list| list.rows.get(self.selected)) {
            Some(row) if row.cut => {
                self.note = Some("the name is too long for a search".to_owned());
                Action::None
            }
            Some(row) => Action::Members(row.topic.clone()),
            None => Action::None,
        }
    }
}
