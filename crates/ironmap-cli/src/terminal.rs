//! Makes text from a volume (names, targets, labels, attributes, and messages that contain them) safe for a terminal. No other module does
//! this.
//!
//! Text from a volume can contain escape sequences that change a terminal's title or clipboard. All commands write to standard output
//! through [`Out`]. [`Out`] does not pass these sequences to a terminal. Names are also quoted, so that users can distinguish and copy
//! them. A pipe gets every byte unchanged.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use ironmap_image::quote;

/// Buffered standard output. If the output is a closed pipe, a write ends the command without a message.
pub(crate) struct Out {
    to: BufWriter<StdoutLock<'static>>,
    terminal: bool,
}

pub(crate) fn stdout() -> Out {
    Out { to: BufWriter::new(io::stdout().lock()), terminal: io::stdout().is_terminal() }
}

/// Prints one line and flushes the output. A drop of `Out` would not report an error.
pub(crate) fn print_line(line: impl Display) -> io::Result<()> {
    let mut out = stdout();
    writeln!(out, "{line}")?;
    out.flush()
}

impl Out {
    /// Whether the output is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Returns a name in the form for this output. On a terminal, [`quote::name`] quotes the name. For a pipe, the name is unchanged.
    pub(crate) fn shown<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        match self.terminal {
            true => Cow::Owned(quote::name(bytes).into_bytes()),
            false => Cow::Borrowed(bytes),
        }
    }

    /// Writes the `special` bytes of a text in octal, as `getfattr` does. On a terminal, control characters and bytes that are not UTF-8
    /// are also written in octal.
    pub(crate) fn octal(&self, text: &[u8], special: &[u8]) -> Vec<u8> {
        octal(text, special, self.terminal)
    }

    /// Writes text unchanged. The caller has made the text safe for a terminal, and may have added colours.
    pub(crate) fn write_styled(&mut self, text: &[u8]) -> io::Result<()> {
        self.to.write_all(text)
    }
}

/// On a terminal, control characters are escaped, for example as `\u001b`. This form is also valid JSON. A byte that is not UTF-8 is
/// escaped as `\xff`.
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

/// Whether a character controls the terminal. Newlines and tabs do not count.
fn controls(char: char) -> bool {
    char.is_control() && char != '\n' && char != '\t'
}

/// A message as one line. Names may contain line breaks and terminal controls. Both are escaped.
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

/// Text with the `special` bytes in octal.
fn octal(text: &[u8], special: &[u8], terminal: bool) -> Vec<u8> {
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

    #[test]
    fn a_message_stays_one_line() {
        assert_eq!(one_line("a\nb\x1b[31m"), "a\\nb\\u{1b}[31m");
    }
}
