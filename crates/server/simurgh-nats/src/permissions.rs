//! The permissions that a node needs at its broker.

use std::fmt;

use simurgh_cluster::Prefix;

/// The subjects of a node, as the `permissions` of a user of nats-server have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Subjects that it publishes to.
    pub publish: Vec<String>,
    /// Subjects that it subscribes to.
    pub subscribe: Vec<String>,
}

/// Requests to JetStream. `CREATE` and `UPDATE` are needed only by a node that makes streams.
const REQUESTS: [&str; 6] = [
    "STREAM.INFO",
    "STREAM.CREATE",
    "STREAM.UPDATE",
    "STREAM.PURGE",
    "STREAM.MSG.GET",
    "DIRECT.GET",
];

impl Permissions {
    /// The exact permissions of a node with this prefix. `streams` are the names of the JetStream
    /// streams; empty if nothing is stored.
    pub fn of(prefix: &Prefix, streams: &[&str]) -> Self {
        let prefix = prefix.as_str();
        let spaces = |letters: &[&str]| -> Vec<String> {
            letters.iter().map(|letter| format!("{prefix}.{letter}.>")).collect()
        };
        let nodes = [format!("{prefix}.n"), format!("{prefix}.n.*")];
        let (mut publish, mut subscribe) = (spaces(&["b", "p"]), spaces(&["b", "p"]));
        publish.extend(nodes.clone());
        subscribe.extend(nodes);
        let is_log = |name: &&str| name.ends_with("_L0");
        if !streams.iter().all(is_log) {
            publish.extend(spaces(&["h"]));
        }
        if streams.iter().any(is_log) {
            publish.extend(spaces(&["l"]));
        }
        if !streams.is_empty() {
            subscribe.push(format!("_INBOX_{prefix}.>"));
        }
        // A wildcard is a whole token, so each stream is named.
        for stream in streams {
            publish.extend(REQUESTS.map(|it| format!("$JS.API.{it}.{stream}")));
        }
        Self { publish, subscribe }
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "permissions {{")?;
        for (what, subjects) in [("publish", &self.publish), ("subscribe", &self.subscribe)] {
            writeln!(f, "  {what} = [")?;
            for subject in subjects {
                writeln!(f, "    {subject:?}")?;
            }
            writeln!(f, "  ]")?;
        }
        write!(f, "}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_cover_only_the_prefix() {
        let plain = Permissions::of(&Prefix::new("p-1").unwrap(), &[]);
        assert_eq!(plain.publish, ["p-1.b.>", "p-1.p.>", "p-1.n", "p-1.n.*"]);
        assert_eq!(plain.subscribe, plain.publish);
        let shown = plain.to_string();
        let lines: Vec<&str> = shown.lines().map(str::trim).collect();
        let listed = ["\"p-1.b.>\"", "\"p-1.p.>\"", "\"p-1.n\"", "\"p-1.n.*\"", "]"];
        let [publish, subscribe] = [&["publish = ["][..], &["subscribe = ["]];
        let all = [&["permissions {"], publish, &listed, subscribe, &listed, &["}"]].concat();
        assert_eq!(lines, all);
        let kept = Permissions::of(&Prefix::new("q").unwrap(), &["q_H"]);
        assert!(kept.publish.contains(&"q.h.>".to_owned()));
        assert!(kept.publish.contains(&"$JS.API.STREAM.INFO.q_H".to_owned()));
        assert!(kept.publish.contains(&"$JS.API.STREAM.PURGE.q_H".to_owned()));
        assert!(!kept.publish.iter().any(|it| it.ends_with("q_H.>")), "{:?}", kept.publish);
        assert!(kept.subscribe.contains(&"_INBOX_q.>".to_owned()));
        assert!(!kept.subscribe.contains(&"q.h.>".to_owned()));
        let log = Permissions::of(&Prefix::new("q").unwrap(), &["Q_L0"]);
        assert_eq!(log.publish[4..6], ["q.l.>", "$JS.API.STREAM.INFO.Q_L0"]);
        assert_eq!(log.subscribe.last().unwrap(), "_INBOX_q.>");
    }
}
