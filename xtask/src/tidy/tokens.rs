//! Just enough of Rust's lexer to find paths: identifiers and punctuation, without comments and literals.

/// An identifier, a `::`, or another single character, and its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) line: usize,
}

/// The tokens of a source, without those inside `#[cfg(test)]` modules: a test may name any layer.
pub(super) fn without_tests(source: &str) -> Vec<Token<'_>> {
    let all = tokens(source);
    let mut kept = Vec::with_capacity(all.len());
    let mut rest = all.as_slice();
    while let Some((token, after)) = rest.split_first() {
        if starts_with(rest, &["#", "[", "cfg", "(", "test", ")", "]", "mod"])
            && let Some(open) = rest.iter().position(|token| matches!(token.text, "{" | ";"))
        {
            rest = if rest[open].text == "{" {
                after_braces(&rest[open..])
            } else {
                &rest[open + 1..]
            };
        } else {
            kept.push(*token);
            rest = after;
        }
    }
    kept
}

pub(super) fn starts_with(tokens: &[Token<'_>], texts: &[&str]) -> bool {
    tokens.len() >= texts.len() && tokens.iter().zip(texts).all(|(token, text)| token.text == *text)
}

/// What follows the brace that closes the one at the start.
fn after_braces<'t, 'a>(tokens: &'t [Token<'a>]) -> &'t [Token<'a>] {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "{" => depth += 1,
            "}" if depth == 1 => return &tokens[at + 1..],
            "}" => depth -= 1,
            _ => {}
        }
    }
    &[]
}

pub(super) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut line = 1;
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let (length, is_token) = match first {
            _ if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), false),
            _ if rest.starts_with("/*") => (block_comment(rest), false),
            _ if rest.starts_with("::") => (2, true),
            '"' => (quoted(rest), false),
            '\'' => (character(rest), false),
            'r' | 'b' | 'c' if literal(rest).is_some() => (literal(rest).unwrap_or(1), false),
            _ if first.is_alphanumeric() || first == '_' => (word(rest), true),
            _ => (first.len_utf8(), !first.is_whitespace()),
        };
        let (text, after) = rest.split_at(length);
        if is_token {
            found.push(Token { text, line });
        }
        line += text.matches('\n').count();
        rest = after;
    }
    found
}

fn word(rest: &str) -> usize {
    rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        if rest.as_bytes()[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.as_bytes()[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// The length of a quoted literal, the quote being its first byte.
fn quoted(rest: &str) -> usize {
    let quote = rest.as_bytes()[0];
    let mut escaped = false;
    for (at, byte) in rest.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            _ if byte == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The length of a character literal, or that of the apostrophe that begins a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest[1..].chars();
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => quoted(rest),
        (Some(c), Some('\'')) => c.len_utf8() + 2,
        _ => 1,
    }
}

/// The length of a literal with a prefix: `r#"…"#`, `b"…"`, `b'…'`, `br"…"`, `c"…"`.
fn literal(rest: &str) -> Option<usize> {
    let prefix = rest.find(|c| !matches!(c, 'r' | 'b' | 'c'))?;
    let (prefix, body) = rest.split_at(prefix);
    if prefix.len() > 2 {
        return None;
    }
    if prefix.ends_with('r') {
        let hashes = body.len() - body.trim_start_matches('#').len();
        let open = body[hashes..].strip_prefix('"')?;
        let close = format!("\"{}", "#".repeat(hashes));
        let end = open.find(&close)?;
        return Some(prefix.len() + hashes + 1 + end + close.len());
    }
    matches!(body.as_bytes()[0], b'"' | b'\'').then(|| prefix.len() + quoted(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        tokens(source).into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_and_literals_hide_nothing_and_show_nothing() {
        let source = r####"a /* crate::b /* nested */ */ "crate::c \" d" // crate::e
            r#"crate::f " g"# b'\'' 'h' '\u{41}' b"i" &'static j r(k) break"####;
        assert_eq!(texts(source), ["a", "&", "static", "j", "r", "(", "k", ")", "break"]);
    }

    #[test]
    fn lines_are_counted_through_literals() {
        let last = tokens("a\n\"x\ny\"\n/* \n */ b").pop().expect("b");
        assert_eq!(last, Token { text: "b", line: 5 });
    }

    #[test]
    fn test_modules_are_left_out() {
        let source =
            "use a; #[cfg(test)] mod tests { use b; fn f() {} } use c; #[cfg(test)] mod more; d";
        let kept: Vec<_> = without_tests(source).into_iter().map(|token| token.text).collect();
        assert_eq!(kept, ["use", "a", ";", "use", "c", ";", "d"]);
    }
}
