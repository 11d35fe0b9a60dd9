//! Cuts the memory of a request into parts and joins the parts again. Each part is contiguous on the device.

use std::collections::VecDeque;
use std::ops::{DerefMut, Range};

use smallvec::SmallVec;

use crate::bio::slices::within_mut;
use crate::bio::{Buffer, Memory};
use crate::sys::copy as copy_unseen;

/// The buffers of one transfer.
pub(super) type Buffers = SmallVec<[Buffer; 2]>;

/// The form of the caller's memory: one buffer, or several buffers with these lengths.
pub(super) enum Shape {
    Flat,
    Vectored(Vec<usize>),
}

impl Shape {
    pub(super) fn of(memory: &Memory) -> Self {
        match memory {
            Memory::Flat(_) => Self::Flat,
            Memory::Vectored(buffers) => {
                Self::Vectored(buffers.iter().map(|buf| buf.len()).collect())
            }
        }
    }
}

/// Removes the first `count` bytes from the remaining memory, and returns them.
pub(super) fn take(rest: &mut VecDeque<Buffer>, count: usize) -> Buffers {
    let mut taken = Buffers::new();
    let mut left = count;
    while left > 0 {
        let Some(mut first) = rest.pop_front() else { break };
        if first.len() > left {
            taken.push(first.split_to(left));
            rest.push_front(first);
            break;
        }
        left -= first.len();
        taken.push(first);
    }
    taken
}

pub(super) fn to_memory(mut buffers: Buffers) -> Memory {
    match buffers.pop() {
        Some(only) if buffers.is_empty() => Memory::Flat(only),
        last => {
            buffers.extend(last);
            Memory::Vectored(buffers.into_vec())
        }
    }
}

/// Joins the parts into buffers of the form that the caller submitted. The parts must be in order.
pub(super) fn join(parts: impl Iterator<Item = Buffer>, shape: &Shape) -> Memory {
    let mut joined: Vec<Buffer> = Vec::new();
    for part in parts {
        // Two buffers of the caller may be adjacent in one allocation, so the recorded length of a buffer determines where the buffer ends.
        let full = match shape {
            Shape::Flat => false,
            Shape::Vectored(lens) => {
                joined.last().is_some_and(|last| Some(&last.len()) == lens.get(joined.len() - 1))
            }
        };
        match joined.last_mut() {
            Some(last) if !full => {
                if let Err(stranger) = last.unsplit(part) {
                    joined.push(stranger);
                }
            }
            _ => joined.push(part),
        }
    }
    match shape {
        Shape::Flat => to_memory(joined.into()),
        Shape::Vectored(_) => Memory::Vectored(joined),
    }
}

/// Zeroes the bytes of a range.
pub(super) fn zero(bufs: &mut [impl DerefMut<Target = [u8]>], range: Range<usize>) {
    within_mut(bufs, range).for_each(|part| part.fill(0));
}

/// Copies bytes between the caller's memory and bounce buffers. Both are lists of parts, and each list is treated as one range of bytes.
pub(super) fn copy<'b>(
    from: impl Iterator<Item = &'b [u8]>,
    to: impl Iterator<Item = &'b mut [u8]>,
) {
    let mut to = to;
    let mut room: &mut [u8] = &mut [];
    for mut data in from {
        while !data.is_empty() {
            if room.is_empty() {
                let Some(next) = to.next() else { return };
                room = next;
                continue;
            }
            let count = data.len().min(room.len());
            let (head, rest) = std::mem::take(&mut room).split_at_mut(count);
            copy_unseen(&data[..count], head);
            (data, room) = (&data[count..], rest);
        }
    }
}
