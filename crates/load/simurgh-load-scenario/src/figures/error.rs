//! Kinds of errors, each with one name in all outputs.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! kinds {
    ({$($(#[$doc:meta])* $variant:ident = $name:literal, $tsung:literal;)+}
     numbered
     {$($(#[$n_doc:meta])* $n_variant:ident = $n_name:literal, $n_tsung:literal;)+}) => {
        /// The kind of an error. `name` is stable and used in all outputs; `tsung` is the name in
        /// `tsung.log`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ErrorKind {
            $($(#[$doc])* $variant,)+
            $($(#[$n_doc])* $n_variant(u16),)+
        }

        impl ErrorKind {
            /// All kinds without a number.
            pub const PLAIN: &'static [Self] = &[$(Self::$variant,)+];

            /// The name in all outputs: `connect_refused`, `upgrade_status_404`, `closed_1011`.
            pub fn name(self) -> Cow<'static, str> {
                match self {
                    $(Self::$variant => Cow::Borrowed($name),)+
                    $(Self::$n_variant(number) => format!("{}{number}", $n_name).into(),)+
                }
            }

            /// The name in `tsung.log`, Tsung's own where it has one.
            pub fn tsung(self) -> Cow<'static, str> {
                match self {
                    $(Self::$variant => Cow::Borrowed($tsung),)+
                    $(Self::$n_variant(number) => format!("{}{number}", $n_tsung).into(),)+
                }
            }

            fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => return Some(Self::$variant),)+
                    _ => {}
                }
                $(if let Some(Ok(number)) = name.strip_prefix($n_name).map(str::parse) {
                    // `+5` and `007` would be other names of the same kind.
                    return Some(Self::$n_variant(number)).filter(|kind| kind.name() == name);
                })+
                None
            }
        }
    };
}

kinds! {{
    /// No process listens there.
    ConnectRefused = "connect_refused", "error_connect_econnrefused";
    /// No connection in time.
    ConnectTimeout = "connect_timeout", "error_connect_etimedout";
    /// No route to the host or network.
    ConnectUnreachable = "connect_unreachable", "error_connect_ehostunreach";
    /// Reset while connecting.
    ConnectReset = "connect_reset", "error_connect_econnreset";
    /// Any other failure to connect.
    ConnectOther = "connect_other", "error_connect_unknown";
    /// This process has reached its limit of descriptors.
    NoDescriptors = "no_descriptors", "error_connect_emfile";
    /// No free local port or address.
    NoPorts = "no_ports", "error_connect_eaddrinuse";
    /// The kernel has no memory for another socket.
    NoMemory = "no_memory", "error_connect_enomem";
    /// The TLS handshake failed, or the certificate is not trusted.
    Tls = "tls", "error_connect_tls";
    /// The answer to the upgrade is not a valid WebSocket handshake.
    UpgradeWrong = "upgrade_wrong", "error_upgrade_wrong";
    /// No answer to the upgrade in time.
    UpgradeTimeout = "upgrade_timeout", "error_upgrade_timeout";
    /// A join was answered with a status other than `ok`.
    JoinRefused = "join_refused", "error_join_refused";
    /// No reply to a join in time.
    JoinTimeout = "join_timeout", "error_join_timeout";
    /// A push was answered with a different status than the scenario requires.
    ReplyError = "reply_error", "error_reply";
    /// No answer to a message, push or request in time.
    ReplyTimeout = "reply_timeout", "error_timeout";
    /// An awaited frame did not come in time.
    WaitTimeout = "wait_timeout", "error_wait_timeout";
    /// The server ended a channel (`phx_error`, `phx_close`) that the user still used.
    ChannelClosed = "channel_closed", "error_channel_closed";
    /// The connection was reset.
    ConnectionReset = "connection_reset", "error_inet_econnreset";
    /// The connection ended without a close frame.
    EndOfStream = "end_of_stream", "error_closed";
    /// Sending failed.
    Send = "send", "error_send";
    /// The server does not read, and the data waiting to be sent exceeds its bound.
    SendStalled = "send_stalled", "error_send_stalled";
    /// A frame that violates RFC 6455.
    FrameError = "frame_error", "error_frame";
    /// A message larger than this tool accepts.
    MessageTooLarge = "message_too_large", "error_message_too_large";
    /// A text frame in a Phoenix session that is not a Channels message.
    MessageMalformed = "message_malformed", "error_message_malformed";
    /// An HTTP answer that cannot be parsed.
    HttpMalformed = "http_malformed", "error_no_http_status";
    /// A check of the scenario failed and ended the user.
    CheckFailed = "check_failed", "error_check_failed";
    /// A variable was used before it was set.
    VariableUndefined = "variable_undefined", "error_variable_undefined";
    /// A capture found nothing.
    CaptureEmpty = "capture_empty", "error_capture_empty";
    /// A loop or condition could not be evaluated.
    Condition = "condition", "error_if_undef";
    /// The scenario ended the run.
    RunAborted = "run_aborted", "error_abort";
    /// Users of a lost worker or agent.
    WorkerLost = "worker_lost", "error_worker_lost";
    /// A bug of the load generator.
    Internal = "internal", "error_unknown";
} numbered {
    /// The upgrade was answered with this status instead of 101.
    UpgradeStatus = "upgrade_status_", "error_upgrade_";
    /// The server closed a used WebSocket with this code (1005: with none).
    Closed = "closed_", "error_closed_";
    /// An HTTP answer had this status, which the scenario does not allow.
    HttpStatus = "http_status_", "error_http_";
    /// A poll or a POST of a long-poll session was answered with this status, which ends the
    /// session: 410 when the server no longer knows it.
    LongPollStatus = "longpoll_status_", "error_longpoll_";
}}

impl ErrorKind {
    /// Whether it is a failed attempt to connect.
    pub fn is_connect(self) -> bool {
        use ErrorKind as E;
        matches!(
            self,
            E::ConnectRefused
                | E::ConnectTimeout
                | E::ConnectUnreachable
                | E::ConnectReset
                | E::ConnectOther
                | E::NoDescriptors
                | E::NoPorts
                | E::NoMemory
                | E::Tls
        )
    }

    /// Whether the fault is of connection or server, so that another server may work.
    pub fn is_of_connection(self) -> bool {
        use ErrorKind as E;
        let is_own = matches!(self, E::NoDescriptors | E::NoPorts | E::NoMemory);
        let is_end = matches!(
            self,
            E::UpgradeWrong
                | E::UpgradeTimeout
                | E::UpgradeStatus(_)
                | E::JoinTimeout
                | E::ReplyTimeout
                | E::ConnectionReset
                | E::EndOfStream
                | E::Send
                | E::SendStalled
                | E::FrameError
                | E::HttpMalformed
                | E::HttpStatus(_)
                | E::LongPollStatus(_)
                | E::Closed(_)
        );
        is_end || self.is_connect() && !is_own
    }

    /// The kind for a connection that could not be begun.
    pub fn of_connect(error: &io::Error) -> Self {
        // Linux' numbers; on macOS these three are the same or fall to the kinds below.
        match error.raw_os_error() {
            Some(23 | 24) => Self::NoDescriptors,
            Some(12 | 105) => Self::NoMemory,
            _ => Self::of_unconnected(error.kind()),
        }
    }

    /// The kind for a connection that was not established.
    pub fn of_unconnected(kind: io::ErrorKind) -> Self {
        match kind {
            io::ErrorKind::ConnectionRefused => Self::ConnectRefused,
            io::ErrorKind::ConnectionReset => Self::ConnectReset,
            io::ErrorKind::TimedOut => Self::ConnectTimeout,
            io::ErrorKind::AddrNotAvailable | io::ErrorKind::AddrInUse => Self::NoPorts,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                Self::ConnectUnreachable
            }
            io::ErrorKind::OutOfMemory => Self::NoMemory,
            _ => Self::ConnectOther,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name())
    }
}

impl FromStr for ErrorKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::named(name).ok_or_else(|| format!("{name:?} is not a kind of error"))
    }
}

impl Serialize for ErrorKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

impl<'de> Deserialize<'de> for ErrorKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<'de, str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn error_names_parse_back_to_their_kind() {
        let numbered = [ErrorKind::UpgradeStatus(404), ErrorKind::Closed(1011)];
        let more = [ErrorKind::HttpStatus(500), ErrorKind::LongPollStatus(410)];
        let all = ErrorKind::PLAIN.iter().chain(&numbered).chain(&more);
        let mut names = BTreeSet::new();
        for kind in all {
            assert_eq!(kind.name().parse::<ErrorKind>().as_ref(), Ok(kind));
            assert!(names.insert(kind.name()), "{kind} twice");
            assert!(kind.tsung().starts_with("error_"), "{kind}");
        }
    }

    #[test]
    fn misspelled_error_names_are_refused() {
        for name in ["closed_", "closed_x", "closed_+1", "closed_01", "closed_70000", "", "Tls"] {
            assert!(name.parse::<ErrorKind>().is_err(), "{name}");
        }
    }
}
