//! The one place where text from a volume (names, targets, labels, attributes, and messages with these) becomes text for a terminal.
//!
//! Such text can hold escape sequences that change the title of a terminal, or its clipboard. Standard output is [`Out`], which passes none of
//! them to a terminal. Names are quoted first, so that they can be told apart and copied. A pipe gets every byte unchanged.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::sync::LazyLock;

/// Buffered standard output. A write to a pipe whose reader has closed it ends the command quietly.
pub(crate) struct Out {
    to: BufWriter<StdoutLock<'static>>,
    terminal: bool,
}

pub(crate) fn stdout() -> Out {
    Out { to: BufWriter::new(io::stdout().lock()), terminal: is_terminal() }
}

/// Whether standard output is a terminal.
pub(crate) fn is_terminal() -> bool {
    static TERMINAL: LazyLock<bool> = LazyLock::new(|| io::stdout().is_terminal());
    *TERMINAL
}

/// Prints one line, and reports an error that a dropped `Out` would hide.
pub(crate) fn print_line(line: impl Display) -> io::Result<()> {
    let mut out = stdout();
    writeln!(out, "{line}")?;
    out.flush()
}

impl Out {
    /// Writes text that the caller has already made safe for a terminal, with its colours.
    pub(crate) fn write_styled(&mut self, text: &[u8]) -> io::Result<()> {
        self.to.write_all(text)
    }
}

/// On a terminal a control character becomes `\u001b`, which is valid JSON too, and a byte that is not UTF-8 becomes `\xff`.
impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.terminal {
            return self.to.write(bytes);
        }
        for chunk in bytes.utf8_chunks() {
            for part in chunk.valid().split_inclusive(controls) {
                let control = part.chars().next_back().filter(|char| controls(*char));
                let plain = part.len() - control.map_or(0, char::len_utf8);
                self.to.write_all(&part.as_bytes()[..plain])?;
                if let Some(control) = control {
                    write!(self.to, "\\u{:04x}", u32::from(control))?;
                }
            }
            for byte in chunk.invalid() {
                write!(self.to, "\\x{byte:02x}")?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Whether a character is a control of the terminal, and neither text nor layout.
fn controls(char: char) -> bool {
    char.is_control() && char != '\n' && char != '\t'
}

/// A message as one line: names may hold line breaks and terminal controls.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() {
            let _ = write!(line, "{}", char.escape_default());
        } else {
            line.push(char);
        }
    }
    line
}

/// A name for standard output: quoted by [`name`] on a terminal, raw in a pipe.
pub(crate) fn shown(bytes: &[u8]) -> Cow<'_, [u8]> {
    if is_terminal() { Cow::Owned(name(bytes).into_bytes()) } else { Cow::Borrowed(bytes) }
}

/// A name for a terminal, quoted if a shell needs it, in the style of GNU `ls`.
pub(crate) fn name(bytes: &[u8]) -> String {
    let plain = |char: char| match char {
        ' '..='~' => char.is_ascii_alphanumeric() || "#%+,-./:@]_{}~".contains(char),
        char => !char.is_control(),
    };
    match std::str::from_utf8(bytes) {
        Ok(text) if text.chars().all(plain) && !text.starts_with(['#', '~']) => text.to_owned(),
        _ => quoted(bytes),
    }
}

/// A name in quotes for a shell, in the style of `stat -c %N`.
pub(crate) fn quoted(name: &[u8]) -> String {
    // These characters are the same within both kinds of quotes.
    let plain = |char: char| char.is_ascii_alphanumeric() || "%+,-./:@]_' ".contains(char);
    if let Ok(text) = std::str::from_utf8(name)
        && text.contains('\'')
        && text.chars().all(plain)
    {
        return format!("\"{text}\"");
    }
    let mut shown = String::from("'");
    let mut escaped = false;
    let mut escape = |shown: &mut String, begins: bool| {
        if begins != escaped {
            shown.push_str(if begins { "'$'" } else { "''" });
            escaped = begins;
        }
    };
    for chunk in name.utf8_chunks() {
        for char in chunk.valid().chars() {
            escape(&mut shown, char.is_control());
            match char {
                '\'' => shown.push_str("'\\''"),
                '\n' => shown.push_str("\\n"),
                '\t' => shown.push_str("\\t"),
                '\r' => shown.push_str("\\r"),
                '\x07' => shown.push_str("\\a"),
                '\x08' => shown.push_str("\\b"),
                '\x0b' => shown.push_str("\\v"),
                '\x0c' => shown.push_str("\\f"),
                char if char.is_control() => {
                    let mut bytes = [0; 4];
                    for byte in char.encode_utf8(&mut bytes).bytes() {
                        let _ = write!(shown, "\\{byte:03o}");
                    }
                }
                char => shown.push(char),
            }
        }
        for byte in chunk.invalid() {
            escape(&mut shown, true);
            let _ = write!(shown, "\\{byte:03o}");
        }
    }
    shown.push('\'');
    shown
}

/// Text with the bytes in `special` in octal, in the style of `getfattr`. On a terminal, controls and bytes that are not UTF-8 are octal too.
pub(crate) fn octal(text: &[u8], special: &[u8]) -> Vec<u8> {
    let terminal = is_terminal();
    let mut shown = Vec::with_capacity(text.len());
    let escape = |shown: &mut Vec<u8>, bytes: &[u8]| {
        shown.extend(bytes.iter().flat_map(|byte| format!("\\{byte:03o}").into_bytes()));
    };
    for chunk in text.utf8_chunks() {
        for char in chunk.valid().chars() {
            let mut bytes = [0; 4];
            let bytes = char.encode_utf8(&mut bytes).as_bytes();
            if special.contains(&bytes[0]) || terminal && char.is_control() {
                escape(&mut shown, bytes);
            } else {
                shown.extend(bytes);
            }
        }
        match chunk.invalid() {
            bytes if terminal => escape(&mut shown, bytes),
            bytes => shown.extend(bytes),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of stat -c %N of coreutils 9.1.
    #[test]
    fn names_are_quoted_for_a_shell() {
        let shown: [(&[u8], &str); 6] = [
            (b"a b", "'a b'"),
            (b"a'b", "\"a'b\""),
            (b"a b$\"'", "'a b$\"'\\'''"),
            (b"a\nb'c", "'a'$'\\n''b'\\''c'"),
            (b"\xff", "''$'\\377'"),
            (b"\x01\x02", "''$'\\001\\002'"),
        ];
        for (name, text) in shown {
            assert_eq!(quoted(name), text);
        }
    }

    #[test]
    fn a_message_stays_one_line() {
        assert_eq!(one_line("a\nb\x1b[31m"), "a\\nb\\u{1b}[31m");
    }

    /// The output of ls on a terminal, of coreutils 9.1.
    #[test]
    fn names_have_quotes_where_a_shell_needs_them() {
        for plain in ["a#b", "a~b", "a{b}", "%+,-./:@]_", "é"] {
            assert_eq!(name(plain.as_bytes()), plain);
        }
        for odd in " !\"#$&()*;<=>?[\\^`|~".chars() {
            assert_eq!(name(format!("{odd}b").as_bytes()), format!("'{odd}b'"));
        }
        let shown: [(&[u8], &str); 3] = [
            (b"a@b'c", "\"a@b'c\""),
            (b"a\x7f\x1b]0;x\x07", "'a'$'\\177\\033'']0;x'$'\\a'"),
            (b"\xc2\x9b", "''$'\\302\\233'"),
        ];
        for (bytes, text) in shown {
            assert_eq!(name(bytes), text);
        }
    }
}
