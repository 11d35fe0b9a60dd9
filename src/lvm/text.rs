//! The parser of LVM metadata: a text with sections, numbers, strings and lists. The files in /etc/lvm/backup have the same format.

use std::collections::BTreeMap;

use crate::error::{Error, ErrorKind, Result};

/// The largest depth of nested sections. Metadata of LVM have three levels.
const DEPTH: usize = 8;

/// A section of the text: its values and its subsections. Each has a name.
#[derive(Debug, Default)]
pub(super) struct Section(BTreeMap<String, Item>);

#[derive(Debug)]
enum Item {
    Number(u64),
    Text(String),
    List(Vec<Self>),
    Section(Section),
    /// A value that the parser accepts but that no caller uses, for example a negative number.
    Other,
}

/// The error for LVM metadata that are damaged or contradictory.
pub(super) fn corrupt(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, format!("LVM metadata: {}", what.into()))
}

impl Section {
    /// Parses a text, which ends at its first zero byte.
    ///
    /// # Errors
    /// `Corrupt` for a wrong syntax.
    pub(super) fn parse(text: &[u8]) -> Result<Self> {
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        let mut parser = Parser { text: &text[..end], at: 0 };
        let section = parser.section(0)?;
        if parser.at < parser.text.len() {
            Err(parser.wrong("a closing brace"))
        } else {
            Ok(section)
        }
    }

    /// The subsections, with their names.
    pub(super) fn sections(&self) -> impl Iterator<Item = (&str, &Self)> {
        self.0.iter().filter_map(|(name, item)| match item {
            Item::Section(section) => Some((name.as_str(), section)),
            _ => None,
        })
    }

    /// Returns the subsection with this name.
    ///
    /// # Errors
    /// `Corrupt` if there is no subsection with this name.
    pub(super) fn section(&self, name: &str) -> Result<&Self> {
        match self.0.get(name) {
            Some(Item::Section(section)) => Ok(section),
            _ => Err(corrupt(format!("the section {name} is missing"))),
        }
    }

    /// Returns the number with this name.
    ///
    /// # Errors
    /// `Corrupt` if there is no number with this name.
    pub(super) fn number(&self, name: &str) -> Result<u64> {
        match self.0.get(name) {
            Some(Item::Number(number)) => Ok(*number),
            _ => Err(corrupt(format!("the number {name} is missing"))),
        }
    }

    /// Returns the text value with this name.
    ///
    /// # Errors
    /// `Corrupt` if there is no text value with this name.
    pub(super) fn text(&self, name: &str) -> Result<&str> {
        self.find_text(name).ok_or_else(|| corrupt(format!("the text {name} is missing")))
    }

    /// Returns the text value with this name, or `None`.
    pub(super) fn find_text(&self, name: &str) -> Option<&str> {
        match self.0.get(name) {
            Some(Item::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Whether the value with this name is `text`, or a list that contains `text`.
    pub(super) fn lists(&self, name: &str, text: &str) -> bool {
        match self.0.get(name) {
            Some(Item::List(items)) => {
                items.iter().any(|item| matches!(item, Item::Text(found) if found == text))
            }
            _ => self.find_text(name) == Some(text),
        }
    }

    /// Returns the list of texts with this name.
    ///
    /// # Errors
    /// `Corrupt` if there is no list with this name, or if the list has other elements.
    pub(super) fn texts(&self, name: &str) -> Result<Vec<&str>> {
        let wrong = || corrupt(format!("the list {name} is not a list of names"));
        let Some(Item::List(items)) = self.0.get(name) else { return Err(wrong()) };
        let texts = items.iter().map(|item| match item {
            Item::Text(text) => Ok(text.as_str()),
            _ => Err(wrong()),
        });
        texts.collect()
    }

    /// Returns the list with this name. The list consists of pairs of a text and a number.
    ///
    /// # Errors
    /// `Corrupt` if there is no list with this name, or if the list has other elements.
    pub(super) fn pairs(&self, name: &str) -> Result<Vec<(&str, u64)>> {
        let wrong = || corrupt(format!("the list {name} is not a list of names and numbers"));
        let Some(Item::List(items)) = self.0.get(name) else { return Err(wrong()) };
        let pairs = items.chunks(2).map(|pair| match pair {
            [Item::Text(text), Item::Number(number)] => Ok((text.as_str(), *number)),
            _ => Err(wrong()),
        });
        pairs.collect()
    }
}

/// A parser. Each step consumes at least one byte of the text, so the number of steps is limited.
struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Parser<'a> {
    fn wrong(&self, expected: &str) -> Error {
        corrupt(format!("byte {} of the text is not {expected}", self.at))
    }

    /// Skips blanks and comments. Returns the next byte.
    fn peek(&mut self) -> Option<u8> {
        while let Some(byte) = self.text.get(self.at) {
            match byte {
                b'#' => {
                    let rest = &self.text[self.at..];
                    self.at += rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
                }
                byte if byte.is_ascii_whitespace() => self.at += 1,
                byte => return Some(*byte),
            }
        }
        None
    }

    fn word(&mut self, is_part: impl Fn(u8) -> bool, expected: &str) -> Result<&'a str> {
        let rest = &self.text[self.at..];
        let len = rest.iter().position(|byte| !is_part(*byte)).unwrap_or(rest.len());
        let word = std::str::from_utf8(&rest[..len]).ok().filter(|word| !word.is_empty());
        let word = word.ok_or_else(|| self.wrong(expected))?;
        self.at += len;
        Ok(word)
    }

    /// Parses the content of a section, up to its closing brace or the end of the text.
    fn section(&mut self, depth: usize) -> Result<Section> {
        if depth == DEPTH {
            return Err(corrupt(format!(
                "the sections of the text are nested too deeply at byte {}",
                self.at
            )));
        }
        let mut section = Section::default();
        while let Some(byte) = self.peek() {
            if byte == b'}' {
                break;
            }
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_.+-".contains(&byte);
            let name = self.word(is_name, "a name")?;
            let item = match self.peek() {
                Some(b'{') => {
                    self.at += 1;
                    let inner = self.section(depth + 1)?;
                    self.expect(b'}', "a closing brace")?;
                    Item::Section(inner)
                }
                Some(b'=') => {
                    self.at += 1;
                    self.value()?
                }
                _ => return Err(self.wrong("= or a section")),
            };
            if section.0.insert(name.to_owned(), item).is_some() {
                return Err(corrupt(format!("the name {name} occurs twice")));
            }
        }
        Ok(section)
    }

    fn expect(&mut self, byte: u8, expected: &str) -> Result<()> {
        if self.peek() != Some(byte) {
            return Err(self.wrong(expected));
        }
        self.at += 1;
        Ok(())
    }

    fn value(&mut self) -> Result<Item> {
        if self.peek() != Some(b'[') {
            return self.single();
        }
        self.at += 1;
        let mut items = Vec::new();
        while self.peek() != Some(b']') {
            items.push(self.single()?);
            if self.peek() == Some(b',') {
                self.at += 1;
            } else if self.peek() != Some(b']') {
                return Err(self.wrong("a comma or the end of the list"));
            }
        }
        self.at += 1;
        Ok(Item::List(items))
    }

    fn single(&mut self) -> Result<Item> {
        match self.peek() {
            Some(b'"') => {
                self.at += 1;
                self.quoted().map(Item::Text)
            }
            Some(_) => {
                let is_number = |byte: u8| byte.is_ascii_alphanumeric() || b".+-".contains(&byte);
                let word = self.word(is_number, "a value")?;
                Ok(word.parse().map_or(Item::Other, Item::Number))
            }
            None => Err(self.wrong("a value")),
        }
    }

    /// Parses a text value from the byte after its opening quote. Removes a backslash before a quote or before another backslash.
    fn quoted(&mut self) -> Result<String> {
        let mut text = Vec::new();
        loop {
            let byte = *self.text.get(self.at).ok_or_else(|| self.wrong("a closing quote"))?;
            self.at += 1;
            match (byte, self.text.get(self.at)) {
                (b'"', _) => break,
                (b'\\', Some(next @ (b'"' | b'\\'))) => {
                    text.push(*next);
                    self.at += 1;
                }
                _ => text.push(byte),
            }
        }
        let end = self.at;
        String::from_utf8(text)
            .map_err(|_| corrupt(format!("the string that ends at byte {end} is not in UTF-8")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_and_values_are_found_by_their_names() {
        let text = b"# a comment\nvg {\n id = \"a\\\"b\\\\\" seqno=3 # one more\n status = [\"READ\", \"WRITE\",]\n\
            empty = [] low = -1 segment1 { stripes = [\"pv0\", 0, \"pv1\", 7] } }\n\0garbage }";
        let all = Section::parse(text).unwrap();
        let vg = all.section("vg").unwrap();
        assert_eq!((vg.text("id").unwrap(), vg.number("seqno").unwrap()), ("a\"b\\", 3));
        assert!(vg.lists("status", "WRITE") && !vg.lists("status", "EXPORTED"));
        assert!(
            vg.number("low").is_err() && vg.number("none").is_err() && vg.text("seqno").is_err()
        );
        let stripes = vg.section("segment1").unwrap().pairs("stripes").unwrap();
        assert_eq!(stripes, [("pv0", 0), ("pv1", 7)]);
        assert!(vg.pairs("status").is_err(), "two texts");
    }

    /// The parser does not panic on damaged text. A proper prefix of a valid text gives an error. A text with one changed byte gives a
    /// section or an error.
    #[test]
    fn a_damaged_text_is_an_error_or_a_text() {
        let text = b"vg { id = \"x\" list = [\"a\", 1] inner { number = 2 } }";
        for len in 1..text.len() {
            assert!(Section::parse(&text[..len]).is_err(), "{len}");
        }
        for at in 0..text.len() {
            for byte in [0, b'"', b'{', b'}', b'[', b'#', b'\\', 0xFF] {
                let mut text = text.to_vec();
                text[at] = byte;
                let _ = Section::parse(&text);
            }
        }
        let deep = "a {".repeat(100_000);
        assert!(Section::parse(deep.as_bytes()).is_err());
        for wrong in ["a", "a =", "a = [", "a = [1 2]", "}", "a = 1 a = 2", "= 1", "a { } }"] {
            assert!(Section::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
