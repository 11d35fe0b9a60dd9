//! The library's unit tests as a program for AArch64. qemu's emulator of programs runs it on this kernel.

use crate::shell::{Result, Tee, command, has, say, skip, succeeds};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const EMULATOR: &str = "qemu-aarch64";
const LINKER: &str = "aarch64-linux-gnu-gcc";
/// The C library of that processor, as the package of the linker installs it.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// A part that takes seconds, for `./x test`: system calls and memory, locks, maps, checksums, the decoding of names and structures.
pub(crate) const SHORT: [&str; 10] = [
    "sys::",
    "open_file::",
    "protection::guard::",
    "dio::",
    "iomap::",
    "location::",
    "partition::",
    "fs::ext4::checksum::",
    "fs::ext4::hash::",
    "fs::ext4::casefold::",
];

/// Builds and runs the tests that these names select; all of them without a name. A missing tool is reported, and is not a failure.
pub(crate) fn test(names: &[&str], tee: &Tee) -> Result {
    say("AArch64");
    if let Some(missing) = [EMULATOR, LINKER].into_iter().find(|program| !has(program)) {
        return skip(&format!("tests for AArch64: need the program {missing}"));
    }
    if !succeeds(&format!("rustup target add {TARGET}")) {
        return skip("tests for AArch64: its standard library cannot be installed");
    }
    let mut tests = command("cargo test --package ironmap --lib --target");
    tests.args([TARGET, "--"]).args(names);
    tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
    tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", [EMULATOR, LIBRARIES].join(" -L "));
    tee.run(&mut tests)
}
