//! The output of `stat -c FORMAT`.

use ironmap::fs::{Stat, Timestamp};
use ironmap_image::quote::quoted;

use crate::show::{Clock, Owners, mode_string, type_name};
use crate::terminal::Out;

/// The supported letters, in the order of the manual.
const LETTERS: &[u8] = b"aAbBdDfFgGhinNorRstTuUwWxXyYzZ";

/// The output for each file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Format(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Field(Field),
}

/// A conversion such as `%-10.3s`. It has a letter for the value. Flags and numbers pad or shorten the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Field {
    letter: u8,
    /// `H` or `L` before the letter. `H` selects the major part of a device number, and `L` the minor part.
    half: Option<u8>,
    left: bool,
    zeros: bool,
    alternate: bool,
    /// The text before a number that is not negative: `+` or a blank.
    sign: &'static str,
    width: usize,
    /// The number after a dot. `Some(None)` is a dot without digits: the value has its default precision.
    precision: Option<Option<usize>>,
}

/// The maximum width and precision. A larger number must be a mistake of the user.
const WIDEST: usize = 4096;

/// The values that a format shows.
pub(super) struct Shown<'a> {
    pub(super) name: &'a [u8],
    pub(super) stat: &'a Stat,
    pub(super) link: Option<&'a [u8]>,
    /// The major and minor number of the device that contains the file system.
    pub(super) device: (u32, u32),
    pub(super) owners: &'a Owners,
    pub(super) clock: &'a Clock,
    /// The output. It determines how names are quoted.
    pub(super) out: &'a Out,
}

/// A value. Its type determines the `printf` rules by which it is formatted.
enum Value {
    Text(Vec<u8>),
    Signed(u64),
    Unsigned(u64),
    Octal(u64),
    Hexadecimal(u64),
    Time(Timestamp),
}

impl Format {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text.as_bytes();
        while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
            pieces.push(Piece::Text(rest[..at].to_vec()));
            let directive = &rest[at + 1..];
            rest = match directive.strip_prefix(b"%") {
                Some(after) => {
                    pieces.push(Piece::Text(b"%".to_vec()));
                    after
                }
                None => {
                    let what =
                        "the letter after a '%' is unknown: ironmap stat --help lists the letters";
                    let (field, after) = Field::parse(directive).ok_or(what)?;
                    pieces.push(Piece::Field(field));
                    after
                }
            };
        }
        pieces.push(Piece::Text(rest.to_vec()));
        Ok(Self(pieces))
    }

    /// The line for a file, without its newline.
    pub(super) fn line(&self, shown: &Shown<'_>) -> Vec<u8> {
        let pieces = self.0.iter().map(|piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Field(field) if field.letter == b'N' => field.names(shown),
            Piece::Field(field) => field.fill(field.value(shown)),
        });
        pieces.flatten().collect()
    }
}

/// Removes a number from the start of the text and returns it. Returns `Some(None)` if there are no digits, and `None` if the number
/// exceeds [`WIDEST`].
fn take_number(text: &mut &[u8]) -> Option<Option<usize>> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = text.split_at(digits);
    *text = rest;
    if digits == 0 {
        return Some(None);
    }
    let number: usize = std::str::from_utf8(number).ok()?.parse().ok()?;
    (number <= WIDEST).then_some(Some(number))
}

impl Field {
    fn parse(text: &[u8]) -> Option<(Self, &[u8])> {
        let mut field = Self::default();
        let mut rest = text;
        while let Some((flag, after)) = rest.split_first() {
            match flag {
                b'-' => field.left = true,
                b'0' => field.zeros = true,
                b'#' => field.alternate = true,
                b'+' => field.sign = "+",
                b' ' if field.sign.is_empty() => field.sign = " ",
                // `'` would group digits. This is not supported. A blank after `+` or another blank has no effect.
                b' ' | b'\'' => {}
                _ => break,
            }
            rest = after;
        }
        field.width = take_number(&mut rest)?.unwrap_or(0);
        if let Some(after) = rest.strip_prefix(b".") {
            rest = after;
            field.precision = Some(take_number(&mut rest)?);
        }
        let (mut letter, mut after) = rest.split_first()?;
        if matches!(letter, b'H' | b'L') {
            field.half = Some(*letter);
            (letter, after) = after.split_first().filter(|(letter, _)| b"dr".contains(letter))?;
        }
        field.letter = LETTERS.contains(letter).then_some(*letter)?;
        Some((field, after))
    }

    /// The name and the target of a link. Each is padded separately. As in stat, both are quoted only if '%' directly precedes the letter.
    fn names(self, shown: &Shown<'_>) -> Vec<u8> {
        let plain = self == Self { letter: self.letter, ..Self::default() };
        let name = |name: &[u8]| {
            self.fill(Value::Text(if plain {
                quoted(name).into()
            } else {
                shown.out.shown(name).into_owned()
            }))
        };
        let names = [Some(shown.name), shown.link].into_iter().flatten();
        names.map(name).collect::<Vec<_>>().join(&b" -> "[..])
    }

    fn value(self, shown: &Shown<'_>) -> Value {
        use Value::{Hexadecimal, Octal, Signed, Time, Unsigned};
        let Shown { stat, owners, clock, .. } = shown;
        let device = stat.device.unwrap_or_default();
        Value::Text(match self.letter {
            b'a' => return Octal((stat.mode & 0o7777).into()),
            b'A' => mode_string(stat).into(),
            b'b' => return Unsigned(stat.blocks),
            b'B' => return Unsigned(512),
            b'd' => return Unsigned(self.half_of(shown.device)),
            b'D' => return Hexadecimal(device_number(shown.device)),
            b'f' => return Hexadecimal(stat.mode.into()),
            b'F' => type_name(stat).into(),
            b'g' => return Unsigned(stat.gid.into()),
            b'G' => named(owners, owners.group(stat.gid), stat.gid).into(),
            b'h' => return Unsigned(stat.links.into()),
            b'i' => return Unsigned(stat.inode.0),
            b'n' => shown.out.shown(shown.name).into_owned(),
            b'o' => return Unsigned(stat.block_size.into()),
            b'r' => return Unsigned(self.half_of(device)),
            b'R' => return Hexadecimal(device_number(device)),
            b's' => return Signed(stat.size),
            b't' => return Hexadecimal(device.0.into()),
            b'T' => return Hexadecimal(device.1.into()),
            b'u' => return Unsigned(stat.uid.into()),
            b'U' => named(owners, owners.user(stat.uid), stat.uid).into(),
            b'w' => stat.created.map_or("-".to_owned(), |at| clock.full(at)).into(),
            b'W' => return Time(stat.created.unwrap_or_default()),
            b'x' => clock.full(stat.accessed).into(),
            b'X' => return Time(stat.accessed),
            b'y' => clock.full(stat.modified).into(),
            b'Y' => return Time(stat.modified),
            b'z' => clock.full(stat.changed).into(),
            _ => return Time(stat.changed),
        })
    }

    /// A device number, or only its major or minor number if the format requests it.
    fn half_of(self, device: (u32, u32)) -> u64 {
        match self.half {
            None => device_number(device),
            Some(b'H') => device.0.into(),
            Some(_) => device.1.into(),
        }
    }

    fn fill(self, value: Value) -> Vec<u8> {
        // The precision is the minimum number of digits. With a precision, blanks fill the width instead of zeros.
        let digits = self.precision.map(Option::unwrap_or_default);
        let integer = |number: u64, text: String| match digits {
            Some(0) if number == 0 => String::new(),
            digits => format!("{text:0>0$}", digits.unwrap_or(0)),
        };
        let zeros = self.zeros && digits.is_none();
        match value {
            Value::Text(mut text) => {
                text.truncate(digits.unwrap_or(usize::MAX));
                self.pad(text)
            }
            Value::Signed(number) => {
                self.number(self.sign, &integer(number, number.to_string()), zeros)
            }
            Value::Unsigned(number) => self.number("", &integer(number, number.to_string()), zeros),
            Value::Octal(number) => {
                let text = integer(number, format!("{number:o}"));
                let prefix = if self.alternate && !text.starts_with('0') { "0" } else { "" };
                self.number(prefix, &text, zeros)
            }
            Value::Hexadecimal(number) => {
                let prefix = if self.alternate && number != 0 { "0x" } else { "" };
                self.number(prefix, &integer(number, format!("{number:x}")), zeros)
            }
            Value::Time(at) => {
                let digits = self.precision.map_or(0, |digits| digits.unwrap_or(9));
                let sign = if at.seconds < 0 { "-" } else { self.sign };
                self.number(sign, &seconds(at, digits), self.zeros)
            }
        }
    }

    /// Joins the prefix and the digits, with zeros between them up to the width.
    fn number(self, prefix: &str, digits: &str, zeros: bool) -> Vec<u8> {
        let missing = self.width.saturating_sub(prefix.len() + digits.len());
        let missing = if zeros && !self.left { missing } else { 0 };
        self.pad(format!("{prefix}{:0<missing$}{digits}", "").into())
    }

    fn pad(self, text: Vec<u8>) -> Vec<u8> {
        let missing = vec![b' '; self.width.saturating_sub(text.len())];
        if self.left { [text, missing].concat() } else { [missing, text].concat() }
    }
}

/// The device number that the C library makes from the major and minor number.
fn device_number((major, minor): (u32, u32)) -> u64 {
    let (major, minor) = (u64::from(major), u64::from(minor));
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xffff_ff00) << 12 | (major & 0xffff_f000) << 32
}

/// Seconds since 1970 without a sign, with `digits` digits after the point. As in `stat`, a time is rounded towards the past if its rounded
/// fraction is 0. Other times are rounded towards zero.
fn seconds(at: Timestamp, digits: usize) -> String {
    let power = |digits: usize| 10_u32.pow(digits.min(9) as u32);
    let (count, unit) = (power(digits), power(9 - digits.min(9)));
    let (mut whole, mut part) = (at.seconds, at.nanoseconds / unit);
    if whole < 0 && at.nanoseconds != 0 {
        part = count.saturating_sub(part + u32::from(!at.nanoseconds.is_multiple_of(unit)));
        whole += i64::from(part != 0);
    }
    let whole = whole.unsigned_abs();
    if digits == 0 {
        return whole.to_string();
    }
    let part = format!("{part:0width$}", width = digits.min(9));
    format!("{whole}.{part:0<digits$}")
}

/// Returns the name of an owner, or UNKNOWN if the owner has no name. If numbers were requested, returns the number.
fn named(owners: &Owners, name: String, number: u32) -> String {
    let unknown = !owners.numeric && name == number.to_string();
    if unknown { "UNKNOWN".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nanoseconds in a damaged inode may exceed a second. The times are still shown.
    #[test]
    fn nanoseconds_of_any_number_are_shown() {
        for seconds in [i64::MIN, -1, 0, i64::MAX] {
            for digits in [0, 1, 9, 12] {
                super::seconds(Timestamp { seconds, nanoseconds: u32::MAX }, digits);
            }
        }
    }

    #[test]
    fn a_format_of_unknown_letters_is_refused() {
        assert!(Format::parse("%n %5s%% %+.3Y %-010.Y %8Hr %Ld\u{fc}").is_ok());
        for wrong in [
            "%", "100%", "%q", "%5", "%99999s", "%.99999s", "%5%", "%.-3s", "%..3s", "%H", "%Hs",
            "%5-s",
        ] {
            assert!(Format::parse(wrong).is_err(), "{wrong}");
        }
    }
}
