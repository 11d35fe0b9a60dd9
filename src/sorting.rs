//! Sorts that add little machine code for each type.
//!
//! For each type and each order, the compiler generates another copy of std's sorts, about 5 KB of code each time. The sorts of this module
//! share one function, which sorts indexes and calls the comparison through a pointer. This is slower, so these sorts are not used on the
//! path of requests.

use std::cmp::Ordering;

/// Stable sorts of a list.
pub trait Sorting<T> {
    /// Sorts the list.
    fn order(&mut self)
    where
        T: Ord,
    {
        self.order_by(T::cmp);
    }

    /// Sorts the list by a key of each element.
    fn order_by_key<K: Ord>(&mut self, mut key: impl FnMut(&T) -> K) {
        self.order_by(|one, other| key(one).cmp(&key(other)));
    }

    /// Sorts the list by a comparison of two elements.
    fn order_by(&mut self, compare: impl FnMut(&T, &T) -> Ordering);
}

impl<T> Sorting<T> for [T] {
    fn order_by(&mut self, mut compare: impl FnMut(&T, &T) -> Ordering) {
        let mut from = sorted(self.len(), &mut |one, other| compare(&self[one], &self[other]));
        // Swaps move the elements to their positions. The loop handles one cycle of the permutation after another.
        for start in 0..self.len() {
            let mut at = start;
            loop {
                let next = std::mem::replace(&mut from[at], at);
                if next == start {
                    break;
                }
                self.swap(at, next);
                at = next;
            }
        }
    }
}

/// Returns the indexes of a list in the order of its elements.
fn sorted(len: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<usize> {
    let mut indexes = Vec::from_iter(0..len);
    indexes.sort_by(|one, other| compare(*one, *other));
    indexes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result is equal to the result of std's stable sort. The test uses lists of all lengths up to 200 that contain equal elements.
    #[test]
    fn lists_are_sorted_as_by_std() {
        let mut random = 1_u64;
        for len in 0..200_u64 {
            let mut list: Vec<(u64, u64)> = (0..len)
                .map(|number| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random >> 33 & 31, number)
                })
                .collect();
            let mut by_std = list.clone();
            by_std.sort_by_key(|(key, _)| *key);
            list.order_by_key(|(key, _)| *key);
            assert_eq!(list, by_std);
            by_std.sort();
            by_std.reverse();
            list.order_by(|one, other| other.cmp(one));
            assert_eq!(list, by_std);
            by_std.sort();
            list.order();
            assert_eq!(list, by_std);
        }
    }
}
