//! The components of a core, for tests.

use simurgh_channel::Node;
use simurgh_channel::metrics::ShardMetrics;

use super::Core;
use super::channels::Channels;
use crate::application::Application;
use crate::fanout::{Fanout, Registry};
use crate::history::Histories;

impl<N: Node> Core<N> {
    pub(crate) fn metrics(&self) -> &ShardMetrics {
        &self.metrics
    }

    pub(crate) fn channels(&mut self) -> &mut Channels<N> {
        &mut self.channels
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.channels.registry
    }

    pub(crate) fn fanout(&self) -> &Fanout<N> {
        &self.channels.fanout
    }

    pub(crate) fn histories(&self) -> &Histories<N> {
        &self.channels.histories
    }

    pub(crate) fn parts(&mut self) -> (&mut Registry, &mut Fanout<N>, &mut Histories<N>) {
        let Channels { registry, fanout, histories, .. } = &mut self.channels;
        (registry, fanout, histories)
    }

    pub(crate) fn application(&mut self) -> &mut Application<N> {
        &mut self.channels.application
    }
}
