//! Patterns of shells, over bytes: `*`, `?`, `[a-z]`, `[!a-z]` and `\`, as `fnmatch(3)` has them without flags.

/// A pattern.
#[derive(Clone, Debug)]
pub(crate) struct Glob {
    pattern: Vec<u8>,
    /// ASCII letters match without regard to case.
    ignore_case: bool,
}

impl Glob {
    pub(crate) fn new(pattern: &[u8], ignore_case: bool) -> Self {
        let fold = |byte: &u8| if ignore_case { byte.to_ascii_lowercase() } else { *byte };
        Self { pattern: pattern.iter().map(fold).collect(), ignore_case }
    }

    /// Whether all of the text matches. `*` and `?` stand for slashes and dots at the beginning, too.
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        let fold = |byte: &u8| if self.ignore_case { byte.to_ascii_lowercase() } else { *byte };
        let text: Vec<u8> = text.iter().map(fold).collect();
        let (mut pattern, mut at) = (&self.pattern[..], 0);
        // After the last star, and where in the text it ends: only that one can still take more.
        let mut star = None;
        loop {
            if let [b'*', rest @ ..] = pattern {
                pattern = rest;
                star = Some((rest, at));
                continue;
            }
            match text.get(at) {
                None if pattern.is_empty() => return true,
                Some(byte) => {
                    if let Some(rest) = one(pattern, *byte) {
                        (pattern, at) = (rest, at + 1);
                        continue;
                    }
                }
                None => {}
            }
            let Some((rest, from)) = star.filter(|(_, from)| *from < text.len()) else {
                return false;
            };
            star = Some((rest, from + 1));
            (pattern, at) = (rest, from + 1);
        }
    }
}

/// The rest of a pattern whose first part matches this byte.
fn one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern {
        [b'?', rest @ ..] => Some(rest),
        [b'\\', literal, rest @ ..] => (*literal == byte).then_some(rest),
        [b'[', rest @ ..] => match set(rest, byte) {
            Some((matches, rest)) => matches.then_some(rest),
            // Without its end it is a bracket.
            None => (byte == b'[').then_some(rest),
        },
        [literal, rest @ ..] => (*literal == byte).then_some(rest),
        [] => None,
    }
}

/// Whether a byte is in the set that begins after `[`, and the pattern after the set; `None` where it has no end.
fn set(text: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    let negated = matches!(text.first(), Some(b'!' | b'^'));
    let mut rest = &text[usize::from(negated)..];
    let (mut found, mut first) = (false, true);
    loop {
        let (low, behind) = match rest {
            [b']', behind @ ..] if !first => return Some((found != negated, behind)),
            [b'\\', literal, behind @ ..] => (*literal, behind),
            [literal, behind @ ..] => (*literal, behind),
            [] => return None,
        };
        (rest, first) = (behind, false);
        let mut high = low;
        if let [b'-', end, behind @ ..] = rest
            && *end != b']'
        {
            (high, rest) = (*end, behind);
        }
        found |= (low..=high).contains(&byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of fnmatch(3) of glibc.
    #[test]
    fn patterns_match_as_those_of_a_shell() {
        let yes: [(&str, &str); 13] = [
            ("*", ""),
            ("*", ".a/b"),
            ("a*b*c", "aXbbYbc"),
            ("?", "x"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[]a]", "]"),
            ("[a-]", "-"),
            ("[", "["),
            ("\\*", "*"),
            ("*.[ch]", "main.c"),
            ("**a", "a"),
            ("[\\]]", "]"),
        ];
        for (pattern, text) in yes {
            assert!(
                Glob::new(pattern.as_bytes(), false).matches(text.as_bytes()),
                "{pattern} {text}"
            );
        }
        let no = [
            ("", "a"),
            ("?", ""),
            ("a*b", "ac"),
            ("[!a]", "a"),
            ("[a-c]", "d"),
            ("\\*", "x"),
            ("A", "a"),
        ];
        for (pattern, text) in no {
            assert!(
                !Glob::new(pattern.as_bytes(), false).matches(text.as_bytes()),
                "{pattern} {text}"
            );
        }
        assert!(Glob::new(b"*.JPG", true).matches(b"a.jpG"));
        // As many tries as the text is long for each star, not for all of them together.
        assert!(!Glob::new(&b"a*".repeat(40), false).matches(&[b'a'; 39]));
    }
}
