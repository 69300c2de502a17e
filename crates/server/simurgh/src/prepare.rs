//! Settings as the shards take them.

use simurgh_reactor as reactor;
use simurgh_shard::config::{Config, cores};

use crate::tls;

/// Descriptors of the process's own table for other things than HTTP connections: wakers,
/// hand-offs, files.
const HTTP_RESERVE: usize = 512;

/// Limits shards and HTTP connections to the available descriptors.
pub(crate) fn fit_into_descriptors(config: &mut Config) {
    let (descriptors, _) = reactor::raise_descriptor_limit();
    let most = usize::try_from(descriptors).unwrap_or(usize::MAX).saturating_sub(HTTP_RESERVE);
    if let Some(most) = config.max_connections {
        config.shards = config.shards.max(reactor::shards_for(most, descriptors));
    }
    config.shards = config.shards.clamp(1, usize::from(u16::MAX));
    // The sockets that the shards listen on are in this table, too.
    let listening = config.shards * config.addresses().count();
    config.http.fit(most.saturating_sub(listening), config.has_admin());
}

#[allow(clippy::field_reassign_with_default, reason = "the struct is non-exhaustive")]
pub(crate) fn reactor_config(
    config: &Config,
    tls: &tls::Prepared,
    index: usize,
) -> reactor::Config {
    let mut reactor = reactor::Config::default();
    reactor.outbound_bytes_max = config.outbound_bytes_max;
    reactor.outbound_budget_bytes = config.outbound_budget_bytes;
    reactor.slow_after = Some(config.slow_after);
    reactor.half_close = true;
    reactor.linger = config.close_timeout;
    reactor.tls.clone_from(&tls.listeners);
    reactor.has_header = config.proxy_protocol;
    reactor.core = config.pin_shards.then_some(index % cores());
    reactor
}
