//! The manual pages in `man/` are those that this test makes from the header and the documentation of the sources. `IRONMAP_HEADER=write`
//! writes them.

#[path = "../../../../tests/house/src/api/c_header.rs"]
mod c_header;
mod page;
mod roff;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::c_header::Header;

fn dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header() -> Header {
    Header::parse(&fs::read_to_string(dir().join("include/ironmap.h")).unwrap())
}

/// The files in `man/`, sorted.
fn kept() -> Vec<PathBuf> {
    let mut kept: Vec<_> =
        fs::read_dir(dir().join("man")).unwrap().map(|entry| entry.unwrap().path()).collect();
    kept.sort();
    kept
}

/// Runs a program, and returns its output for errors. If the program is absent, the test is skipped by name.
fn complaints(test: &str, command: &mut Command) -> Option<String> {
    match command.output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            Some(if output.status.success() { text } else { format!("{}\n{text}", output.status) })
        }
        Err(_) => {
            let line =
                format!("SKIP {test}: needs the program {}\n", command.get_program().display());
            let _ = std::io::stderr().write_all(line.as_bytes());
            if let Some(log) = std::env::var_os("IRONMAP_SKIP_LOG") {
                let log = fs::OpenOptions::new().append(true).create(true).open(log);
                log.unwrap().write_all(line.as_bytes()).unwrap();
            }
            None
        }
    }
}

/// Each page is up to date, and no page is missing or left over.
#[test]
fn the_pages_are_those_of_the_sources() {
    let pages = page::pages(dir(), &header());
    if std::env::var_os("IRONMAP_HEADER").is_some_and(|what| what == "write") {
        for (name, text) in &pages {
            fs::write(dir().join("man").join(name), text).unwrap();
        }
    }
    for (name, text) in &pages {
        let kept = fs::read_to_string(dir().join("man").join(name)).unwrap_or_default();
        let advice = "run IRONMAP_HEADER=write cargo test -p ironmap-capi --test man";
        assert!(kept == *text, "man/{name} differs: {advice}");
    }
    let names: Vec<_> = pages.keys().map(|name| dir().join("man").join(name)).collect();
    assert_eq!(kept(), names);
}

/// Each function and each structure is described in one page. Each function has a text and a result.
#[test]
fn each_function_has_one_page() {
    let header = header();
    let pages = page::pages(dir(), &header);
    let count = |text: &str| pages.values().map(|page| page.matches(text).count()).sum::<usize>();
    assert!(header.functions.len() > 80, "the functions are found");
    for function in &header.functions {
        assert_eq!(count(&format!(".SS {}()\n.P\n", function.name)), 1, "{}", function.name);
        assert_eq!(count(&format!(".TP\n.BR {} ()\n", function.name)), 1, "{}", function.name);
    }
    for structure in header.structures.iter().filter(|structure| !structure.definition.is_empty()) {
        assert_eq!(count(&format!(".SS struct {}\n", structure.name)), 1, "{}", structure.name);
    }
}

/// groff accepts each page with all its warnings enabled.
#[test]
fn groff_has_no_warnings() {
    for page in kept() {
        let mut command = Command::new("groff");
        command.args(["-man", "-Tutf8", "-ww", "-z"]).arg(&page);
        let Some(complaints) = complaints("groff_has_no_warnings", &mut command) else { return };
        assert_eq!(complaints, "", "{}", page.display());
    }
}

/// The example of the overview compiles with all warnings, and so does the header in C++.
#[test]
fn the_example_compiles() {
    let name = "the_example_compiles";
    let options = ["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Iinclude"];
    let mut command = Command::new("cc");
    command.args(options).args(["-std=c99", "-D_GNU_SOURCE", "examples/read.c"]).current_dir(dir());
    let Some(found) = complaints(name, &mut command) else { return };
    assert_eq!(found, "");
    let mut command = Command::new("c++");
    command.args(options).args(["-x", "c++", "include/ironmap.h"]).current_dir(dir());
    let Some(found) = complaints(name, &mut command) else { return };
    assert_eq!(found, "");
}
