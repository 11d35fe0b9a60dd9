//! Phrases that readers had to read twice, each with a plain replacement. They implement the rules of CONTRIBUTING.md, "Plain technical
//! English".
//!
//! The text of pages, comments and strings is split into paragraphs and words. Code in the text is skipped.

use std::path::Path;

use proc_macro2::TokenStream;

use super::tokens::{strings, tokens};

/// Files and directories that are not checked yet. All others are checked.
pub(super) const UNCLEAN: &[&str] = &[];

/// This file is not checked, because its strings are the phrases.
const THIS: &str = "tests/house/src/words.rs";

/// A phrase, and the plain form to use instead. The phrase is a list of words; `a/b` means either word.
struct Phrase {
    words: &'static [&'static str],
    place: Place,
    plain: &'static str,
}

#[derive(PartialEq)]
enum Place {
    Anywhere,
    /// The phrase is at the beginning of a sentence that is not a question, or after `:` or `;`.
    Start,
    /// The phrase is anywhere in a page. It describes history, which belongs only into CHANGELOG.md. Comments may use the phrase.
    Page,
}

use Place::{Anywhere, Page, Start};

const fn phrase(words: &'static [&'static str], place: Place, plain: &'static str) -> Phrase {
    Phrase { words, place, plain }
}

const PHRASES: &[Phrase] = &[
    phrase(&["behind"], Anywhere, "after, past, beyond or below"),
    phrase(&["who"], Start, "the subject: a reader, a writer, the caller, the thread that"),
    phrase(&["and/by/for/from/of/or/than/to/with", "who"], Anywhere, "a noun: a caller that"),
    phrase(&["whoever"], Anywhere, "the thread that, the user who"),
    phrase(&["what"], Start, "the subject: data that, a file that, everything that"),
    phrase(
        &["what", "is/was/are/were/has/had/may/can/cannot/must/does/did/needs/stands/lies/waits"],
        Anywhere,
        "the noun: free space for \"what is free\"",
    ),
    phrase(&["what", "goes/comes/follows/remains/waits/holds/makes/keeps"], Anywhere, "the noun"),
    phrase(&["but", "for"], Anywhere, "except"),
    phrase(&["want", "of"], Anywhere, "lack of, or no space"),
    phrase(&["is/are/was/were/be", "had"], Anywhere, "an active verb: ironmap allocates"),
    phrase(
        &["that/which/it/they/this", "is/are", "none"],
        Anywhere,
        "does not exist, or is not one",
    ),
    phrase(&["that", "is", "no"], Anywhere, "is not a"),
    phrase(&["which/that/what", "is", "so"], Anywhere, "the fact itself"),
    phrase(&["the", "one", "of"], Anywhere, "the noun again"),
    phrase(&["anew"], Anywhere, "again, or new"),
    phrase(&["by", "lot"], Anywhere, "at random"),
    phrase(&["tells/tell/told/hears/hear/heard", "of"], Anywhere, "reports, is notified"),
    phrase(&["until", "here/now"], Page, "nothing: history is for CHANGELOG.md"),
    phrase(&["was/were", "mended"], Page, "nothing: history is for CHANGELOG.md"),
    phrase(&["formerly/previously"], Page, "nothing: history is for CHANGELOG.md"),
];

/// Whether a file must be free of the phrases.
pub(super) fn is_clean(path: &Path) -> bool {
    !UNCLEAN.iter().any(|unclean| path.starts_with(unclean))
}

/// Finds the phrases in a page of Markdown.
pub(super) fn check_page(source: &str) -> Vec<(usize, String)> {
    find(&paragraphs(page_lines(source)), true)
}

/// Finds the phrases in the comments of a Rust source.
pub(super) fn check_comments(source: &str) -> Vec<(usize, String)> {
    find(&paragraphs(comment_lines(source)), false)
}

/// Finds the phrases in the string literals of a Rust source: messages and help texts.
pub(super) fn check_strings(path: &Path, stream: TokenStream) -> Vec<(usize, String)> {
    if path == Path::new(THIS) {
        return Vec::new();
    }
    let mut literals = Vec::new();
    strings(stream, &mut literals);
    // A literal of a single word is a name and not a message.
    literals.retain(|(_, literal)| literal.contains(' '));
    let texts: Vec<_> =
        literals.iter().map(|(line, literal)| (*line, without_code(literal))).collect();
    // Each literal is a separate paragraph.
    let lines = texts.iter().flat_map(|(line, text)| [(*line, Some(text.as_str())), (*line, None)]);
    find(&paragraphs(lines.collect()), false)
}

/// Finds functions whose names begin with a pronoun instead of their subject.
pub(super) fn check_names(stream: TokenStream) -> Vec<(usize, String)> {
    let names = tokens(stream);
    let found = names.windows(2).filter(|pair| {
        let begins = |pronoun: &&str| pair[1].text.starts_with(*pronoun);
        pair[0].text == "fn" && ["who_", "what_", "nobody_"].iter().any(begins)
    });
    found.map(|pair| (pair[1].line, format!("fn {}: name the subject", pair[1].text))).collect()
}

/// The text of a literal. Escapes, and the names of values in braces, are removed.
fn without_code(literal: &str) -> String {
    let mut text = String::new();
    let mut depth = 0_u32;
    let mut chars = literal.chars();
    while let Some(char) = chars.next() {
        match char {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ if depth > 0 => {}
            // An escape becomes a space. This also applies to the escape of a newline.
            '\\' => text.extend(chars.next().map(|_| ' ')),
            _ => text.push(char),
        }
    }
    text
}

/// A line number, with a line of prose. `None` instead of the line marks the end of a paragraph.
type Line<'a> = (usize, Option<&'a str>);

/// The lines of a page. Fenced and indented code ends a paragraph.
fn page_lines(source: &str) -> Vec<Line<'_>> {
    let (mut fenced, mut empty) = (false, true);
    let lines = (1..).zip(source.lines()).map(|(line, text)| {
        let fence = text.trim_start().starts_with("```");
        let code = fenced || fence || (empty && text.starts_with("    "));
        fenced ^= fence;
        // An indented line directly after indented code also belongs to the code.
        empty = text.trim().is_empty() || (code && !fenced);
        (line, (!code && !empty).then_some(text))
    });
    lines.collect()
}

/// The comment lines of a source. A line of code ends a paragraph. This includes lines of code within a comment.
pub(super) fn comment_lines(source: &str) -> Vec<Line<'_>> {
    let mut fenced = false;
    let lines = (1..).zip(source.lines()).map(|(line, text)| {
        let Some(comment) = comment(text) else { return (line, None) };
        let fence = comment.trim_start().starts_with("```");
        let prose = !fenced && !fence && !comment.trim().is_empty();
        fenced ^= fence;
        (line, prose.then_some(comment))
    });
    lines.collect()
}

/// Returns the text of a comment, which can be on a separate line or after code.
fn comment(text: &str) -> Option<&str> {
    if let Some(own) = text.trim_start().strip_prefix("//") {
        return Some(own.trim_start_matches(['/', '!']));
    }
    let (code, comment) = text.split_once(" // ")?;
    code.matches('"').count().is_multiple_of(2).then_some(comment)
}

struct Word {
    text: String,
    line: usize,
    /// Whether the word begins a sentence or clause.
    starts: bool,
    /// The punctuation mark after the word, or a space.
    end: char,
}

fn paragraphs(lines: Vec<Line<'_>>) -> Vec<Vec<Word>> {
    let (mut all, mut words) = (Vec::new(), Vec::new());
    for (line, text) in lines {
        // A heading, a table row or a list item begins a new paragraph.
        let opens = text.is_none_or(|text| {
            let text = text.trim_start();
            text.starts_with(['#', '|', '-', '*', '>'])
                || text.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok())
        });
        if opens {
            all.push(std::mem::take(&mut words));
        }
        if let Some(text) = text {
            read(line, text, &mut words);
        }
    }
    all.push(words);
    all
}

/// Appends the words of a line. Code in backquotes is one word.
fn read(line: usize, text: &str, words: &mut Vec<Word>) {
    let mut starts = words.last().is_none_or(|word: &Word| ends_clause(word.end));
    let mut chars = text.chars().peekable();
    let mut in_code = false;
    let mut open = false;
    while let Some(char) = chars.next() {
        let letter = char.is_alphanumeric() || matches!(char, '\'' | '_');
        if char == '`' || (letter && !in_code) {
            if char == '`' {
                in_code ^= true;
            }
            if !open {
                words.push(Word { text: String::new(), line, starts, end: ' ' });
            }
            let word = words.last_mut().filter(|_| letter);
            word.into_iter().for_each(|word| word.text.extend(char.to_lowercase()));
            (open, starts) = (true, false);
        } else if !in_code {
            open = false;
            let mark = matches!(char, '|' | '(' | '"' | '[')
                || chars.peek().is_none_or(|next| next.is_whitespace() || *next == '*');
            if mark && !char.is_whitespace() && char != '*' {
                starts = starts || ends_clause(char);
                words.last_mut().into_iter().for_each(|word| word.end = char);
            }
        }
    }
}

fn ends_clause(mark: char) -> bool {
    matches!(mark, '.' | '?' | '!' | ':' | ';' | '|' | '(')
}

fn find(paragraphs: &[Vec<Word>], page: bool) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for words in paragraphs {
        for at in 0..words.len() {
            let here = &words[at..];
            let Some(phrase) = PHRASES.iter().find(|phrase| phrase.is_at(here, page)) else {
                continue;
            };
            let shown: Vec<_> =
                here.iter().take(phrase.words.len()).map(|word| word.text.as_str()).collect();
            let shown = shown.join(" ");
            found.push((here[0].line, format!("\"{shown}\": write {}", phrase.plain)));
        }
    }
    found
}

impl Phrase {
    fn is_at(&self, words: &[Word], page: bool) -> bool {
        let same = words.len() >= self.words.len()
            && words
                .iter()
                .zip(self.words)
                .all(|(word, either)| either.split('/').any(|form| form == word.text));
        same && match self.place {
            Anywhere => true,
            Page => page,
            Start => words[0].starts && !is_question(words),
        }
    }
}

fn is_question(words: &[Word]) -> bool {
    words.iter().map(|word| word.end).find(|end| matches!(end, '.' | '!' | '?' | '|')) == Some('?')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(source: &str) -> Vec<String> {
        check_page(source).into_iter().map(|(line, what)| format!("{line}: {what}")).collect()
    }

    /// For each finding, the line and the phrase. The advice is omitted.
    fn phrases(found: &[(usize, String)]) -> Vec<(usize, &str)> {
        found.iter().map(|(at, what)| (*at, what.split('"').nth(1).unwrap_or_default())).collect()
    }

    /// Each phrase of the list is found in a sentence that consists of its words.
    #[test]
    fn every_phrase_is_found() {
        for phrase in PHRASES {
            let words: Vec<_> =
                phrase.words.iter().filter_map(|either| either.split('/').next()).collect();
            let words = words.join(" ");
            let text = match phrase.place {
                Start => words,
                Anywhere | Page => format!("Here {words}"),
            };
            assert_eq!(page(&format!("{text} it.\n")).len(), 1, "{text}");
        }
    }

    #[test]
    fn a_phrase_goes_on_in_the_next_line() {
        let found = check_page("The rest, and what\nis free. It lies behind.\n");
        assert_eq!(phrases(&found), [(1, "what is"), (2, "behind")]);
        assert_eq!(page("The rest and what\n\nis free\n").len(), 0);
    }

    #[test]
    fn only_sentences_and_clauses_begin_with_a_subject() {
        assert_eq!(page("Who reads waits.").len(), 1);
        assert_eq!(page("It is read: who reads waits.").len(), 1);
        assert_eq!(page("- Who reads waits\n").len(), 1);
        assert_eq!(page("| Word | What it means |\n").len(), 1);
        assert_eq!(page("A user who reads waits.").len(), 0);
        assert_eq!(page("Who reads it?").len(), 0);
        assert_eq!(page("It says what a device reads.").len(), 0);
    }

    #[test]
    fn code_is_passed_over() {
        assert_eq!(page("Text:\n\n    behind\n    behind\n\nText behind.\n").len(), 1);
        assert_eq!(page("```sh\nbehind\n```\n`behind` is a word.\n").len(), 0);
        let source = "let behind = 1;\nlet a = \"// behind\"; // behind a\n/// ```\n/// behind\n/// ```\n/// behind\n";
        assert_eq!(phrases(&check_comments(source)), [(2, "behind"), (6, "behind")]);
    }

    /// A function whose name begins with a pronoun is reported.
    #[test]
    fn a_function_is_named_by_its_subject() {
        let found = |source: &str| check_names(source.parse().unwrap()).len();
        assert_eq!(found("fn who_waits() {} mod m { fn what_is_read() {} }"), 2);
        assert_eq!(found("fn what() {} fn a_thread_that_waits() { what_is_read() }"), 0);
    }

    /// Escapes and the names of values are not words. A literal of one word is a name. Two literals do not form one sentence.
    #[test]
    fn strings_are_read_as_messages() {
        let found = |source: &str| {
            let found = check_strings(Path::new("a.rs"), source.parse().expect("Rust"));
            found.into_iter().map(|(line, _)| line).collect::<Vec<_>>()
        };
        assert_eq!(found("\nf(\"it is\\\n behind\");"), [2]);
        assert_eq!(found("f(\"behind\", \"behind_a b\", \"{behind} b\");"), []);
        assert_eq!(found("/// it is behind\nf(\"it and\", \"who reads\");"), [2]);
    }

    #[test]
    fn only_pages_are_free_of_history() {
        assert_eq!(page("Until now it failed.").len(), 1);
        assert_eq!(check_comments("// Until now nothing is written.").len(), 0);
    }

    #[test]
    fn the_list_names_what_exists() {
        for unclean in UNCLEAN {
            assert!(
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(unclean).exists(),
                "{unclean}"
            );
        }
    }
}
