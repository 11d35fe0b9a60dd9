//! The units of positions and addresses. Each unit is a separate type.
//!
//! A byte position in a file, a byte offset on the device and a block number are all integers. A program that confuses two of them would
//! read wrong data without an error. Because the units are separate types, the compiler refuses such a program. A conversion between two
//! units needs the block size.

use std::fmt;
use std::ops::{Add, AddAssign};

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// Adds a distance in the unit of this type. Returns `None` if the sum overflows.
            #[must_use]
            pub fn checked_add(self, distance: u64) -> Option<Self> {
                self.0.checked_add(distance).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

unit! {
    /// A byte position in a file.
    FilePos
}
impl From<u64> for FilePos {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl Add<u64> for FilePos {
    type Output = Self;

    /// Returns the position that is `bytes` larger. The sum must not overflow; [`checked_add`](Self::checked_add) detects an overflow.
    fn add(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl AddAssign<u64> for FilePos {
    fn add_assign(&mut self, bytes: u64) {
        *self = *self + bytes;
    }
}

unit! {
    /// A byte offset on the device, from the start of the file system. If the file system is in a partition, a lower layer adds the start
    /// of the partition.
    DevOffset
}
unit! {
    /// The number of a block in a file. The unit is the block of the file system.
    FileBlock
}
unit! {
    /// The number of a block on the device, from the start of the file system. The unit is the block of the file system.
    FsBlock
}
unit! {
    /// An inode number. ext4 uses 32-bit numbers, counted from 1.
    InodeNo
}

impl From<u64> for InodeNo {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

/// The size of a file system's blocks: a power of two from 512 bytes to 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize {
    shift: u8,
}

impl BlockSize {
    /// Creates the block size of `1 << shift` bytes. Returns `None` for less than 512 bytes or more than 64 KiB.
    #[must_use]
    pub const fn from_shift(shift: u8) -> Option<Self> {
        if shift >= 9 && shift <= 16 { Some(Self { shift }) } else { None }
    }

    /// The base-2 logarithm of the size in bytes.
    #[must_use]
    pub const fn shift(self) -> u8 {
        self.shift
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        1 << self.shift
    }

    /// The block that contains a position of the file.
    #[must_use]
    pub const fn block_of(self, pos: FilePos) -> FileBlock {
        FileBlock(pos.0 >> self.shift)
    }

    /// The distance in bytes from the start of the block to a position.
    #[must_use]
    pub const fn offset_in(self, pos: FilePos) -> usize {
        (pos.0 & ((1 << self.shift) - 1)) as usize
    }

    /// The position at which a block of a file begins. The block must be at most `u64::MAX >> shift`.
    #[must_use]
    pub const fn pos_of(self, block: FileBlock) -> FilePos {
        FilePos(block.0 << self.shift)
    }

    /// The device offset at which a block begins. The block must be on the device.
    #[must_use]
    pub const fn offset_of(self, block: FsBlock) -> DevOffset {
        DevOffset(block.0 << self.shift)
    }

    /// The block that contains a device offset.
    #[must_use]
    pub const fn fs_block_of(self, offset: DevOffset) -> FsBlock {
        FsBlock(offset.0 >> self.shift)
    }

    /// The number of blocks that `bytes` bytes need, rounded up.
    #[must_use]
    pub const fn blocks_for(self, bytes: u64) -> u64 {
        bytes.div_ceil(1 << self.shift)
    }
}
