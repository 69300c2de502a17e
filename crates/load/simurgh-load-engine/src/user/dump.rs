//! `tsung.dump`: the traffic, where a Tsung file asks for it (`dumptraffic`).
//!
//! `true` and `light` write one line for each payload, whole or its beginning; `protocol` writes a
//! line of fields for each answered request, in Tsung's order.

use simurgh_load_scenario::Dump;

use super::{Machine, Outputs};

/// Characters of a payload with `light`, as in Tsung.
const LIGHT_CHARS: usize = 44;
/// Characters of a payload otherwise: a dump is for reading.
const FULL_CHARS: usize = 16 << 10;

pub(crate) struct Exchange<'a> {
    /// HTTP method, or the kind of the request.
    pub(crate) method: &'a str,
    /// Path, URL or topic.
    pub(crate) what: &'a str,
    /// HTTP status, or the reply's.
    pub(crate) status: &'a str,
    pub(crate) bytes: u64,
    pub(crate) took_us: u64,
}

impl<O: Outputs> Machine<'_, O> {
    /// Dumps sent or received bytes, if enabled.
    #[inline]
    pub(super) fn dump_bytes(&mut self, sent: bool, payload: &[u8]) {
        let chars = match self.context.dump {
            Dump::Full => FULL_CHARS,
            Dump::Light => LIGHT_CHARS,
            Dump::Off | Dump::Protocol => return,
        };
        let text = String::from_utf8_lossy(payload.get(..4 * chars).unwrap_or(payload));
        // One line for each payload.
        let text: String = text.chars().take(chars).flat_map(escaped).collect();
        let direction = if sent { "Send" } else { "Recv" };
        self.out.dump(format!("{direction}:{}:{}:{text}", self.date(), self.user.id));
    }

    #[inline]
    pub(super) fn dump_exchange(&mut self, exchange: &Exchange<'_>) {
        if self.context.dump != Dump::Protocol {
            return;
        }
        let host = self.target().map_or("", |target| target.host.as_str());
        let transaction = self.user.extra_ref().and_then(|extra| extra.transactions.last());
        let names = &self.context.names;
        let transaction = transaction.map_or("-".to_owned(), |(id, _)| names.metric_name(*id));
        let Exchange { method, what, status, bytes, took_us } = exchange;
        self.out.dump(format!(
            "{};{};{};{method};{host};{};{status};{bytes};{:.3};{transaction};;;",
            self.date(),
            self.context.thread,
            self.user.id,
            what.chars().flat_map(escaped).collect::<String>().replace(';', "%3B"),
            *took_us as f64 / 1000.0,
        ));
    }

    fn date(&self) -> String {
        let now = self.context.values.unix();
        format!("{}.{:06}", now.as_secs(), now.subsec_micros())
    }
}

fn escaped(character: char) -> impl Iterator<Item = char> {
    let escape = matches!(character, '\n' | '\r' | '\0');
    let (one, other) =
        if escape { (None, Some(character.escape_default())) } else { (Some(character), None) };
    one.into_iter().chain(other.into_iter().flatten())
}
