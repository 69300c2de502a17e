//! The page at `/` if the declared channels are not those of the built-in chat.

use simurgh::declared::{ChannelKind, ChannelSpec, Reach};
use simurgh_page::svg::escaped;
use simurgh_proto::topic::Pattern;

use super::SOCKET_PATH;

/// A topic and the event of the chat page.
const ROOM: &str = "rooms:lobby";
const MESSAGE: &str = "new:msg";
/// Where clients of Supabase connect.
const SUPABASE_PATH: &str = "/realtime/v1";

/// Whether the chat page works with these channels: the first that matches its room passes its
/// messages on.
pub(super) fn serves_chat(specs: &[ChannelSpec]) -> bool {
    let Some(spec) = specs.iter().find(|spec| has_room(&spec.topic)) else { return false };
    let named = |name: &str| spec.event.iter().find(|event| event.name == name);
    let event = named(MESSAGE).or_else(|| named("*"));
    spec.kind == ChannelKind::Phoenix
        && !spec.deny.iter().any(|pattern| has_room(pattern))
        && event.is_some_and(|event| event.broadcast != Reach::None)
}

fn has_room(pattern: &str) -> bool {
    Pattern::parse(pattern).is_ok_and(|it| it.matches(ROOM))
}

/// The channels and addresses, and links to the server's own pages; `{{host}}` is this server.
pub(super) fn html(specs: &[ChannelSpec]) -> String {
    let row = |spec: &ChannelSpec| {
        let topic = if spec.topic.is_empty() { "realtime:*" } else { &spec.topic };
        let events: Vec<&str> = spec.event.iter().map(|event| event.name.as_str()).collect();
        let events = match spec.kind {
            ChannelKind::Supabase => "those of Supabase Realtime".to_owned(),
            ChannelKind::Phoenix => events.join(", "),
        };
        let (topic, events) = (escaped(topic), escaped(&events));
        format!("<tr><th scope=\"row\"><code>{topic}</code></th><td>{events}</td></tr>")
    };
    let rows: String = specs.iter().map(row).collect();
    let has_supabase = specs.iter().any(|spec| spec.kind == ChannelKind::Supabase);
    let paths = [SOCKET_PATH, SUPABASE_PATH].into_iter().take(1 + usize::from(has_supabase));
    let socket = |path| format!("<li><code>ws://{{{{host}}}}{path}/websocket</code></li>");
    let sockets: String = paths.map(socket).collect();
    format!(
        "<h2>Channels</h2><table><thead><tr><th>Topics</th><th>Events that members may send</th>\
         </tr></thead><tbody>{rows}</tbody></table>\
         <h2>Sockets</h2><ul>{sockets}</ul>\
         <h2>This server</h2><ul>\
         <li><a href=\"observer/\">Observer</a>: connections, topics and errors, live \
         (<code>docs/OBSERVER.md</code>)</li>\
         <li><a href=\"healthz\">Health</a>, for load balancers \
         (<code>docs/DEPLOYMENT.md</code>)</li>\
         <li>Your own page at this address: set <code>static_files</code> \
         (<code>docs/CONFIGURATION.md</code>)</li></ul>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use simurgh::declared::EventSpec;

    fn spec(topic: &str, event: &str, broadcast: Reach) -> ChannelSpec {
        let event = EventSpec { name: event.into(), broadcast, ..EventSpec::default() };
        ChannelSpec { topic: topic.into(), event: vec![event], ..ChannelSpec::default() }
    }

    #[test]
    fn chat_page_is_served_only_if_its_topic_and_event_are_declared() {
        for topic in ["rooms:*", "rooms:lobby", "*"] {
            assert!(serves_chat(&[spec(topic, "new:msg", Reach::All)]), "{topic}");
        }
        assert!(serves_chat(&[spec("x", "", Reach::None), spec("rooms:*", "*", Reach::Others)]));
        assert!(!serves_chat(&[spec("games:*", "new:msg", Reach::All)]));
        assert!(!serves_chat(&[spec("rooms:*", "move", Reach::All)]));
        assert!(!serves_chat(&[spec("rooms:*", "new:msg", Reach::None)]));
        let denied = ChannelSpec { deny: vec!["*".into()], ..spec("rooms:*", "*", Reach::All) };
        assert!(!serves_chat(&[denied]));
    }

    #[test]
    fn channel_names_are_escaped_in_html() {
        let html = html(&[spec("<b>:*", "a&b", Reach::All)]);
        assert!(html.contains("<code>&lt;b&gt;:*</code></th><td>a&amp;b</td>"), "{html}");
        assert!(html.contains("<code>ws://{{host}}/socket/websocket</code>"), "{html}");
        assert!(!html.contains("realtime"), "{html}");
    }
}
