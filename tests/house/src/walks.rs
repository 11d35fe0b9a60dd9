//! Checks the walks in docs/ARCHITECTURE.md. A walk is a list of files that follows a request down the layers and back up. The files must
//! exist.

use std::collections::BTreeSet;
use std::path::Path;

use super::imports::height;

/// The heading above the walks. Each walk has a subheading, and each item of its list begins with a file in backquotes.
const HEADING: &str = "## Three walks";
/// The line between the two halves of a walk. Before this line, the request goes down through the layers; after it, the request returns up.
const BACK: &str = "and back:";
/// The number of walks.
const WALKS: usize = 3;
/// The maximum number of files in a walk. A reader cannot remember more.
const MAX_FILES: usize = 10;

#[derive(Default)]
struct Walk<'a> {
    line: usize,
    files: BTreeSet<&'a str>,
    /// The file that the previous item of the list names.
    last: Option<&'a str>,
    back: bool,
}

pub(super) fn check(page: &str, exists: impl Fn(&str) -> bool) -> Vec<(usize, String)> {
    let (mut found, mut walks) = (Vec::new(), Vec::<Walk<'_>>::new());
    let section = (1..).zip(page.lines()).skip_while(|(_, text)| *text != HEADING).skip(1);
    for (line, text) in section.take_while(|(_, text)| !text.starts_with("## ")) {
        if text.starts_with("### ") {
            walks.push(Walk { line, ..Walk::default() });
        }
        let Some(walk) = walks.last_mut() else { continue };
        walk.back |= text == BACK;
        let Some(file) = step(text) else { continue };
        if !exists(file) {
            found.push((line, format!("there is no file `{file}`")));
        }
        if let Err(what) = walk.enter(file) {
            found.push((line, what));
        }
    }
    if walks.len() != WALKS {
        found.push((1, format!("{} walks below `{HEADING}`, not {WALKS}", walks.len())));
    }
    for Walk { line, files, back, .. } in walks {
        if files.len() > MAX_FILES {
            found.push((line, format!("a walk of {} files, more than {MAX_FILES}", files.len())));
        }
        if !back {
            found.push((line, format!("a walk that does not return: no line `{BACK}`")));
        }
    }
    found
}

impl<'a> Walk<'a> {
    fn enter(&mut self, file: &'a str) -> Result<(), String> {
        self.files.insert(file);
        let Some(at) = height(Path::new(file)) else {
            return Err(format!("`{file}` is of no layer"));
        };
        let Some(last) = self.last.replace(file) else { return Ok(()) };
        let from = height(Path::new(last)).unwrap_or(at);
        match self.back {
            false if at > from => Err(format!("`{file}` is above `{last}`: this is a step up")),
            true if at < from => Err(format!("`{file}` is below `{last}`: this is a step down")),
            _ => Ok(()),
        }
    }
}

/// The file that a list item names. An item without a file gives an empty text. A line that is not a list item gives `None`.
fn step(text: &str) -> Option<&str> {
    let (number, item) = text.split_once(". ")?;
    number.parse::<u32>().ok()?;
    let file = item.strip_prefix('`').and_then(|item| item.split_once('`'));
    Some(file.map_or("", |(file, _)| file))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
1. `src/file/mod.rs`: the handle
2. `src/dio/mod.rs`, and
   what it names: `src/lib.rs`
3. `src/device/psync.rs`

and back:

4. `src/file/mod.rs`: done
";

    fn findings(walks: &[&str]) -> Vec<(usize, String)> {
        let walks: String = walks.iter().map(|walk| format!("### One\n{walk}")).collect();
        let page = format!("# A page\n1. `src/none.rs`\n{HEADING}\n{walks}## Else\n1. `none`\n");
        check(&page, |file| !file.contains("none"))
    }

    /// The violations that the check finds in a third walk after two valid walks.
    fn third(walk: &str) -> Vec<String> {
        findings(&[GOOD, GOOD, walk]).into_iter().map(|(_, what)| what).collect()
    }

    #[test]
    fn a_walk_goes_down_and_comes_back() {
        assert_eq!(third(GOOD), [""; 0]);
        let up = "1. `src/dio/mod.rs`\n2. `src/file/mod.rs`\nand back:\n";
        assert_eq!(third(up), ["`src/file/mod.rs` is above `src/dio/mod.rs`: this is a step up"]);
        let down = "1. `src/dio/mod.rs`\nand back:\n2. `src/bio/mod.rs`\n";
        assert_eq!(
            third(down),
            ["`src/bio/mod.rs` is below `src/dio/mod.rs`: this is a step down"]
        );
        assert_eq!(third("1. `src/dio/mod.rs`\n").len(), 1, "it does not return");
        assert_eq!(third("1. `src/volume.rs`\n2. `src/file/mod.rs`\nand back:\n"), [""; 0]);
    }

    #[test]
    fn its_files_exist_and_have_a_layer() {
        assert_eq!(third("1. `src/dio/none.rs`\nand back:\n").len(), 1);
        assert_eq!(third("1. `xtask/src/main.rs`\nand back:\n").len(), 1);
        assert_eq!(third("1. no file\nand back:\n"), ["`` is of no layer"]);
    }

    #[test]
    fn its_files_are_few() {
        let walk = |files: usize| -> String {
            let items = (1..=files).map(|at| format!("{at}. `src/dio/{at}.rs`\n"));
            items.chain([format!("{BACK}\n{}. `src/dio/1.rs`\n", files + 1)]).collect()
        };
        assert_eq!(third(&walk(MAX_FILES)), [""; 0]);
        assert_eq!(third(&walk(MAX_FILES + 1)).len(), 1);
    }

    #[test]
    fn there_are_three() {
        assert_eq!(findings(&[GOOD; 2]).len(), 1);
        assert_eq!(check("# A page without them\n", |_| true).len(), 1);
    }
}
