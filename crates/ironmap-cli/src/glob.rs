//! Shell patterns with the syntax of `fnmatch(3)` without flags: `*`, `?`, `[a-z]`, `[!a-z]`, `[[:alpha:]]` and `\`. As in `fnmatch`, the
//! locale decides whether a name consists of UTF-8 characters or of bytes. Ranges compare code points, as in the locale C.UTF-8.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A pattern.
#[derive(Clone, Debug)]
pub(crate) struct Glob {
    /// The pattern as bytes. In a UTF-8 locale, also the pattern as characters. A name matches if one of these forms matches, as in
    /// fnmatch(3) of glibc.
    ways: Vec<Way>,
}

#[derive(Clone, Debug)]
struct Way {
    pattern: Vec<Unit>,
    /// Whether upper and lower case letters are equal.
    ignore_case: bool,
    utf8: bool,
}

/// A character of a text, or a byte that is not part of a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unit {
    Char(char),
    Byte(u8),
}

impl Glob {
    /// A pattern for names in the locale of the environment.
    pub(crate) fn new(pattern: &[u8], ignore_case: bool) -> Self {
        Self::in_locale(pattern, ignore_case, is_utf8_locale())
    }

    fn in_locale(pattern: &[u8], ignore_case: bool, utf8: bool) -> Self {
        let way = |utf8| Way { pattern: units(pattern, utf8).collect(), ignore_case, utf8 };
        let ways: &[bool] = if utf8 { &[true, false] } else { &[false] };
        Self { ways: ways.iter().copied().map(way).collect() }
    }

    /// Whether the whole text matches. `*` and `?` also match slashes, and a dot at the beginning.
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        if text.is_ascii() {
            // Each character is one byte. The byte form of the pattern is enough, and needs no allocation.
            let unit = |at: usize| text.get(at).map(|byte| Unit::Char((*byte).into()));
            return self.ways[0].matches(text.len(), unit);
        }
        self.ways.iter().any(|way| {
            let units: Vec<Unit> = units(text, way.utf8).collect();
            way.matches(units.len(), |at| units.get(at).copied())
        })
    }
}

impl Way {
    /// Whether a text of `len` units matches.
    fn matches(&self, len: usize, text: impl Fn(usize) -> Option<Unit>) -> bool {
        let (mut pattern, mut at) = (&self.pattern[..], 0);
        // `star` contains the pattern after the last star, and the end of the text that this star matches. After a mismatch, only this star
        // needs to match one more unit.
        let mut star = None;
        loop {
            if let [Unit::Char('*'), rest @ ..] = pattern {
                pattern = rest;
                star = Some((rest, at));
                continue;
            }
            match text(at) {
                None if pattern.is_empty() => return true,
                Some(unit) => {
                    if let Some(rest) = self.one(pattern, unit) {
                        (pattern, at) = (rest, at + 1);
                        continue;
                    }
                }
                None => {}
            }
            let Some((rest, from)) = star.filter(|(_, from)| *from < len) else {
                return false;
            };
            star = Some((rest, from + 1));
            (pattern, at) = (rest, from + 1);
        }
    }

    /// Returns the rest of the pattern if its first element matches `unit`, otherwise `None`.
    fn one<'p>(&self, pattern: &'p [Unit], unit: Unit) -> Option<&'p [Unit]> {
        let fold = |unit| if self.ignore_case { folded(unit) } else { unit };
        let is = |literal: &Unit| fold(*literal) == fold(unit);
        match pattern {
            [Unit::Char('?'), rest @ ..] => Some(rest),
            [Unit::Char('\\'), literal, rest @ ..] => is(literal).then_some(rest),
            [Unit::Char('['), rest @ ..] => match set(rest, unit, fold) {
                Some((matches, rest)) => matches.then_some(rest),
                // If the set has no end, `[` is a literal.
                None => is(&Unit::Char('[')).then_some(rest),
            },
            // A backslash at the end quotes no character, so it matches nothing.
            [Unit::Char('\\')] | [] => None,
            [literal, rest @ ..] => is(literal).then_some(rest),
        }
    }
}

/// An element of a set.
enum Element {
    One(Unit),
    Class(String),
    /// A class of equivalent characters. In the locale C.UTF-8, a class has only one member.
    Equal(Unit),
    /// A collating element of several characters. The locales C and C.UTF-8 have none.
    Unknown,
}

/// Parses a set. `text` begins after the `[` of the set. Returns whether `unit` is in the set, and the pattern after the set. Returns
/// `None` if the set has no end. `fold` maps the case of single letters and ranges, but not of classes.
fn set(text: &[Unit], unit: Unit, fold: impl Fn(Unit) -> Unit) -> Option<(bool, &[Unit])> {
    let negated = matches!(text.first(), Some(Unit::Char('!' | '^')));
    let mut rest = &text[usize::from(negated)..];
    let (mut found, mut first) = (false, true);
    loop {
        if let [Unit::Char(']'), after @ ..] = rest
            && !first
        {
            return Some((found != negated, after));
        }
        let (element, after) = element(rest)?;
        (rest, first) = (after, false);
        let low = match element {
            Element::One(low) => low,
            Element::Class(name) => match is_of_class(unit, &name) {
                Some(is) => {
                    found |= is;
                    continue;
                }
                None => return Some((false, rest)),
            },
            Element::Equal(one) => {
                found |= one == unit;
                continue;
            }
            Element::Unknown => return Some((false, rest)),
        };
        let mut high = low;
        if let [Unit::Char('-'), end @ ..] = rest
            && !matches!(end, [Unit::Char(']'), ..])
            && let Some((Element::One(end), after)) = self::element(end)
        {
            (high, rest) = (end, after);
        }
        found |= (fold(low)..=fold(high)).contains(&fold(unit));
    }
}

/// Returns the first element of a set, and the text after this element.
fn element(text: &[Unit]) -> Option<(Element, &[Unit])> {
    if let [Unit::Char('['), Unit::Char(kind @ (':' | '=' | '.')), inner @ ..] = text
        && let Some(end) =
            inner.windows(2).position(|it| it == [Unit::Char(*kind), Unit::Char(']')])
    {
        let (name, after) = (&inner[..end], &inner[end + 2..]);
        let letter = |unit: &Unit| match unit {
            Unit::Char(letter) => *letter,
            Unit::Byte(_) => char::REPLACEMENT_CHARACTER,
        };
        let element = match (kind, name) {
            (':', name) => Element::Class(name.iter().map(letter).collect()),
            ('=', [one]) => Element::Equal(*one),
            (_, [one]) => Element::One(*one),
            _ => Element::Unknown,
        };
        return Some((element, after));
    }
    match text {
        [Unit::Char('\\'), literal, after @ ..] | [literal, after @ ..] => {
            Some((Element::One(*literal), after))
        }
        [] => None,
    }
}

/// Whether a unit is in a POSIX class. `None` if the class does not exist; then the pattern matches nothing.
fn is_of_class(unit: Unit, class: &str) -> Option<bool> {
    // U+FFFD stands for a byte that is not part of a character. No class contains U+FFFD.
    let it = if let Unit::Char(it) = unit { it } else { char::REPLACEMENT_CHARACTER };
    let known = it != char::REPLACEMENT_CHARACTER;
    let alphabetic = it.is_alphabetic() || !it.is_ascii() && it.is_numeric();
    let alphanumeric = alphabetic || it.is_ascii_digit();
    let space = it.is_whitespace() && !matches!(it, '\u{a0}' | '\u{2007}' | '\u{202f}');
    Some(match class {
        "alpha" => alphabetic,
        "digit" => it.is_ascii_digit(),
        "alnum" => alphanumeric,
        "upper" => it.is_uppercase(),
        "lower" => it.is_lowercase(),
        "space" => space,
        "blank" => space && !it.is_control() || it == '\t',
        "punct" => known && !alphanumeric && !space && !it.is_control(),
        "print" => known && !it.is_control(),
        "graph" => known && !it.is_control() && !space,
        "cntrl" => it.is_control(),
        "xdigit" => it.is_ascii_hexdigit(),
        _ => return None,
    })
}

fn folded(unit: Unit) -> Unit {
    let Unit::Char(letter) = unit else { return unit };
    let mut lower = letter.to_lowercase();
    match (lower.next(), lower.next()) {
        (Some(lower), None) => Unit::Char(lower),
        _ => unit,
    }
}

fn units(text: &[u8], utf8: bool) -> impl Iterator<Item = Unit> {
    text.utf8_chunks().flat_map(move |chunk| {
        let (valid, bytes) = if utf8 { (chunk.valid(), "") } else { ("", chunk.valid()) };
        let bytes = bytes.bytes().chain(chunk.invalid().iter().copied());
        let byte =
            |byte: u8| if byte.is_ascii() { Unit::Char(byte.into()) } else { Unit::Byte(byte) };
        valid.chars().map(Unit::Char).chain(bytes.map(byte))
    })
}

/// Whether the locale of the environment encodes names in UTF-8, by the rules of setlocale(3).
fn is_utf8_locale() -> bool {
    let value =
        |name| std::env::var_os(name).filter(|value: &std::ffi::OsString| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(value);
    locale.is_some_and(|locale| is_utf8(&locale))
}

fn is_utf8(locale: &OsStr) -> bool {
    let locale = locale.as_bytes().to_ascii_lowercase();
    [&b"utf-8"[..], b"utf8"].iter().any(|name| locale.windows(name.len()).any(|it| it == *name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Glob::in_locale(pattern.as_bytes(), false, false).matches(text.as_bytes())
    }

    /// The expected results are those of fnmatch(3) of glibc.
    #[test]
    fn patterns_match_as_those_of_a_shell() {
        let yes: [(&str, &str); 24] = [
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
            ("[[:alpha:]]*", "a1"),
            ("*[[:digit:]]", "a1"),
            ("[![:alpha:]]*", ".hid"),
            ("[[:alpha:][:digit:]_]", "_"),
            ("[[:upper:]-z]", "-"),
            ("[[=a=]]", "a"),
            ("[[.-.]a]", "-"),
            ("[[.a.]-c]", "b"),
            ("[[:]", "["),
            ("[[:]", ":"),
            ("[[:punct:]]", "]"),
        ];
        for (pattern, text) in yes {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        let no = [
            ("", "a"),
            ("?", ""),
            ("a*b", "ac"),
            ("[!a]", "a"),
            ("[a-c]", "d"),
            ("\\*", "x"),
            ("A", "a"),
            ("[[:alpha:]]", "1"),
            ("[![:alpha:]]*", "q]"),
            ("[[:nothing:]a]", "a"),
            ("[![:nothing:]]", "a"),
            ("[[.ab.]c]", "c"),
            ("[c-a]", "b"),
            ("?", "é"),
            ("[[:alpha:]]*", "é"),
        ];
        for (pattern, text) in no {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
        // The number of steps must not grow exponentially with the number of stars. Otherwise, this test would never end.
        assert!(!matches(&"a*".repeat(40), &"a".repeat(39)));
    }

    /// The expected results are those of fnmatch(3) of glibc in the locale C.UTF-8.
    #[test]
    fn characters_of_utf_8_are_one_each_or_bytes() {
        let utf8 = |pattern: &str, text: &[u8]| {
            Glob::in_locale(pattern.as_bytes(), false, true).matches(text)
        };
        for (pattern, text) in [
            ("?", "é"),
            ("x?y", "xéy"),
            ("[é]", "é"),
            ("[!a]", "É"),
            ("??", "é"),
            ("[[:lower:]]", "é"),
        ] {
            assert!(utf8(pattern, text.as_bytes()), "{pattern} {text}");
        }
        assert!(!utf8("???", "é".as_bytes()) && !utf8("[[:upper:]]", "é".as_bytes()));
        // Bytes that are not UTF-8 are matched byte by byte.
        assert!(utf8("a?b*", b"a\xFFb\xFE"));
    }

    #[test]
    fn case_is_ignored_where_that_is_asked_for() {
        let ignoring = |pattern: &str, text: &str, utf8| {
            Glob::in_locale(pattern.as_bytes(), true, utf8).matches(text.as_bytes())
        };
        assert!(ignoring("*.JPG", "a.jpG", false) && ignoring("[A-C]", "b", false));
        assert!(ignoring("é", "É", true) && !ignoring("é", "É", false));
        assert!(ignoring("[[:upper:]]", "A", false) && !ignoring("[[:upper:]]", "a", false));
        assert!(ignoring("[[=A=]]", "A", false) && !ignoring("[[=A=]]", "a", false));
        assert!(ignoring("A[B]", "ab", false) && !ignoring("[[:UPPER:]]", "A", false));
    }

    #[test]
    fn locales_are_known_by_their_names() {
        for name in ["C.UTF-8", "de_DE.utf8", "en_US.UTF-8@euro"] {
            assert!(is_utf8(OsStr::new(name)), "{name}");
        }
        assert!(!is_utf8(OsStr::new("C")) && !is_utf8(OsStr::new("de_DE.ISO-8859-1")));
    }
}
