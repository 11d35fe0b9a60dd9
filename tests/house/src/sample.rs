//! Prints a random sample for a reader: comments, messages, and first screens of pages. A seed chooses the sample. The reader marks each
//! sentence that has to be read twice.

use std::io;
use std::path::{Path, PathBuf};

use proc_macro2::TokenStream;

use super::tokens::strings;
use super::words::comment_lines;

const COMMENTS: usize = 50;
const MESSAGES: usize = 20;
/// The number of lines in a first screen.
const SCREEN: usize = 24;

/// A seeded generator of random numbers: splitmix64.
struct Draw(u64);

impl Draw {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (word ^ (word >> 31)) as usize % count.max(1)
    }

    /// Chooses `count` different values at random.
    fn some<T>(&mut self, mut all: Vec<T>, count: usize) -> Vec<T> {
        let taken = (0..count.min(all.len())).map(|_| all.swap_remove(self.below(all.len())));
        taken.collect()
    }
}

/// Prints a sample of the sources and pages.
pub(super) fn print(seed: u64, sources: &[PathBuf], pages: &[PathBuf]) -> io::Result<()> {
    let mut draw = Draw(seed);
    let (mut comments, mut messages) = (Vec::new(), Vec::new());
    for path in sources {
        let source = std::fs::read_to_string(path)?;
        comments.extend(paragraphs(&source).into_iter().map(|text| (path, text)));
        // Literals in tests are data, not messages. So they are omitted.
        if !path.components().any(|part| part.as_os_str() == "tests") {
            messages.extend(sentences(&source).into_iter().map(|text| (path, text)));
        }
    }
    let mut show = |title: &str, texts: Vec<(&PathBuf, (usize, String))>, count| {
        println!("## {title}\n");
        for (path, (line, text)) in draw.some(texts, count) {
            println!("{}:{line}: {text}\n", path.display());
        }
    };
    show("Comments", comments, COMMENTS);
    show("Messages", messages, MESSAGES);
    pages.iter().try_for_each(|page| first_screen(page))
}

fn first_screen(page: &Path) -> io::Result<()> {
    println!("## {}\n", page.display());
    std::fs::read_to_string(page)?.lines().take(SCREEN).for_each(|line| println!("{line}"));
    println!();
    Ok(())
}

/// The paragraphs of prose in the comments of a source, each with its first line number.
fn paragraphs(source: &str) -> Vec<(usize, String)> {
    let (mut all, mut open) = (Vec::<(usize, String)>::new(), false);
    for (line, text) in comment_lines(source) {
        match text {
            Some(text) if open => {
                let last = all.last_mut().map(|(_, last)| last);
                last.into_iter().for_each(|last| *last = format!("{last} {}", text.trim()));
            }
            Some(text) => all.push((line, text.trim().to_owned())),
            None => {}
        }
        open = text.is_some();
    }
    all
}

/// The literals of a source that have at least four words.
fn sentences(source: &str) -> Vec<(usize, String)> {
    let mut literals = Vec::new();
    if let Ok(stream) = source.parse::<TokenStream>() {
        strings(stream, &mut literals);
    }
    let is_clause = |text: &str| {
        let words = text.split_whitespace();
        words.filter(|word| word.chars().all(|c| c.is_alphabetic() || ",:;.'".contains(c))).count()
            >= 4
    };
    literals.retain(|(_, text)| is_clause(text));
    literals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_and_nothing_twice() {
        let draw = |seed| Draw(seed).some((0..100).collect(), 50);
        let mut drawn = draw(7);
        assert_eq!(drawn, draw(7));
        assert_ne!(drawn, draw(8));
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 50);
    }

    #[test]
    fn a_comment_of_several_lines_is_one_paragraph() {
        let source = "/// One\n/// sentence.\n///\n/// Two.\nfn a() {}\nfn b() {} // Three.\n";
        let texts = paragraphs(source).into_iter().map(|(_, text)| text);
        assert_eq!(texts.collect::<Vec<_>>(), ["One sentence.", "Two.", "Three."]);
    }
}
