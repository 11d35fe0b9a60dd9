//! Finds the shell blocks of a page and their marks. A mark says how a block is tested. The program that runs the blocks includes this
//! file.
//!
//! A mark is in the line above its block. One mark for a whole page, `<!-- page tested: arguments -->`, applies to all blocks without a
//! mark of their own.
#![allow(dead_code, reason = "the rules and the runner each use a part of it")]

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The marks of blocks that run in an empty directory. The first mark means a run without root. The second mark means a run as root. All
/// blocks on a page with the same mark run in one shell.
pub(crate) const USER: &str = "tested: user";
pub(crate) const ROOT: &str = "tested: root";
/// The mark of a block that is not run. Its commands and options must still exist.
pub(crate) const ARGUMENTS: &str = "tested: arguments";
/// The beginning of the mark of a block that is not tested. The reason follows in the mark.
const NOT: &str = "not tested: ";

/// A block is a shell block if one of its lines begins with one of these words, even without a language tag.
const PROGRAMS: [&str; 4] = ["ironmap", "./x", "./setup", "cargo"];

/// Shell commands in a page.
pub(crate) struct Block<'a> {
    /// The line in the page, counted from 1.
    pub(crate) line: usize,
    pub(crate) mark: Option<&'a str>,
    pub(crate) commands: String,
}

/// The pages of the repository, in order: three pages in its root, and all pages below `docs/`.
pub(crate) fn pages(root: &Path) -> io::Result<Vec<PathBuf>> {
    let names = ["CONTRIBUTING.md", "README.md", "SECURITY.md"];
    let mut pages: Vec<_> = names.iter().map(|name| root.join(name)).collect();
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    Ok(pages)
}

/// The shell blocks of a page, fenced or indented, in order.
pub(crate) fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut found = Vec::new();
    let (mut of_page, mut above, mut prose) = (None, None, false);
    let mut lines = (1..).zip(page.lines()).peekable();
    while let Some((line, text)) = lines.next() {
        if let Some(comment) = text.strip_prefix("<!-- ").and_then(|text| text.strip_suffix(" -->"))
        {
            match comment.strip_prefix("page ") {
                Some(mark) => of_page = Some(mark),
                None => above = Some(comment),
            }
            continue;
        }
        let mut commands = Vec::new();
        let fence = text.strip_prefix("```");
        if fence.is_some() {
            commands.extend(lines.by_ref().map(|line| line.1).take_while(|text| *text != "```"));
        } else if let Some(first) = text.strip_prefix("    ").filter(|_| !prose) {
            commands.push(first);
            while let Some((_, next)) = lines.next_if(|line| line.1.starts_with("    ")) {
                commands.push(&next[4..]);
            }
        }
        if fence == Some("sh") || commands.iter().any(|command| runs_a_program(command)) {
            let mark = above.take().or(of_page);
            found.push(Block { line, mark, commands: commands.join("\n") });
        }
        prose = commands.is_empty() && !text.trim().is_empty();
        above = above.filter(|_| !prose);
    }
    found
}

fn runs_a_program(command: &str) -> bool {
    command.split(' ').next().is_some_and(|first| PROGRAMS.contains(&first))
}

/// Reports shell blocks without a mark, and unknown marks.
pub(crate) fn check(page: &str) -> Vec<(usize, String)> {
    let finding = |block: Block| match block.mark {
        None => Some((block.line, "a shell block without a mark: see docs/TESTING.md".to_owned())),
        Some(USER | ROOT | ARGUMENTS) => None,
        Some(mark) if mark.strip_prefix(NOT).is_some_and(|why| !why.trim().is_empty()) => None,
        Some(mark) => Some((block.line, format!("no mark of a shell block: {mark:?}"))),
    };
    blocks(page).into_iter().filter_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(page: &str) -> Vec<(usize, Option<&str>, String)> {
        blocks(page).into_iter().map(|block| (block.line, block.mark, block.commands)).collect()
    }

    /// Pages in folders below `docs/` are found.
    #[test]
    fn pages_in_folders_are_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let pages = pages(&root).unwrap();
        for page in ["README.md", "docs/TESTING.md", "docs/testing/regressions.md"] {
            assert!(pages.contains(&root.join(page)), "{page}");
        }
    }

    /// Fenced and indented blocks are found. A mark applies only to the block directly below it. Tables and lists in code are not shell.
    #[test]
    fn a_block_has_the_mark_above_it() {
        let page = "<!-- tested: user -->\n```sh\na\nb\n```\ntext\n\n    ./x test   # all\n    more\n\n    file   owner\n\n\
                    - item\n    ironmap is a word here\n\n```sh\nc\n```\n";
        let found =
            [(2, Some(USER), "a\nb".to_owned()), (8, None, "./x test   # all\nmore".to_owned())];
        assert_eq!(marks(page), [&found[..], &[(16, None, "c".to_owned())]].concat());
    }

    /// The mark of a page applies to all blocks without a mark. A mark above prose does not apply to a block after this prose.
    #[test]
    fn a_page_may_have_one_mark() {
        let page = "<!-- page tested: arguments -->\n\n    ironmap ls\n\n<!-- tested: root -->\n\n    ironmap ls\n\n\
                    <!-- tested: user -->\nprose\n\n    ironmap ls\n";
        let marks: Vec<_> = blocks(page).iter().map(|block| block.mark).collect();
        assert_eq!(marks, [Some(ARGUMENTS), Some(ROOT), Some(ARGUMENTS)]);
    }

    #[test]
    fn a_block_needs_a_mark_with_a_meaning() {
        let page = |mark| format!("{mark}\n```sh\nls\n```\n");
        assert_eq!(check(&page("<!-- tested: root -->")), []);
        assert_eq!(check(&page("<!-- not tested: needs a disk -->")), []);
        for wrong in ["", "<!-- tested: rot -->", "<!-- not tested:  -->"] {
            assert_eq!(check(&page(wrong)).len(), 1, "{wrong}");
        }
        assert_eq!(check("```text\nls\n```\n"), []);
    }
}
