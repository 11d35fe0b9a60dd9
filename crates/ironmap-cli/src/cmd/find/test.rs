//! The tests of `find`, with the meaning of findutils.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

use ironmap::fs::FileType;
use ironmap_image::Failure;
use ironmap_image::volumes::{Found, split};

use crate::glob::Glob;
use crate::mode::ModeChange;

/// The tests and the options of a search.
#[derive(Debug)]
pub(super) struct Expression {
    tests: Vec<Test>,
    /// The minimum and the maximum depth of the files that are shown. The directory that the user named has depth 0.
    pub(super) least: usize,
    pub(super) most: usize,
    /// Each name ends with a NUL instead of a newline.
    pub(super) print0: bool,
    /// The time of the search, in seconds.
    now: i64,
}

#[derive(Debug)]
enum Test {
    Name(Glob),
    Path(Glob),
    Type(Vec<FileType>),
    Size(Number, u64),
    Days(Number),
    Empty,
    Links(Number),
    Permissions(Bits, u32),
    User(Number),
    Inode(Number),
    Not(Box<Test>),
}

/// A test of a number: `N` means exactly N, `+N` means more than N, and `-N` means less than N.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Is(u64),
    More(u64),
    Less(u64),
}

#[derive(Clone, Copy, Debug)]
enum Bits {
    Exactly,
    /// `-MODE`: the file has all bits of the mode.
    All,
    /// `/MODE`: the file has any bit of the mode.
    Any,
}

impl Expression {
    pub(super) fn parse(words: &[OsString]) -> Result<Self, String> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut parsed = Self {
            tests: Vec::new(),
            least: 0,
            most: usize::MAX,
            print0: false,
            now: since.as_secs() as i64,
        };
        let mut words = words.iter();
        let mut negated = false;
        while let Some(word) = words.next() {
            let mut value =
                || words.next().ok_or_else(|| format!("{} needs a value", word.display()));
            let test = match word.as_bytes() {
                b"!" | b"-not" => {
                    negated = !negated;
                    continue;
                }
                b"-print0" => {
                    parsed.print0 = true;
                    continue;
                }
                b"-print" => continue,
                b"-mindepth" => {
                    parsed.least = count(value()?)?;
                    continue;
                }
                b"-maxdepth" => {
                    parsed.most = count(value()?)?;
                    continue;
                }
                b"-name" => Test::Name(Glob::new(value()?.as_bytes(), false)),
                b"-iname" => Test::Name(Glob::new(value()?.as_bytes(), true)),
                b"-path" => Test::Path(Glob::new(value()?.as_bytes(), false)),
                b"-type" => Test::Type(types(value()?)?),
                b"-size" => size(value()?)?,
                b"-mtime" => Test::Days(Number::parse(value()?)?),
                b"-empty" => Test::Empty,
                b"-links" => Test::Links(Number::parse(value()?)?),
                b"-perm" => permissions(value()?)?,
                b"-uid" => Test::User(Number::parse(value()?)?),
                b"-inum" => Test::Inode(Number::parse(value()?)?),
                _ => {
                    return Err(format!(
                        "{} is not a known test: ironmap find --help lists the tests",
                        word.display()
                    ));
                }
            };
            parsed.tests.push(if negated { Test::Not(Box::new(test)) } else { test });
            negated = false;
        }
        if negated {
            return Err("the test after '!' is missing".to_owned());
        }
        Ok(parsed)
    }

    /// Whether a file passes all tests. `shown` is the path as it is printed.
    pub(super) fn matches(&self, found: &Found, shown: &[u8]) -> Result<bool, Failure> {
        for test in &self.tests {
            if !test.matches(found, shown, self.now)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Test {
    fn matches(&self, found: &Found, shown: &[u8], now: i64) -> Result<bool, Failure> {
        let stat = found.inode.stat();
        Ok(match self {
            Self::Name(glob) => {
                let path = found.name.path();
                let root = path.iter().all(|byte| *byte == b'/');
                glob.matches(if root { b"/" } else { split(path).1 })
            }
            Self::Path(glob) => glob.matches(shown),
            Self::Type(types) => types.contains(&stat.file_type),
            Self::Size(number, unit) => number.is(stat.size.div_ceil(*unit)),
            Self::Days(number) => {
                // A time in the future has a negative age in days, which is less than every number.
                let age = now.saturating_sub(stat.modified.seconds).div_euclid(86_400);
                u64::try_from(age).map_or(matches!(number, Number::Less(_)), |age| number.is(age))
            }
            Self::Empty => match stat.file_type {
                FileType::Regular => stat.size == 0,
                FileType::Directory => {
                    let entries = found.name.source.entries(&found.inode, found.name.path())?;
                    entries.iter().all(|entry| matches!(&*entry.name, b"." | b".."))
                }
                _ => false,
            },
            Self::Links(number) => number.is(stat.links.into()),
            Self::Permissions(how, wanted) => {
                let mode = stat.mode & 0o7777;
                match how {
                    Bits::Exactly => mode == *wanted,
                    Bits::All => mode & wanted == *wanted,
                    Bits::Any => *wanted == 0 || mode & wanted != 0,
                }
            }
            Self::User(number) => number.is(stat.uid.into()),
            Self::Inode(number) => number.is(stat.inode.0),
            Self::Not(test) => !test.matches(found, shown, now)?,
        })
    }
}

impl Number {
    fn parse(text: &OsStr) -> Result<Self, String> {
        text.to_str()
            .and_then(Self::parse_str)
            .ok_or_else(|| format!("{} is not a number", text.display()))
    }

    fn parse_str(text: &str) -> Option<Self> {
        let (how, digits): (fn(u64) -> Self, _) = match text.as_bytes().first()? {
            b'+' => (Self::More, &text[1..]),
            b'-' => (Self::Less, &text[1..]),
            _ => (Self::Is, text),
        };
        let digits = digits.bytes().all(|byte| byte.is_ascii_digit()).then_some(digits)?;
        digits.parse().ok().map(how)
    }

    fn is(self, value: u64) -> bool {
        match self {
            Self::Is(wanted) => value == wanted,
            Self::More(least) => value > least,
            Self::Less(most) => value < most,
        }
    }
}

fn count(text: &OsStr) -> Result<usize, String> {
    let count = text.to_str().and_then(|text| text.parse().ok());
    count.ok_or_else(|| format!("{} is not a number of levels", text.display()))
}

fn types(text: &OsStr) -> Result<Vec<FileType>, String> {
    let one = |letter: &[u8]| {
        Ok(match letter {
            b"f" => FileType::Regular,
            b"d" => FileType::Directory,
            b"l" => FileType::Symlink,
            b"b" => FileType::BlockDevice,
            b"c" => FileType::CharDevice,
            b"p" => FileType::Fifo,
            b"s" => FileType::Socket,
            _ => {
                return Err(format!(
                    "{} is not a list of the letters b,c,d,f,l,p,s",
                    text.display()
                ));
            }
        })
    };
    text.as_bytes().split(|byte| *byte == b',').map(one).collect()
}

/// Parses a size: N units of 512 bytes, or N units of the size that a letter names.
fn size(text: &OsStr) -> Result<Test, String> {
    let wrong = || format!("{} is not a size", text.display());
    let text = text.to_str().ok_or_else(wrong)?;
    let (digits, unit) = match text.char_indices().next_back().ok_or_else(wrong)? {
        (at, 'c') => (&text[..at], 1),
        (at, 'w') => (&text[..at], 2),
        (at, 'b') => (&text[..at], 512),
        (at, 'k') => (&text[..at], 1 << 10),
        (at, 'M') => (&text[..at], 1 << 20),
        (at, 'G') => (&text[..at], 1 << 30),
        _ => (text, 512),
    };
    Ok(Test::Size(Number::parse_str(digits).ok_or_else(wrong)?, unit))
}

fn permissions(text: &OsStr) -> Result<Test, String> {
    let text = text.to_str().ok_or_else(|| format!("invalid mode: '{}'", text.display()))?;
    let (how, mode) = match text.as_bytes().first() {
        // '+' is the obsolete form of '/'. findutils refuses it too.
        Some(b'+') if text[1..].starts_with(|first: char| first.is_ascii_digit()) => {
            return Err(format!("invalid mode: '{text}'"));
        }
        Some(b'-') => (Bits::All, &text[1..]),
        Some(b'/') => (Bits::Any, &text[1..]),
        _ => (Bits::Exactly, text),
    };
    Ok(Test::Permissions(how, ModeChange::parse(mode)?.apply(0, false, 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_test_is_refused() {
        let parse =
            |words: &[&str]| Expression::parse(&words.iter().map(Into::into).collect::<Vec<_>>());
        assert!(
            parse(&["!", "-name", "a*", "-size", "+4k", "-perm", "/u+w", "-type", "f,l"]).is_ok()
        );
        let wrong: [&[&str]; 10] = [
            &["-perm", "+755"],
            &["-name"],
            &["-nothing"],
            &["x"],
            &["-size", "4x"],
            &["-size", ""],
            &["-type", "f,"],
            &["-mtime", "+"],
            &["-perm", "8"],
            &["!"],
        ];
        for words in wrong {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
