//! Makes the superblocks of arrays. The fuzz target includes this file too.

/// A role of a member that has failed.
pub(crate) const FAULTY: u16 = 0xFFFE;
const SECTOR: usize = 512;
/// The number of roles that a superblock of version 1 has in these tests.
const ROLES: usize = 16;

/// An array. All lengths are in sectors of 512 bytes.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// The last digit of the version: 0, 1 or 2 for version 1, and 90 for version 0.
    pub(crate) minor: u32,
    pub(crate) level: i32,
    pub(crate) layout: u32,
    pub(crate) chunk: u32,
    pub(crate) disks: u32,
    /// The length of the used part of each member.
    pub(crate) size: u64,
    pub(crate) events: u64,
    /// The time of the last change, in seconds.
    pub(crate) updated: u32,
    pub(crate) features: u32,
    pub(crate) dirty: bool,
    /// The roles of members by their numbers.
    pub(crate) roles: Vec<u16>,
}

pub(crate) fn put32(block: &mut [u8], at: usize, number: u32) {
    block[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

pub(crate) fn put64(block: &mut [u8], at: usize, number: u64) {
    block[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

impl Shape {
    pub(crate) fn new(minor: u32, level: i32, layout: u32, disks: u32, size: u64) -> Self {
        let roles = (0..disks as u16).collect();
        // For level 0, this flag means that the superblock names the layout.
        let features = if level == 0 { 4096 } else { 0 };
        Self {
            minor,
            level,
            layout,
            chunk: 8,
            disks,
            size,
            events: 7,
            updated: 1_700_000_000,
            features,
            dirty: false,
            roles,
        }
    }

    /// The first sector of the data.
    pub(crate) fn start(&self) -> usize {
        if matches!(self.minor, 1 | 2) { 24 } else { 0 }
    }

    /// The position of the superblock in an image of this length, in bytes.
    pub(crate) fn place(&self, len: usize) -> usize {
        match self.minor {
            0 => (len / SECTOR - 16) / 8 * 8 * SECTOR,
            1 => 0,
            2 => 4096,
            _ => len / 65536 * 65536 - 65536,
        }
    }

    /// The image of a member with this number and these data.
    pub(crate) fn image(&self, number: u32, data: &[u8]) -> Vec<u8> {
        let mut image = vec![0; self.start() * SECTOR];
        image.extend(data);
        let len = match self.minor {
            90 => image.len().next_multiple_of(65536) + 65536,
            _ => image.len() + 16 * SECTOR,
        };
        image.resize(len, 0);
        let place = self.place(len);
        let block = self.block(number, (data.len() / SECTOR) as u64, place);
        image[place..place + block.len()].copy_from_slice(&block);
        image
    }

    fn block(&self, number: u32, len: u64, place: usize) -> Vec<u8> {
        let mut block = vec![0; 4096];
        put32(&mut block, 0, 0xA92B_4EFC);
        if self.minor == 90 {
            self.old(&mut block, number);
        } else {
            self.new_form(&mut block, number, len, place);
        }
        seal(&mut block);
        block
    }

    fn new_form(&self, block: &mut [u8], number: u32, len: u64, place: usize) {
        put32(block, 4, 1);
        put32(block, 8, self.features);
        for (at, byte) in (16..32).zip(0xA0..) {
            block[at] = byte;
        }
        block[32..40].copy_from_slice(b"lab:name");
        put64(block, 64, 1_700_000_000);
        put32(block, 72, self.level.cast_unsigned());
        put32(block, 76, self.layout);
        put64(block, 80, self.size);
        put32(block, 88, self.chunk);
        put32(block, 92, self.disks);
        put64(block, 128, self.start() as u64);
        put64(block, 136, len);
        put64(block, 144, (place / SECTOR) as u64);
        put32(block, 160, number);
        block[168..184].fill(number as u8 + 1);
        put64(block, 192, self.updated.into());
        put64(block, 200, self.events);
        put64(block, 208, if self.dirty { 0 } else { u64::MAX });
        put32(block, 220, ROLES as u32);
        for index in 0..ROLES {
            let role = self.roles.get(index).copied().unwrap_or(FAULTY);
            block[256 + 2 * index..][..2].copy_from_slice(&role.to_le_bytes());
        }
    }

    fn old(&self, block: &mut [u8], number: u32) {
        let mut put = |word: usize, value: u32| put32(block, word * 4, value);
        put(2, 90);
        put(5, 0xA0A1_A2A3);
        put(6, 1_700_000_000);
        put(7, self.level.cast_unsigned());
        put(8, (self.size / 2) as u32);
        put(9, self.disks);
        put(10, self.disks);
        put(32, self.updated);
        put(33, u32::from(!self.dirty));
        put(39, self.events as u32);
        put(64, self.layout);
        put(65, self.chunk * SECTOR as u32);
        for (index, role) in self.roles.iter().enumerate() {
            let (role, state) = if *role == FAULTY { (index as u16, 9) } else { (*role, 6) };
            for (word, value) in [(0, index as u32), (3, u32::from(role)), (4, state)] {
                put(128 + 32 * index + word, value);
            }
        }
        put(992, number);
        put(992 + 3, number);
        put(992 + 4, 6);
    }
}

/// Sets the checksum of a superblock.
pub(crate) fn seal(block: &mut [u8]) {
    let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
    let (at, len) = match word(4) {
        0 => (38 * 4, 4096),
        _ => (216, 256 + 2 * (word(220) as usize).min(1920)),
    };
    let mut sum: u64 = (0..len / 4).map(|index| u64::from(word(index * 4))).sum();
    if !len.is_multiple_of(4) {
        sum += u64::from(u16::from_le_bytes([block[len - 2], block[len - 1]]));
    }
    sum -= u64::from(word(at));
    let sum = (sum as u32).wrapping_add((sum >> 32) as u32);
    put32(block, at, sum);
}
