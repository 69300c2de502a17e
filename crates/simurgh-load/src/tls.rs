//! TLS as a client.
