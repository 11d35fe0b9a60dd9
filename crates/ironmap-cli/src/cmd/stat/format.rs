//! `stat -c FORMAT`.

use ironmap::fs::{Stat, Timestamp};

use crate::show::{Clock, Owners, mode_string, quoted, type_name};

/// The letters that there are, in the order of the manual.
const LETTERS: &[u8] = b"aAbBfFgGhinNostTuUwWxXyYzZ";

/// The output for each file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Format(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Field(Field),
}

/// `%-10s`: a letter, and how its value is filled up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Field {
    letter: u8,
    left: bool,
    zeros: bool,
    alternate: bool,
    width: usize,
}

/// The longest width: a wider one is a mistake of the user.
const WIDEST: usize = 4096;

/// The values that a format shows.
pub(super) struct Shown<'a> {
    pub(super) name: &'a [u8],
    pub(super) stat: &'a Stat,
    pub(super) link: Option<&'a [u8]>,
    pub(super) owners: &'a Owners,
    pub(super) clock: &'a Clock,
}

impl Format {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text.as_bytes();
        while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
            pieces.push(Piece::Text(rest[..at].to_vec()));
            let (field, behind) = Field::parse(&rest[at + 1..])
                .ok_or_else(|| "the letter after a '%' is unknown".to_owned())?;
            pieces.push(match field.letter {
                b'%' => Piece::Text(b"%".to_vec()),
                _ => Piece::Field(field),
            });
            rest = behind;
        }
        pieces.push(Piece::Text(rest.to_vec()));
        Ok(Self(pieces))
    }

    /// The line for a file, without its end.
    pub(super) fn line(&self, shown: &Shown<'_>) -> Vec<u8> {
        let pieces = self.0.iter().map(|piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Field(field) => field.fill(field.value(shown)),
        });
        pieces.flatten().collect()
    }
}

impl Field {
    fn parse(text: &[u8]) -> Option<(Self, &[u8])> {
        let mut field = Self::default();
        let mut rest = text;
        loop {
            let (first, behind) = rest.split_first()?;
            match first {
                b'-' => field.left = true,
                b'0' if field.width == 0 => field.zeros = true,
                b'#' => field.alternate = true,
                b'0'..=b'9' => {
                    field.width = field.width * 10 + usize::from(first - b'0');
                    if field.width > WIDEST {
                        return None;
                    }
                }
                letter if LETTERS.contains(letter) || *letter == b'%' => {
                    field.letter = *letter;
                    return Some((field, behind));
                }
                _ => return None,
            }
            rest = behind;
        }
    }

    fn value(self, shown: &Shown<'_>) -> Vec<u8> {
        let Shown { stat, owners, clock, .. } = shown;
        let device = stat.device.unwrap_or_default();
        let seconds = |at: Timestamp| at.seconds.to_string();
        let text = match self.letter {
            b'a' => self.prefixed("0", format!("{:o}", stat.mode & 0o7777)),
            b'A' => mode_string(stat),
            b'b' => stat.blocks.to_string(),
            b'B' => "512".to_owned(),
            b'f' => self.prefixed("0x", format!("{:x}", stat.mode)),
            b'F' => type_name(stat).to_owned(),
            b'g' => stat.gid.to_string(),
            b'G' => named(owners, owners.group(stat.gid), stat.gid),
            b'h' => stat.links.to_string(),
            b'i' => stat.inode.to_string(),
            b'n' => return shown.name.to_vec(),
            b'N' => match shown.link {
                Some(link) => format!("{} -> {}", quoted(shown.name), quoted(link)),
                None => quoted(shown.name),
            },
            b'o' => stat.block_size.to_string(),
            b's' => stat.size.to_string(),
            b't' => self.prefixed("0x", format!("{:x}", device.0)),
            b'T' => self.prefixed("0x", format!("{:x}", device.1)),
            b'u' => stat.uid.to_string(),
            b'U' => named(owners, owners.user(stat.uid), stat.uid),
            b'w' => stat.created.map_or("-".to_owned(), |at| clock.full(at)),
            b'W' => stat.created.map_or("0".to_owned(), seconds),
            b'x' => clock.full(stat.accessed),
            b'X' => seconds(stat.accessed),
            b'y' => clock.full(stat.modified),
            b'Y' => seconds(stat.modified),
            b'z' => clock.full(stat.changed),
            _ => seconds(stat.changed),
        };
        text.into_bytes()
    }

    /// With `#` a number has the prefix of its base, except for zero.
    fn prefixed(self, prefix: &str, digits: String) -> String {
        if self.alternate && digits != "0" { format!("{prefix}{digits}") } else { digits }
    }

    fn fill(self, value: Vec<u8>) -> Vec<u8> {
        let missing = self.width.saturating_sub(value.len());
        let number = b"abBfghiostTuWXYZ".contains(&self.letter);
        match (self.left, self.zeros && number) {
            (true, _) => [value, vec![b' '; missing]].concat(),
            (false, true) => {
                let prefix = if value.starts_with(b"0x") { 2 } else { 0 };
                [&value[..prefix], &vec![b'0'; missing], &value[prefix..]].concat()
            }
            (false, false) => [vec![b' '; missing], value].concat(),
        }
    }
}

/// A number without a name is unknown, unless numbers are wanted.
fn named(owners: &Owners, name: String, number: u32) -> String {
    let unknown = !owners.numeric && name == number.to_string();
    if unknown { "UNKNOWN".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_of_unknown_letters_is_refused() {
        assert!(Format::parse("%n %5s%%\u{fc}").is_ok());
        for wrong in ["%", "100%", "%q", "%5", "%99999s", "% s"] {
            assert!(Format::parse(wrong).is_err(), "{wrong}");
        }
    }
}
