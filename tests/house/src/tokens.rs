//! Splits a source into tokens, so that paths can be found. Comments and literals are omitted.

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};

/// A token with its line: an identifier, a `::`, or another single character.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) line: usize,
}

impl Token {
    fn new(text: &impl ToString, at: Span) -> Self {
        Self { text: text.to_string(), line: at.start().line }
    }
}

pub(super) fn starts_with(tokens: &[Token], texts: &[&str]) -> bool {
    tokens.len() >= texts.len() && tokens.iter().zip(texts).all(|(token, text)| token.text == *text)
}

pub(super) fn tokens(source: TokenStream) -> Vec<Token> {
    let mut found = Vec::new();
    flatten(source, true, &mut found);
    found
}

/// The tokens of a source, without `#[cfg(test)]` modules. Tests may name any layer.
pub(super) fn without_tests(source: TokenStream) -> Vec<Token> {
    let mut found = Vec::new();
    flatten(source, false, &mut found);
    found
}

/// The string literals as they stand in the source, with their lines. Doc comments are omitted.
pub(super) fn strings(stream: TokenStream, found: &mut Vec<(usize, String)>) {
    let mut trees = stream.into_iter().peekable();
    if trees.peek().is_some_and(|tree| tree.to_string() == "doc") {
        return;
    }
    for tree in trees {
        match tree {
            TokenTree::Group(group) => strings(group.stream(), found),
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                if text.starts_with(['"', 'r']) {
                    found.push((literal.span().start().line, text));
                }
            }
            _ => {}
        }
    }
}

fn flatten(stream: TokenStream, with_tests: bool, found: &mut Vec<Token>) {
    let trees: Vec<_> = stream.into_iter().collect();
    let mut rest = trees.as_slice();
    while let Some((tree, mut after)) = rest.split_first() {
        match tree {
            TokenTree::Punct(_) if !with_tests && is_test_module(rest) => {
                let end = after.iter().position(ends_module).map_or(after.len(), |at| at + 1);
                after = &after[end..];
            }
            TokenTree::Punct(_) if is_colon(tree) && after.first().is_some_and(is_colon) => {
                found.push(Token::new(&"::", tree.span()));
                after = &after[1..];
            }
            TokenTree::Group(group) => {
                let (open, close) = brackets(group);
                found.push(Token::new(&open, group.span_open()));
                flatten(group.stream(), with_tests, found);
                found.push(Token::new(&close, group.span_close()));
            }
            TokenTree::Literal(_) => {}
            _ => found.push(Token::new(tree, tree.span())),
        }
        rest = after;
    }
}

fn is_test_module(trees: &[TokenTree]) -> bool {
    let [TokenTree::Punct(hash), TokenTree::Group(attribute), TokenTree::Ident(module), ..] = trees
    else {
        return false;
    };
    let attribute = attribute.stream().to_string().replace(' ', "");
    let is_test = attribute == "cfg(test)" || attribute.starts_with("cfg(all(test,");
    hash.as_char() == '#' && is_test && module == "mod"
}

fn ends_module(tree: &TokenTree) -> bool {
    match tree {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(punct) => punct.as_char() == ';',
        _ => false,
    }
}

fn is_colon(tree: &TokenTree) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == ':')
}

fn brackets(group: &Group) -> (&'static str, &'static str) {
    match group.delimiter() {
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Brace => ("{", "}"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::None => ("", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_no_tokens() {
        let source = "a /* crate::b */ \"crate::c\" // crate::d\n crate::e";
        let found = tokens(source.parse().expect("Rust"));
        let texts: Vec<_> = found.iter().map(|token| token.text.as_str()).collect();
        assert_eq!(texts, ["a", "crate", "::", "e"]);
        assert_eq!(found.last().map(|token| token.line), Some(2));
    }

    #[test]
    fn test_modules_are_left_out() {
        let source =
            "use a; #[cfg(test)] mod tests { use b; fn f() {} } use c; #[cfg(test)] mod more; d";
        let kept = without_tests(source.parse().expect("Rust"));
        let kept: Vec<_> = kept.iter().map(|token| token.text.as_str()).collect();
        assert_eq!(kept, ["use", "a", ";", "use", "c", ";", "d"]);
    }
}
