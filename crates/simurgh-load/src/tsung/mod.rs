//! Tsung's XML.
