//! Arithmetic of the second parity of RAID 6. Bytes are polynomials modulo x^8 + x^4 + x^3 + x^2 + 1. In the parity, the data chunk number
//! n of a row is multiplied by x^n. Source: H. Peter Anvin, "The mathematics of RAID-6".

/// The product of `byte` and x.
const fn times_x(byte: u8) -> u8 {
    (byte << 1) ^ if byte & 0x80 != 0 { 0x1D } else { 0 }
}

const fn product(one: u8, other: u8) -> u8 {
    let (mut sum, mut term, mut bits) = (0, one, other);
    while bits != 0 {
        if bits & 1 != 0 {
            sum ^= term;
        }
        term = times_x(term);
        bits >>= 1;
    }
    sum
}

/// The power x^n.
pub(super) fn power(n: usize) -> u8 {
    (0..n % 255).fold(1, |power, _| times_x(power))
}

/// The number whose product with `byte` is 1. For 0, the result is 0.
pub(super) fn inverse(byte: u8) -> u8 {
    // For every number except 0, its power with the exponent 255 is 1. So the inverse is the power with the exponent 254.
    (0..254).fold(1, |power, _| product(power, byte))
}

/// Multiplies each byte by x.
pub(super) fn shift(bytes: &mut [u8]) {
    for byte in bytes {
        *byte = times_x(*byte);
    }
}

/// Multiplies each byte by a number.
pub(super) fn multiply(bytes: &mut [u8], by: u8) {
    let mut table = [0; 256];
    for (byte, entry) in (0..=255).zip(&mut table) {
        *entry = product(byte, by);
    }
    for byte in bytes {
        *byte = table[usize::from(*byte)];
    }
}

/// Adds each byte of `bytes` to the corresponding byte of `sum`.
pub(super) fn add(sum: &mut [u8], bytes: &[u8]) {
    for (sum, byte) in sum.iter_mut().zip(bytes) {
        *sum ^= byte;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper states that x^8 is 0x1D, and that x has 255 different powers.
    #[test]
    fn the_powers_of_x_are_all_numbers_except_0() {
        assert_eq!((power(0), power(1), power(8)), (1, 2, 0x1D));
        let all: std::collections::BTreeSet<_> = (0..255).map(power).collect();
        assert!(all.len() == 255 && !all.contains(&0));
        for byte in 1..=255 {
            assert_eq!(product(byte, inverse(byte)), 1, "{byte}");
        }
    }
}
