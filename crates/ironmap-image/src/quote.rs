//! Quotes names as GNU programs do.

use std::fmt::Write as _;

/// Formats a name for a terminal, with quotes if a shell needs them, as GNU `ls` does.
pub fn name(bytes: &[u8]) -> String {
    let plain = |char: char| match char {
        ' '..='~' => char.is_ascii_alphanumeric() || "#%+,-./:@]_{}~".contains(char),
        char => !char.is_control(),
    };
    match std::str::from_utf8(bytes) {
        Ok(text) if text.chars().all(plain) && !text.starts_with(['#', '~']) => text.to_owned(),
        _ => quoted(bytes),
    }
}

/// Returns a name in quotes that a shell accepts, as `stat -c %N` prints it.
pub fn quoted(name: &[u8]) -> String {
    // Characters that need no escape in single quotes or in double quotes.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected names are the output of stat -c %N of coreutils 9.1.
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

    /// The expected names are the output of ls of coreutils 9.1 on a terminal.
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
