//! Several hosts.
