//! The live terminal view.
