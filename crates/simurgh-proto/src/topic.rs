//! topic
