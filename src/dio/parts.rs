//! A request's memory: cut into the parts that lie together on the device, and joined again.

use std::collections::VecDeque;

use crate::bio::{Buffer, Memory};

/// How the memory looked when it came.
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

/// Takes the first `count` bytes off the memory that is left.
pub(super) fn take(rest: &mut VecDeque<Buffer>, count: usize) -> Vec<Buffer> {
    let mut taken = Vec::with_capacity(1);
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

pub(super) fn to_memory(mut buffers: Vec<Buffer>) -> Memory {
    match buffers.pop() {
        Some(only) if buffers.is_empty() => Memory::Flat(only),
        Some(last) => {
            buffers.push(last);
            Memory::Vectored(buffers)
        }
        None => Memory::Vectored(buffers),
    }
}

/// Joins the parts, which are in order, to buffers as they came.
pub(super) fn join(parts: impl Iterator<Item = Buffer>, shape: &Shape) -> Memory {
    let mut joined: Vec<Buffer> = Vec::new();
    for part in parts {
        // Two buffers of the caller may be neighbours in one allocation, so the lengths decide where one ends.
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
        Shape::Flat => to_memory(joined),
        Shape::Vectored(_) => Memory::Vectored(joined),
    }
}

pub(super) fn copy_out(mut data: &[u8], to: &mut [Buffer]) {
    for buf in to {
        let (head, tail) = data.split_at(data.len().min(buf.len()));
        buf[..head.len()].copy_from_slice(head);
        data = tail;
    }
}
