//! Marker instructions, which have no effect. lab/marker.c finds them in the program, and counts the instructions that are executed between
//! them.
#![allow(unsafe_code, reason = "inline assembly")]

/// Begins a window, in which instructions are counted.
#[inline(always)]
pub(crate) fn begin() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction nopl 0x49720001(%rax,%rax) has no effect.
    unsafe {
        std::arch::asm!(".byte 0x0f, 0x1f, 0x84, 0x00, 0x01, 0x00, 0x72, 0x49");
    }
}

/// Ends the window.
#[inline(always)]
pub(crate) fn end() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction nopl 0x49720002(%rax,%rax) has no effect.
    unsafe {
        std::arch::asm!(".byte 0x0f, 0x1f, 0x84, 0x00, 0x02, 0x00, 0x72, 0x49");
    }
}
