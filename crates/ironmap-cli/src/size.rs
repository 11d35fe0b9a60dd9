//! Sizes on the command line.

/// Parses bytes: `4096`, `4k`, `1m`, `2G`, `16TiB`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(split);
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err(format!("{text} is no size")),
    };
    let value: u64 = digits.parse().map_err(|_| format!("{text} is no size"))?;
    value.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_suffixes() {
        let good = [
            ("0", 0),
            ("4096", 4096),
            ("4k", 4096),
            ("1MiB", 1 << 20),
            ("2g", 2 << 30),
            ("16T", 16 << 40),
        ];
        for (text, bytes) in good {
            assert_eq!(size(text), Ok(bytes));
        }
        for text in ["", "k", "4x", "-1", "99999999999g"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
