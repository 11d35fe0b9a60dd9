//! A first-in, first-out queue of a fixed capacity.
//!
//! Each request to a device that completes requests immediately passes through this queue, so every instruction counts. A `VecDeque` is
//! slower: its push contains code that grows the queue, and the compiler does not always inline the push.

use std::fmt;
use std::mem::MaybeUninit;

/// A queue of a limited number of values.
///
/// The slots form a circle: slot 0 follows the last slot. The `len` slots starting at `first` are initialised; all others are not. `first`
/// is less than the number of slots, or 0 if there are no slots.
pub(crate) struct Fifo<T> {
    slots: Box<[MaybeUninit<T>]>,
    first: usize,
    len: usize,
}

/// The slot at the end of a [`Fifo`] in which a new value is stored.
pub(crate) struct Vacant<'a, T> {
    slot: &'a mut MaybeUninit<T>,
    len: &'a mut usize,
}

impl<T> Vacant<'_, T> {
    #[inline(always)]
    pub(crate) fn fill(self, value: T) {
        self.slot.write(value);
        *self.len += 1;
    }
}

impl<T> Fifo<T> {
    pub(crate) fn new(slots: usize) -> Self {
        Self { slots: Box::new_uninit_slice(slots), first: 0, len: 0 }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The number of values that can still be pushed.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.slots.len() - self.len
    }

    /// Converts an index to a slot. The index must be less than twice the number of slots.
    #[inline(always)]
    fn wrap(&self, index: usize) -> usize {
        if index >= self.slots.len() { index - self.slots.len() } else { index }
    }

    /// Returns the slot after the last value, or `None` if all slots are in use.
    #[inline(always)]
    pub(crate) fn vacant(&mut self) -> Option<Vacant<'_, T>> {
        if self.len == self.slots.len() {
            return None;
        }
        let index = self.wrap(self.first + self.len);
        // SAFETY: `first` and `len` are each less than the number of slots, so `wrap` converts their sum to the index of a slot.
        let slot = unsafe { self.slots.get_unchecked_mut(index) };
        Some(Vacant { slot, len: &mut self.len })
    }

    #[inline(always)]
    pub(crate) fn front(&self) -> Option<&T> {
        if self.len == 0 {
            return None;
        }
        // SAFETY: the queue contains a value, so it has slots, and `first` is the index of a slot.
        let slot = unsafe { self.slots.get_unchecked(self.first) };
        // SAFETY: the queue contains a value, so the slot at `first` is initialised.
        Some(unsafe { slot.assume_init_ref() })
    }

    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        // SAFETY: the queue contains a value, so it has slots, and `first` is the index of a slot.
        let slot = unsafe { self.slots.get_unchecked(self.first) };
        // SAFETY: the queue contains a value, so the slot at `first` is initialised. From here on, the slot counts as uninitialised, so the
        // value has one owner.
        let value = unsafe { slot.assume_init_read() };
        self.first = self.wrap(self.first + 1);
        self.len -= 1;
        Some(value)
    }

    pub(crate) fn clear(&mut self) {
        while self.pop().is_some() {}
    }
}

impl<T> Drop for Fifo<T> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl<T> fmt::Debug for Fifo<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fifo").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::rc::Rc;

    use super::*;

    fn push<T>(fifo: &mut Fifo<T>, value: T) -> bool {
        fifo.vacant().map(|slot| slot.fill(value)).is_some()
    }

    /// For each number of slots up to 5, the queue returns the same values as a `VecDeque`. In the test, the stored values often wrap
    /// around from the last slot to slot 0.
    #[test]
    fn it_holds_what_a_deque_holds() {
        for slots in 0..=5 {
            let (mut fifo, mut model) = (Fifo::new(slots), VecDeque::new());
            for step in 0..200_usize {
                if step * step % 7 < 4 {
                    let is_pushed = push(&mut fifo, step.to_string());
                    assert_eq!(is_pushed, model.len() < slots, "{slots} slots, step {step}");
                    if is_pushed {
                        model.push_back(step.to_string());
                    }
                } else {
                    assert_eq!(fifo.front(), model.front());
                    assert_eq!(fifo.pop(), model.pop_front(), "{slots} slots, step {step}");
                }
                assert_eq!((fifo.len(), fifo.room()), (model.len(), slots - model.len()));
            }
        }
    }

    /// No value is leaked, and none is dropped twice.
    #[test]
    fn each_value_is_dropped_once() {
        let value = Rc::new(());
        let mut fifo = Fifo::new(3);
        for _ in 0..5 {
            push(&mut fifo, Rc::clone(&value));
        }
        drop(fifo.pop());
        push(&mut fifo, Rc::clone(&value));
        assert_eq!(Rc::strong_count(&value), 4);
        fifo.clear();
        assert_eq!(Rc::strong_count(&value), 1);
        push(&mut fifo, Rc::clone(&value));
        drop(fifo);
        assert_eq!(Rc::strong_count(&value), 1);
    }
}
