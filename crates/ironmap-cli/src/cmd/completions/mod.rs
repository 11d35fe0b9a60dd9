//! `ironmap completions`: writes completion scripts for shells.

use std::io::Write;

use clap_complete::Shell;

use ironmap_image::Failure;

use crate::terminal::stdout;

/// Writes a completion script for a shell to standard output
///
/// In bash, zsh and fish, the script also completes VOLUME:/PATH with the names in the volume.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap completions bash > /etc/bash_completion.d/ironmap
  ironmap completions fish > ~/.config/fish/completions/ironmap.fish")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// `program` is the parser of the command line, with all subcommands.
pub(crate) fn run(args: &Args, mut program: clap::Command) -> Result<(), Failure> {
    // The generator panics if a write fails. A write to memory cannot fail.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "ironmap", &mut script);
    let script = with_names(args.shell, &String::from_utf8_lossy(&script));
    let mut out = stdout();
    out.write_all(script.as_bytes())?;
    Ok(out.flush()?)
}

/// The first line of the functions for bash and zsh.
const BEGIN: &str = "\n_ironmap() {\n";

/// Adds a call of `ironmap complete` to the generated script. The script makes this call for words that contain a path in a volume.
fn with_names(shell: Shell, script: &str) -> String {
    let first = |ask: &str, names: &str| {
        // The script for bash begins directly with the function, but `BEGIN` begins with a newline. Therefore a newline is added here.
        let script = format!("\n{script}");
        let script = script.replacen(BEGIN, &format!("\n{names}{BEGIN}    {ask} && return 0\n"), 1);
        script.trim_start().to_owned()
    };
    match shell {
        Shell::Bash => first("_ironmap_names \"$1\"", include_str!("names.bash")),
        Shell::Zsh => first("_ironmap_names", include_str!("names.zsh")),
        Shell::Fish => [script, include_str!("names.fish")].concat(),
        _ => script.to_owned(),
    }
}
