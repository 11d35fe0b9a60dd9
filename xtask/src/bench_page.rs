//! `./x bench-page`: makes the tables of the benchmark pages from the files in docs/bench.
//!
//! A table is between two comments. The first comment names the file. With `all`, the table contains all rows and columns of the file.
//! Without `all`, the table contains only the rows and columns that the file selects for the page.
//!
//!     <!-- bench NAME -->
//!     <!-- bench NAME all -->
//!     <!-- bench end -->

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::Result;
use crate::bench_table::{Table, text, texts};

/// The pages with tables, relative to the root of the workspace.
const PAGES: [&str; 3] = ["docs/BENCHMARKS.md", "docs/bench/NOTES.md", "docs/RESCUE.md"];
const FILES: &str = "docs/bench";

const BEGIN: &str = "<!-- bench ";
const END: &str = "<!-- bench end -->";

/// The content of each file, by its name.
type Files = BTreeMap<String, Value>;

/// Writes the tables of all pages. The current directory must be the root of the workspace.
pub(crate) fn write(root: &Path) -> Result {
    let files = files(root)?;
    for name in PAGES {
        let (page, made) = made(root, name, &files)?;
        if made != page {
            fs::write(root.join(name), made)?;
            println!("written: {name}");
        }
    }
    Ok(())
}

/// Fails in two cases: a page differs from the files, or the pages omit a file or a command of a file.
pub(crate) fn check(root: &Path) -> Result {
    let files = files(root)?;
    let mut pages = String::new();
    for name in PAGES {
        let (page, made) = made(root, name, &files)?;
        if made != page {
            return Err(format!("{name} differs from {FILES}: run ./x bench-page").into());
        }
        pages += &page;
    }
    for (name, file) in &files {
        table(name, false, &files)?;
        if !pages.contains(&format!("({name}.json)")) && !pages.contains(&format!("/{name}.json)"))
        {
            return Err(format!("no page links to {FILES}/{name}.json").into());
        }
        for command in named(name, texts(file, "commands"))? {
            if !pages.lines().any(|line| line.trim() == command) {
                return Err(format!("no page has the command of {name}: {command}").into());
            }
        }
    }
    Ok(())
}

/// Replaces the results in a file with the output of `ironmap bench --json`. Keeps the title, commands and notes of the file.
pub(crate) fn take(root: &Path, name: &str, results: &Path) -> Result {
    let path = root.join(FILES).join(format!("{name}.json"));
    let read = |path: &Path| -> Result<String> {
        fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()).into())
    };
    let taken = with_results(&read(&path)?, &read(results)?)?;
    named(
        name,
        serde_json::from_str(&taken).map_err(Into::into).and_then(|file| Table::of(&file)),
    )?;
    fs::write(&path, taken)?;
    println!(
        "{}: the results are replaced; check whether the title and the notes still apply",
        path.display()
    );
    write(root)
}

fn with_results(file: &str, results: &str) -> Result<String> {
    let mut file: Value = serde_json::from_str(file)?;
    let mut results: Value = serde_json::from_str(results)?;
    let Some(fields) = file.as_object_mut().filter(|fields| fields.contains_key("results")) else {
        return Err("the file does not contain results of `ironmap bench`".into());
    };
    for name in ["machine", "results"] {
        let value = results.get_mut(name).map(Value::take);
        let value = value.ok_or_else(|| format!("the results have no {name:?}"))?;
        fields.insert(name.to_owned(), value);
    }
    Ok(serde_json::to_string_pretty(&file)? + "\n")
}

fn files(root: &Path) -> Result<Files> {
    let mut files = Files::new();
    for entry in fs::read_dir(root.join(FILES))? {
        let path: PathBuf = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str());
        if let Some(name) = name.filter(|_| path.extension().is_some_and(|end| end == "json")) {
            let file = serde_json::from_str(&fs::read_to_string(&path)?).map_err(Into::into);
            files.insert(name.to_owned(), named(name, file)?);
        }
    }
    Ok(files)
}

/// The present text of a page, and the same text with new tables.
fn made(root: &Path, name: &str, files: &Files) -> Result<(String, String)> {
    let page = fs::read_to_string(root.join(name)).map_err(|error| format!("{name}: {error}"))?;
    let made = with_tables(&page, files).map_err(|why| format!("{name}:{why}"))?;
    Ok((page, made))
}

fn with_tables(page: &str, files: &Files) -> Result<String> {
    let mut made = String::new();
    let mut lines = (1..).zip(page.lines());
    while let Some((line, text)) = lines.next() {
        made = made + text + "\n";
        let Some(marker) = text.strip_prefix(BEGIN) else { continue };
        let at = |why: &dyn std::fmt::Display| format!("{line}: {why}");
        if text == END {
            return Err(at(&"an end without a begin").into());
        }
        let name = marker.strip_suffix(" -->").ok_or_else(|| at(&"a comment without an end"))?;
        let (name, all) = name.strip_suffix(" all").map_or((name, false), |name| (name, true));
        made += &table(name, all, files).map_err(|why| at(&why))?.markdown();
        // The loop drops the lines of the old table.
        loop {
            match lines.next() {
                Some((_, END)) => break,
                Some((_, old)) if old.starts_with('|') => {}
                _ => return Err(at(&format!("no {END} follows the table")).into()),
            }
        }
        made = made + END + "\n";
    }
    Ok(made)
}

/// The table of a file: all of it, or the part that the file selects for the page.
fn table(name: &str, all: bool, files: &Files) -> Result<Table> {
    let file = files.get(name).ok_or_else(|| format!("no file {FILES}/{name}.json"))?;
    let table = match file.get("ratios") {
        Some(_) => ratios(file, files),
        None => Table::of(file),
    };
    named(name, table.and_then(|table| if all { Ok(table) } else { table.shown(&file["show"]) }))
}

/// The table of a file that refers to other files and compares their ratios.
fn ratios(file: &Value, files: &Files) -> Result<Table> {
    let of = |name: &String| {
        let file = files.get(name).ok_or_else(|| format!("no file {FILES}/{name}.json"))?;
        named(name, Table::of(file))
    };
    let tables = texts(file, "ratios")?.iter().map(of).collect::<Result<Vec<_>>>()?;
    Table::ratios(text(file, "title")?, &tables, &texts(file, "targets")?)
}

/// Adds the name of the file to the error of a result.
fn named<T>(name: &str, result: Result<T>) -> Result<T> {
    result.map_err(|why| format!("{FILES}/{name}.json: {why}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROWTH: &str = r#"{"title": "Growth", "commands": ["cargo bench"], "machine": {}, "show": {"columns": ["ratio"], "rows": {"extents": ["1M"]}},
        "columns": [{"name": "extents"}, {"name": "ratio", "decimals": 1}], "rows": [["1k", 1], ["1M", 1.3]]}"#;
    const READS: &str = r#"{"title": "Reads: zram", "commands": ["./x bench"], "machine": {"cpus": 1}, "notes": ["quiet"],
        "results": [{"target": "vol", "iodepth": 1, "ratio": 0.5}]}"#;
    const RATIOS: &str =
        r#"{"title": "All", "commands": [], "ratios": ["reads"], "targets": ["vol"]}"#;
    const WRONG: &str =
        r#"{"title": "All", "commands": [], "ratios": ["none"], "targets": ["vol"]}"#;

    fn made(page: &str) -> Result<String> {
        let files = [("growth", GROWTH), ("reads", READS), ("ratios", RATIOS), ("wrong", WRONG)];
        let file = |(name, text): (&str, &str)| Ok((name.to_owned(), serde_json::from_str(text)?));
        with_tables(page, &files.into_iter().map(file).collect::<Result<Files>>()?)
    }

    #[test]
    fn the_pages_are_made_from_their_files() {
        check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
    }

    /// A run keeps the text around a table. A second run does not change the page.
    #[test]
    fn a_table_takes_the_place_of_the_old_one() {
        let page = "# A\n<!-- bench growth -->\n| old |\n<!-- bench end -->\nB\n<!-- bench ratios -->\n<!-- bench end -->\n";
        let expected = "# A\n<!-- bench growth -->\n| ratio |\n|--:|\n| 1.3 |\n<!-- bench end -->\nB\n\
                        <!-- bench ratios -->\n| work | depth | vol |\n|---|--:|--:|\n| zram | 1 | 0.500 |\n<!-- bench end -->\n";
        assert_eq!(made(page).unwrap(), expected);
        assert_eq!(made(expected).unwrap(), expected);
        let all = made("<!-- bench growth all -->\n<!-- bench end -->\n").unwrap();
        assert!(all.contains("| 1k | 1.0 |"), "{all}");
    }

    /// Each fault is reported as an error with its line. Prose is never removed.
    #[test]
    fn a_wrong_comment_is_an_error() {
        for wrong in [
            "growth",
            "growth -->",
            "growth -->\nprose\n<!-- bench end -->",
            "end -->",
            " -->\n<!-- bench end -->",
            "none -->\n<!-- bench end -->",
            "wrong -->\n<!-- bench end -->",
        ] {
            let why = made(&format!("text\n<!-- bench {wrong}\n")).unwrap_err().to_string();
            assert!(why.starts_with("2: "), "{wrong}: {why}");
        }
    }

    #[test]
    fn new_results_keep_title_and_notes() {
        let new = r#"{"machine": {"cpus": 2}, "results": [{"target": "raw"}]}"#;
        let taken: Value = serde_json::from_str(&with_results(READS, new).unwrap()).unwrap();
        assert_eq!((&taken["machine"]["cpus"], &taken["notes"][0]), (&2.into(), &"quiet".into()));
        assert_eq!(taken["results"][0]["target"], "raw");
        for (file, results) in [(GROWTH, new), (READS, "{}"), (READS, "[]"), ("1", new), ("", new)]
        {
            assert!(with_results(file, results).is_err(), "{file} {results}");
        }
    }
}
