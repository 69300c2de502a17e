//! Generates completions and man pages from the flags, for packages.

use std::path::{Path, PathBuf};

use clap_complete::Shell;
use clap_mangen::Man;

use crate::version;

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Completions {
    /// Shell to print the script for.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ManPages {
    /// Directory for the pages; created if it does not exist.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

const AFTER_HELP: &str = "\
For one shell:       source <(simurgh completions bash)\n\
For all, with bash:  simurgh completions bash > /etc/bash_completion.d/simurgh\n\
The Debian package includes those of bash, fish and zsh.";

/// The script for shell completion of commands and flags.
pub(crate) fn completions(flags: &Completions, mut command: clap::Command) -> String {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut command, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Writes a page for the program and one for each command.
pub(crate) fn man_pages(flags: &ManPages, command: clap::Command) -> Result<(), String> {
    // Its pages would repeat those of the commands.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    std::fs::create_dir_all(&flags.dir)
        .and_then(|()| write_page(&flags.dir, &command))
        .map_err(|error| format!("cannot write man pages to {}: {error}", flags.dir.display()))
}

/// The page of a command and its subcommands: `simurgh-load.1`, `simurgh-load-check.1`.
fn write_page(dir: &Path, command: &clap::Command) -> std::io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let version = version::VERSION;
    let page = Man::new(command.clone())
        .title(name.to_uppercase())
        .date(version::DATE)
        .source(format!("Simurgh {version}"))
        .manual("Simurgh");
    let mut text = Vec::new();
    page.render(&mut text)?;
    std::fs::write(dir.join(format!("{name}.1")), text)?;
    command.get_subcommands().filter(|it| !it.is_hide_set()).try_for_each(|it| write_page(dir, it))
}
