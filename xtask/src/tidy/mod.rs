//! The rules of the house (docs/ARCHITECTURE.md) that the compiler does not check.

mod imports;
mod text;
mod tokens;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where the sources lie, from the root of the workspace.
const ROOTS: [&str; 6] = ["src", "crates", "lab", "xtask", "tests", "fuzz"];

/// A rule broken at a line.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: PathBuf,
    line: usize,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.what)
    }
}

/// Checks every source of the workspace and prints what breaks a rule.
pub(crate) fn run(root: &Path) -> ExitCode {
    let mut findings = Vec::new();
    let mut count = 0;
    for path in ROOTS.iter().flat_map(|dir| sources(&root.join(dir))) {
        let source = std::fs::read_to_string(&path).expect("a source is readable UTF-8");
        let path = path.strip_prefix(root).expect("found below the root");
        findings.extend(check(path, &source));
        count += 1;
    }
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {count} files, {} findings", findings.len());
    // No file to check is a wrong root, not a tidy house.
    if findings.is_empty() && count > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check(path: &Path, source: &str) -> Vec<Finding> {
    let found = text::check(path, source).into_iter().chain(imports::check(path, source));
    found.map(|(line, what)| Finding { path: path.to_owned(), line, what }).collect()
}

/// Every Rust source below a directory; build outputs left out.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && entry.file_name() != "target" {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}
