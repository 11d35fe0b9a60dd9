//! Instructions that do nothing and that lab/marker.c finds in the program: instructions executed between them are counted.
#![allow(unsafe_code, reason = "inline assembly")]

/// Begins a window.
#[inline(always)]
pub(crate) fn begin() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: nopl 0x49720001(%rax,%rax) computes an address and does nothing with it.
    unsafe {
        std::arch::asm!(".byte 0x0f, 0x1f, 0x84, 0x00, 0x01, 0x00, 0x72, 0x49");
    }
}

/// Ends it.
#[inline(always)]
pub(crate) fn end() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: nopl 0x49720002(%rax,%rax) computes an address and does nothing with it.
    unsafe {
        std::arch::asm!(".byte 0x0f, 0x1f, 0x84, 0x00, 0x02, 0x00, 0x72, 0x49");
    }
}
