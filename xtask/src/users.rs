//! Four users, each by a script in tests/users that uses only what README, docs and examples say: from a fresh checkout to the first right result.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Instant;

use crate::shell::{Result, command, fail, is_root, run, say, skip};

/// The script of each user, and whether it needs root.
const USERS: [(&str, bool); 4] =
    [("database", true), ("images", false), ("rescue", false), ("administrator", true)];

/// Clones the last commit into a directory of its own, builds there, and runs every script.
pub(crate) fn from_a_fresh_checkout() -> Result {
    let clone = std::env::temp_dir().join(format!("ironmap-users-{}", std::process::id()));
    say(format!("git clone to {}", clone.display()));
    let result = build(&clone).and_then(|programs| run_all(&programs));
    fs::remove_dir_all(&clone)?;
    result
}

fn build(clone: &Path) -> Result<PathBuf> {
    run(command("git clone --quiet .").arg(clone))?;
    let begin = Instant::now();
    let mut cargo = command("cargo build --profile demo --package ironmap-cli");
    run(cargo.current_dir(clone).env_remove("CARGO_TARGET_DIR"))?;
    println!("the program is built: {} s", begin.elapsed().as_secs());
    let begin = Instant::now();
    let mut cargo = command("cargo build --quiet --profile demo --example host_reader");
    run(cargo.current_dir(clone).env_remove("CARGO_TARGET_DIR"))?;
    println!("the example is built: {} s more", begin.elapsed().as_secs());
    Ok(clone.join("target/demo"))
}

/// Runs every script with the programs of this directory, each in an empty directory and a mount namespace of its own.
pub(crate) fn run_all(programs: &Path) -> Result {
    let scripts = std::env::current_dir()?.join("tests/users");
    let is_root = is_root()?;
    let mut failed = Vec::new();
    for (user, needs_root) in USERS {
        if needs_root && !is_root {
            skip(&format!("users::{user}: needs root"))?;
            continue;
        }
        let dir = std::env::temp_dir().join(format!("ironmap-{user}-{}", std::process::id()));
        fs::create_dir(&dir)?;
        let mut script = command(if is_root { "unshare --mount sh" } else { "sh" });
        let paths = [programs.to_owned(), programs.join("examples")];
        let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
        let path = std::env::join_paths(paths.into_iter().chain(system));
        let path = path.or_else(|error| fail(error.to_string()))?;
        script.arg(scripts.join(user).with_extension("sh")).env("PATH", path).current_dir(&dir);
        let begin = Instant::now();
        let Output { status, stdout, stderr } = script.output()?;
        fs::remove_dir_all(&dir)?;
        if status.success() {
            println!("{user}: right after {:.1} s", begin.elapsed().as_secs_f64());
        } else {
            let shown = [stdout, stderr].concat();
            println!("{user}: {status}\n{}", String::from_utf8_lossy(&shown));
            failed.push(user);
        }
    }
    if failed.is_empty() { Ok(()) } else { fail(format!("users failed: {}", failed.join(" "))) }
}
