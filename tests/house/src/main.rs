//! Checks the house rules (docs/ARCHITECTURE.md) that the compiler does not check: `cargo run -p house`. With a directory as the argument,
//! the program prints the phrases to avoid in all sources of this directory, including unchecked ones. With `sample SEED`, it prints texts
//! for a reader to judge.

mod api;
mod blocks;
mod functions;
mod imports;
mod links;
mod packages;
mod sample;
mod text;
mod tokens;
mod walks;
mod words;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use proc_macro2::TokenStream;

/// The directories with sources, relative to the root of the workspace.
const ROOTS: [&str; 9] =
    ["benches", "crates", "examples", "fuzz", "integrations", "lab", "src", "tests", "xtask"];

/// The page that describes the path of some requests through the layers of the library.
const PAGE: &str = "docs/ARCHITECTURE.md";

fn main() -> io::Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    let count = match (args.next().as_deref(), args.next().and_then(|seed| seed.parse().ok())) {
        (None, _) => check_all()?,
        (Some("sample"), Some(seed)) => {
            sample::print(seed, &files("rs"), &pages()?)?;
            0
        }
        (Some(dir), _) => phrases(dir)?,
    };
    Ok(if count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks every Rust source of the workspace, the pages, the described paths of requests, the packages, and the table of the interfaces.
/// Prints each violation with its position. Returns the number of violations.
fn check_all() -> io::Result<usize> {
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))?;
    let files = files("rs");
    let page = std::fs::read_to_string(PAGE)?;
    let mut count = print(Path::new(PAGE), walks::check(&page, |file| Path::new(file).is_file()));
    for path in pages()? {
        let source = std::fs::read_to_string(&path)?;
        count += print(&path, words::check_page(&source));
        count += print(&path, blocks::check(&source));
        count += print(&path, links::check(&path, &source));
    }
    for path in &files {
        let source = std::fs::read_to_string(path)?;
        count += print(path, check(path, &source));
    }
    for (file, what) in packages::check()? {
        count += print(Path::new(&file), vec![(1, what)]);
    }
    for (file, line, what) in api::check(&files)? {
        count += print(Path::new(&file), vec![(line, what)]);
    }
    println!("{} files, {count} findings", files.len());
    Ok(count)
}

/// Prints the findings in a file, and returns the number of findings.
fn print(path: &Path, mut found: Vec<(usize, String)>) -> usize {
    found.sort();
    for (line, what) in &found {
        println!("{}:{line}: {what}", path.display());
    }
    found.len()
}

/// The violations in a file, with their lines.
fn check(path: &Path, source: &str) -> Vec<(usize, String)> {
    match source.parse::<TokenStream>() {
        Ok(stream) => {
            let mut found = text::check(path, source, stream.clone());
            found.extend(functions::check(stream.clone()));
            found.extend(imports::check(path, stream.clone()));
            found.extend(words::check_names(stream.clone()));
            if words::is_clean(path) {
                found.extend(words::check_comments(source));
                found.extend(words::check_strings(path, stream));
            }
            found
        }
        Err(error) => vec![(error.span().start().line, format!("no Rust: {error}"))],
    }
}

/// Prints the phrases to avoid in the comments and strings of all sources in a directory, including unchecked files. Returns their number.
fn phrases(dir: &str) -> io::Result<usize> {
    let mut count = 0;
    for path in files("rs").iter().filter(|path| path.starts_with(dir)) {
        let source = std::fs::read_to_string(path)?;
        let mut found = words::check_comments(&source);
        let strings = source.parse().map(|stream| words::check_strings(path, stream));
        found.extend(strings.unwrap_or_default());
        count += print(path, found);
    }
    println!("{count} phrases in {dir}");
    Ok(count)
}

/// The pages for readers, sorted.
fn pages() -> io::Result<Vec<PathBuf>> {
    let mut pages = blocks::pages(Path::new(""))?;
    pages.retain(|page| words::is_clean(page));
    Ok(pages)
}

/// All files of the workspace with this extension, sorted, without build outputs.
fn files(extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for root in ROOTS {
        find(Path::new(root), extension, &mut found);
    }
    found.sort();
    found
}

fn find(dir: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && entry.file_name() != "target" {
            find(&path, extension, found);
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_house_keeps_its_rules() {
        assert_eq!(check_all().unwrap(), 0);
        assert!(files("rs").len() > 900, "the sources are found");
    }
}
