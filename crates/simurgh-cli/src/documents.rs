//! What packages need besides the binary, made from the flags: completions and man pages.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap_complete::Shell;

use crate::{fail, print};

/// What can be typed after `simurgh completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Completions {
    /// The shell that is to complete.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// What can be typed after `simurgh man-pages`.
#[derive(Debug, clap::Args)]
pub(crate) struct ManPages {
    /// Where they go; made if it is not there.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

const AFTER_HELP: &str = "\
For one shell:       source <(simurgh completions bash)\n\
For all, with bash:  simurgh completions bash > /etc/bash_completion.d/simurgh\n\
The Debian package brings those of bash, fish and zsh.";

/// Prints the script that makes a shell complete this program's commands and flags.
pub(crate) fn completions(flags: &Completions, mut command: clap::Command) -> ExitCode {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut command, name, &mut script);
    print(&String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}

/// Writes a page for the program and one for each of its commands.
pub(crate) fn man_pages(flags: &ManPages, command: clap::Command) -> ExitCode {
    match write_pages(&flags.dir, command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("cannot write man pages to {}: {error}", flags.dir.display())),
    }
}

fn write_pages(dir: &Path, command: clap::Command) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(command, dir)
}
