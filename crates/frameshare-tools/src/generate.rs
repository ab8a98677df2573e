// SPDX-License-Identifier: MIT OR Apache-2.0

//! Completions and man pages, for the installation.

use crate::{cli::Arguments, error::Error};
use clap::CommandFactory;
use clap_complete::Shell;
use std::{io, path::Path};

/// Writes the completions of each shell and the man page of each command.
pub fn generate(folder: &Path) -> Result<(), Error> {
    let failed = |source: io::Error| Error::File { path: folder.to_owned(), source };
    std::fs::create_dir_all(folder).map_err(failed)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Arguments::command(), "frameshare", folder).map_err(failed)?;
    }
    clap_mangen::generate_to(Arguments::command(), folder).map_err(failed)
}
