//! A Debian package of the program, by cargo-deb: crates/ironmap-cli/Cargo.toml lists its files.

mod clean_root;

use std::fs;
use std::process::Command;

pub(crate) use clean_root::test;

use crate::shell::{self, Result, command, ironmap, output, say, target};

/// Builds the program for release, and the package from it: into target/debian, if the arguments for cargo-deb name no other path.
pub(crate) fn run(args: &[&str]) -> Result {
    say("debian package");
    let program = ironmap()?;
    let made = target("release/deb");
    let _ = fs::remove_dir_all(&made);
    fs::create_dir_all(made.join("man"))?;
    shell::run(Command::new(&program).arg("man").arg(made.join("man")))?;
    // cargo-deb compresses no file of cargo's target directory.
    shell::run(command("gzip -9nr").arg(made.join("man")))?;
    for shell in ["bash", "zsh", "fish"] {
        let completions = output(Command::new(&program).args(["completions", shell]))?;
        fs::write(made.join(shell), completions)?;
    }
    // xz(1) compresses: the tool's own code is built without optimization.
    let mut deb = command("cargo deb --quiet --locked --no-build --strip --compress-system");
    shell::run(deb.args(["-p", "ironmap-cli"]).args(args))
}
