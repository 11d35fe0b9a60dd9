//! The project's own chores: `cargo run -p xtask -- COMMAND`.

mod tidy;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => tidy::run(root),
        _ => {
            eprintln!("usage: cargo run -p xtask -- tidy    check the rules of the house");
            ExitCode::from(2)
        }
    }
}
