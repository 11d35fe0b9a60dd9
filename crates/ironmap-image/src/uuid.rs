//! Parses UUIDs.

/// The bytes of a UUID, in the order in which they are written as text.
pub type Uuid = [u8; 16];

/// Parses a UUID: 32 hexadecimal digits, with or without dashes.
///
/// # Errors
/// Fails for any other text. The error is a message.
pub fn parse_uuid(text: &str) -> Result<Uuid, String> {
    let wrong = || format!("{text} is not a UUID");
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(wrong());
    }
    let byte = |pair: &[u8; 2]| {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8)
    };
    let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_sixteen_bytes_with_or_without_dashes() {
        let bytes = parse_uuid("00112233-4455-6677-8899-aAbBcCdDeEfF").unwrap();
        assert_eq!(bytes[..3], [0, 0x11, 0x22]);
        assert_eq!(bytes[15], 0xFF);
        assert_eq!(parse_uuid("00112233445566778899aabbccddeeff"), Ok(bytes));
        for wrong in
            ["", "0011", "00112233-4455-6677-8899-aabbccddeef", "g0112233445566778899aabbccddeeff"]
        {
            assert!(parse_uuid(wrong).is_err(), "{wrong}");
        }
    }
}
