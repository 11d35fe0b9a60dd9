//! Makes disks with metadata of LVM, pools of thin volumes, and the superblocks of RAID legs. The fuzz target includes this file too.

/// The length in bytes of an extent, of a data block of a pool, and of the metadata of a physical volume.
pub(crate) const EXTENT: usize = 64 << 10;
/// The length of a block of a pool's metadata.
pub(crate) const BLOCK: usize = 4096;
/// The bits of a flag word that make a node inner, or a leaf.
pub(crate) const INNER: u32 = 1;
pub(crate) const LEAF: u32 = 2;
const SECTOR: usize = 512;
const SUPERBLOCK_SALT: u32 = 160_774;
const NODE_SALT: u32 = 121_107;

pub(crate) fn put32(block: &mut [u8], at: usize, number: u32) {
    block[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

pub(crate) fn put64(block: &mut [u8], at: usize, number: u64) {
    block[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

/// The checksum of LVM: CRC-32 with its own initial value.
fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0xF597_A6CF, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0xEDB8_8320))
    })
}

/// The metadata text of a logical volume with one segment.
pub(crate) fn volume(name: &str, extents: usize, segment: &str) -> String {
    format!(
        "{name} {{ status = [\"READ\", \"WRITE\", \"VISIBLE\"] segment_count = 1 segment1 {{ start_extent = 0 \
         extent_count = {extents} {segment} }} }}\n"
    )
}

/// The metadata text of a linear logical volume that begins at an extent of a physical volume.
pub(crate) fn linear(name: &str, disk: usize, first: usize, extents: usize) -> String {
    let stripes = format!("type = \"striped\" stripe_count = 1 stripes = [\"pv{disk}\", {first}]");
    volume(name, extents, &stripes)
}

/// Makes the disks of a group `vg` with these logical volumes. Each disk has the given number of extents, filled with zeros.
pub(crate) fn disks(count: usize, extents: usize, volumes: &str) -> Vec<Vec<u8>> {
    let id = |disk: usize| format!("{disk:032}");
    let physical: String = (0..count)
        .map(|disk| {
            format!("pv{disk} {{ id = \"{}\" pe_start = 128 pe_count = {extents} }}\n", id(disk))
        })
        .collect();
    let text = format!(
        "vg {{ id = \"group\" seqno = 7 status = [\"RESIZEABLE\", \"READ\", \"WRITE\"] extent_size = 128 physical_volumes {{ {physical} }} logical_volumes {{ {volumes} }} }}\n"
    );
    let disk = |disk| {
        let mut bytes = vec![0; EXTENT * (extents + 1)];
        let label = &mut bytes[SECTOR..2 * SECTOR];
        label[..8].copy_from_slice(b"LABELONE");
        put64(label, 8, 1);
        put32(label, 20, 32);
        label[24..32].copy_from_slice(b"LVM2 001");
        label[32..64].copy_from_slice(id(disk).as_bytes());
        // The start of the data area, and the start and length of the metadata area.
        put64(label, 72, EXTENT as u64);
        put64(label, 104, 4096);
        put64(label, 112, (EXTENT - 4096) as u64);
        let sum = crc(&label[20..]);
        put32(label, 16, sum);
        bytes[4096 + SECTOR..][..text.len()].copy_from_slice(text.as_bytes());
        let area = &mut bytes[4096..4096 + SECTOR];
        area[4..20].copy_from_slice(b" LVM2 x[5A%r0N*>");
        put32(area, 20, 1);
        put64(area, 24, 4096);
        put64(area, 32, (EXTENT - 4096) as u64);
        put64(area, 40, SECTOR as u64);
        put64(area, 48, text.len() as u64);
        put32(area, 56, crc(text.as_bytes()));
        let sum = crc(&area[4..]);
        put32(area, 0, sum);
        bytes
    };
    (0..count).map(disk).collect()
}

/// The bytes of a disk from the start of an extent to the end of the disk.
pub(crate) fn extent(disk: &mut [u8], first: usize) -> &mut [u8] {
    &mut disk[EXTENT * (first + 1)..]
}

/// Repairs the checksum of a block of a pool's metadata.
pub(crate) fn seal(block: &mut [u8], is_superblock: bool) {
    let salt = if is_superblock { SUPERBLOCK_SALT } else { NODE_SALT };
    let sum = !crc32c::crc32c(&block[4..BLOCK]) ^ salt;
    put32(block, 0, sum);
}

/// Writes the superblock of a pool. `mappings` and `volumes` are the blocks with the roots of the two trees.
pub(crate) fn superblock(metadata: &mut [u8], mappings: u64, volumes: u64) {
    let block = &mut metadata[..BLOCK];
    put64(block, 32, 27_022_010);
    put32(block, 40, 2);
    put64(block, 48, 5);
    put64(block, 320, mappings);
    put64(block, 328, volumes);
    put32(block, 336, 128);
    put32(block, 340, 8);
    seal(block, true);
}

/// Writes a node of a tree: its keys and values. `len` is the length of a value in bytes.
pub(crate) fn node(metadata: &mut [u8], block: u64, flags: u32, len: usize, all: &[(u64, u64)]) {
    let most = (BLOCK - 32) / (8 + len) / 3 * 3;
    let bytes = &mut metadata[block as usize * BLOCK..][..BLOCK];
    put32(bytes, 4, flags);
    put64(bytes, 8, block);
    put32(bytes, 16, all.len() as u32);
    put32(bytes, 20, most as u32);
    put32(bytes, 24, len as u32);
    for (index, (key, value)) in all.iter().enumerate() {
        put64(bytes, 32 + index * 8, *key);
        put64(bytes, 32 + most * 8 + index * len, *value);
    }
    seal(bytes, false);
}

/// The mapping of a block to a data block of the pool.
pub(crate) fn mapping(block: u64, data: u64) -> (u64, u64) {
    (block, data << 24 | 3)
}

/// The superblock of a RAID leg.
#[derive(Clone, Debug)]
pub(crate) struct Leg {
    pub(crate) level: u32,
    pub(crate) layout: u32,
    pub(crate) legs: u32,
    pub(crate) position: u32,
    pub(crate) events: u64,
    pub(crate) failed: u64,
    /// The number of sectors that are in sync, counted from the start of the leg.
    pub(crate) recovered: u64,
    pub(crate) resynced: u64,
}

impl Leg {
    pub(crate) fn new(level: u32, layout: u32, legs: u32, position: u32) -> Self {
        let (recovered, resynced) = (u64::MAX, u64::MAX);
        Self { level, layout, legs, position, events: 9, failed: 0, recovered, resynced }
    }

    /// Writes the superblock to a metadata device.
    pub(crate) fn write(&self, block: &mut [u8]) {
        block[..4].copy_from_slice(b"DmRd");
        put32(block, 4, 1);
        put32(block, 8, self.legs);
        put32(block, 12, self.position);
        put64(block, 16, self.events);
        put64(block, 24, self.failed);
        put64(block, 32, self.recovered);
        put64(block, 40, self.resynced);
        put32(block, 48, self.level);
        put32(block, 52, self.layout);
        put32(block, 56, if self.level == 1 { 0 } else { 8 });
    }
}
