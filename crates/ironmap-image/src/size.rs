//! Parses sizes.

/// Parses a size. Units are `4096` (bytes), `4k`, `1m`, `2G` and `16TiB` (powers of 1024), `1kB` and `1MB` (powers of 1000), and `8s`
/// (sectors of 512 bytes).
pub fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text} is not a size");
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(split);
    let value: u64 = digits.parse().map_err(|_| wrong())?;
    let suffix = suffix.to_ascii_lowercase();
    let mut letters = suffix.chars();
    let Some(letter) = letters.next() else { return Ok(value) };
    let large = || format!("{text} is too large");
    if suffix == "s" {
        return value.checked_mul(512).ok_or_else(large);
    }
    let power = "kmgtpe".find(letter).ok_or_else(wrong)? as u32 + 1;
    let base: u64 = match letters.as_str() {
        "" | "ib" => 1024,
        "b" => 1000,
        _ => return Err(wrong()),
    };
    base.pow(power).checked_mul(value).ok_or_else(large)
}

/// Parses a size other than 0.
pub fn some(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err(format!("{text} is not a size above 0")),
        size => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_binary_except_a_single_b() {
        let good = [
            ("0", 0),
            ("4096", 4096),
            ("4k", 4096),
            ("1MiB", 1 << 20),
            ("1kB", 1000),
            ("010", 10),
            ("2g", 2 << 30),
            ("16T", 16 << 40),
            ("2048s", 1 << 20),
        ];
        for (text, bytes) in good {
            assert_eq!(size(text), Ok(bytes));
        }
        for text in ["", "k", "4x", "-1", "0x10", "1KiBx", "1sb", "16E", "99999999999g"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
