//! The project's own chores: `cargo run -p xtask -- COMMAND`.

mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    // Asked of cargo at run time: a program built in one checkout may run in another that shares its target directory.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let Some(root) = manifest.as_deref().and_then(Path::parent) else {
        eprintln!(
            "xtask: cargo did not say where the workspace is: start it as cargo run -p xtask"
        );
        return ExitCode::from(2);
    };
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => tidy::run(root),
        _ => {
            eprintln!("usage: cargo run -p xtask -- tidy    check the rules of the house");
            ExitCode::from(2)
        }
    }
}
