//! ws
