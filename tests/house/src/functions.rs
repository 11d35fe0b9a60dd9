//! Checks the length of functions.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The maximum number of lines from `fn` to the closing brace. With this limit, a function fits on a screen. `clippy::too_many_lines`
/// cannot check this limit, because the lint ignores comments and blank lines, and sees only the code that is built.
const MAX_LINES: usize = 70;

pub(super) fn check(stream: TokenStream) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    // The line of the `fn` whose body has not begun yet.
    let mut open = None;
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        match tree {
            // In the type of a function pointer, no name stands before the parameters.
            TokenTree::Ident(word) if word == "fn" => {
                let named = !matches!(trees.peek(), Some(TokenTree::Group(_)));
                open = named.then(|| word.span().start().line);
            }
            // A function of a trait may have no body.
            TokenTree::Punct(punct) if punct.as_char() == ';' => open = None,
            TokenTree::Group(group) => {
                if group.delimiter() == Delimiter::Brace
                    && let Some(first) = open.take()
                {
                    let lines = group.span_close().start().line - first + 1;
                    if lines > MAX_LINES {
                        let what = format!("a function of {lines} lines, more than {MAX_LINES}");
                        found.push((first, what));
                    }
                }
                found.extend(check(group.stream()));
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(source: &str) -> Vec<(usize, String)> {
        check(source.parse().expect("Rust"))
    }

    /// A function of this many lines.
    fn function(lines: usize) -> String {
        format!("fn long(\n) {{{}}}\n", "\n".repeat(lines - 2))
    }

    /// All lines between `fn` and the closing brace count, including comments, blank lines and the lines of the parameters.
    #[test]
    fn a_function_ends_at_the_limit() {
        assert_eq!(findings(&function(MAX_LINES)), []);
        let what = "a function of 71 lines, more than 70".to_owned();
        assert_eq!(findings(&format!("/// Text.\n{}", function(71))), [(2, what)]);
    }

    /// Functions are found at any depth: in modules, implementations, macros and other functions.
    #[test]
    fn functions_are_found_at_any_depth() {
        let long = function(MAX_LINES + 1);
        for around in ["mod a", "impl A for B", "m!", "macro_rules! m", "fn a() -> [u8; { 1 }]"] {
            let found = findings(&format!("{around} {{\n{long}}}"));
            assert!(found.iter().any(|found| found.0 == 2), "{around}: {found:?}");
        }
        assert_eq!(findings(&long.replace("long", "$name")).len(), 1);
    }

    /// After a function without a body, or after the type of a function pointer, the search does not continue to the next brace.
    #[test]
    fn functions_without_a_body_are_short() {
        let body = format!("{{{}}}", "\n".repeat(MAX_LINES));
        assert_eq!(findings(&format!("trait A {{ fn a(&self); const B: C = C {body}; }}")), []);
        assert_eq!(findings(&format!("static A: [fn(); 0] = D {body};")), []);
    }
}
