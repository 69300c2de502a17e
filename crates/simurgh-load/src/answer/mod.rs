//! What is taken from answers, and what they are held against.
