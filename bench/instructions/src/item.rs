//! One piece of work, and the program that lists such pieces or does one of them.

use std::fmt::Display;
use std::process::{self, ExitCode};

pub(crate) struct Item {
    pub(crate) name: &'static str,
    /// How often it is done; the figure shown is the count ÷ this.
    pub(crate) times: u32,
    /// The functions inside which instructions are collected, as callgrind's `--toggle-collect`
    /// takes them. None of them may be called by another.
    pub(crate) inside: &'static [&'static str],
    pub(crate) run: fn(u32),
}

pub(crate) fn run(mut items: impl Iterator<Item = &'static Item>) -> ExitCode {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    if wanted == "--list" {
        for Item { name, times, inside, .. } in items {
            println!("{name}\t{times}\t{}", inside.join("\t"));
        }
        return ExitCode::SUCCESS;
    }
    let Some(item) = items.find(|item| item.name == wanted) else {
        eprintln!("usage: {} --list | NAME", std::env::args().next().unwrap_or_default());
        return ExitCode::from(2);
    };
    (item.run)(item.times);
    ExitCode::SUCCESS
}

pub(crate) fn give_up(why: &dyn Display) -> ! {
    eprintln!("simurgh-instructions: {why}");
    process::exit(1)
}
