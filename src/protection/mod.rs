//! Protection information: a tuple for each sector, which contains a guard. This module works on memory and needs no device.

pub mod guard;
mod tuple;

pub use self::tuple::{Field, Interval, Mismatch, Protection, TupleKind};

#[cfg(test)]
mod tests {
    /// A SplitMix64 generator. A failing test prints its seed, which reproduces the failure.
    pub(super) struct Rng(pub(super) u64);

    impl Rng {
        pub(super) fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }

        pub(super) fn bytes(&mut self, count: usize) -> Vec<u8> {
            std::iter::repeat_with(|| self.next() as u8).take(count).collect()
        }
    }
}
