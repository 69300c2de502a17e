//! The world of kept topics on several nodes held against itself.
