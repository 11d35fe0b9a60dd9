//! The library's public interface as a list, docs/public-api.txt: a change of the interface is a change of this file.

use std::collections::BTreeSet;
use std::fs;

use crate::shell::{Result, command, fail, has_rust, output, run, skip, target};

const LIST: &str = "docs/public-api.txt";
/// The version of Rust that makes the list: others name items of the standard library by other paths.
const TOOLCHAIN: &str = "1.95.0";

/// Compares the list with the code.
pub(crate) fn check() -> Result {
    let Some(now) = list()? else {
        return skip("public interface: needs Rust 1.95.0 and cargo-public-api");
    };
    let kept = fs::read_to_string(LIST)?;
    let (kept, now): (BTreeSet<_>, BTreeSet<_>) = (kept.lines().collect(), now.lines().collect());
    if kept == now {
        return Ok(());
    }
    kept.difference(&now).for_each(|line| println!("- {line}"));
    now.difference(&kept).for_each(|line| println!("+ {line}"));
    fail(format!(
        "the public interface is not that of {LIST}: if it should change, ./x api writes the list"
    ))
}

/// Writes the list again.
pub(crate) fn write() -> Result {
    match list()? {
        Some(list) => Ok(fs::write(LIST, list)?),
        None => fail("needs Rust 1.95.0 and cargo-public-api"),
    }
}

/// The items that users see, sorted. Modules that are hidden in the documentation are left out, and their items that another module shows are listed there:
/// for this the tool must see hidden items too.
fn list() -> Result<Option<String>> {
    if !has_rust(TOOLCHAIN) {
        return Ok(None);
    }
    let mut rustdoc =
        command(&format!("cargo +{TOOLCHAIN} rustdoc --quiet --lib --package ironmap"));
    rustdoc.args(["--", "-Z", "unstable-options", "--document-hidden-items"]);
    rustdoc.args(["--output-format", "json"]);
    // The options are unstable, and so is their form: it is that of one version.
    run(rustdoc.env("RUSTC_BOOTSTRAP", "1").env("CARGO_TARGET_DIR", target("api")))?;
    let mut tool = command("cargo public-api -sss --rustdoc-json");
    let Ok(all) = output(tool.arg(target("api/doc/ironmap.json"))) else { return Ok(None) };
    let mut hidden = hidden_modules("src/lib.rs", "ironmap::")?;
    hidden.extend(hidden_modules("src/fs/mod.rs", "ironmap::fs::")?);
    // It repeats what it exports.
    hidden.push("ironmap::prelude".to_owned());
    let is_shown = |line: &&str| {
        let subject = subject(line);
        let is_in = |module: &String| {
            let rest = subject.strip_prefix(module.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        subject.starts_with("ironmap") && !hidden.iter().any(is_in)
    };
    let lines: BTreeSet<_> = all.lines().filter(is_shown).collect();
    Ok(Some(lines.into_iter().flat_map(|line| [line, "\n"]).collect()))
}

/// The path that a line declares, or implements something for.
fn subject(line: &str) -> &str {
    let line = line.rsplit_once(" for ").map_or(line, |(_, implementor)| implementor);
    line.find("ironmap::").map_or(line, |at| {
        let path = &line[at..];
        let end = path.find(|c: char| !c.is_alphanumeric() && !matches!(c, ':' | '_'));
        &path[..end.unwrap_or(path.len())]
    })
}

/// The modules that a file declares below `#[doc(hidden)]`.
fn hidden_modules(file: &str, parent: &str) -> Result<Vec<String>> {
    let text = fs::read_to_string(file)?;
    let lines = text.lines().zip(text.lines().skip(1));
    let names = lines.filter(|(above, _)| above.starts_with("#[doc(hidden)]"));
    let names = names.filter_map(|(_, line)| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    Ok(names.map(|name| format!("{parent}{name}")).collect())
}
