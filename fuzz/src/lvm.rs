//! Logical volumes with damaged metadata: a pool of thin volumes, and legs of RAID. The checksums are repaired, because an attacker would
//! write correct ones.

use std::sync::Arc;

use arbitrary::Arbitrary;
use ironmap::device::{Device, Ram};
use ironmap::lvm::Groups;
use ironmap::units::DevOffset;

use crate::lvm_shape::{
    BLOCK, EXTENT, INNER, LEAF, Leg, disks, extent, linear, mapping, node, put32, seal, superblock,
    volume,
};

/// The types and layouts of the RAID volumes.
const ARRAYS: [(&str, u32, u32); 5] =
    [("raid1", 1, 0), ("raid10", 10, 0x102), ("raid4", 5, 4), ("raid5", 5, 2), ("raid6", 6, 18)];
const LEGS: usize = 5;

/// The damage to the metadata of a volume group.
#[derive(Arbitrary, Debug)]
pub struct LvmDamage {
    array: u8,
    /// Changes of words in the metadata of the pool, in the superblocks of the legs, and in the text metadata of the group.
    pool: Vec<(u16, u32)>,
    legs: Vec<(u16, u32)>,
    text: Vec<(u16, u8)>,
    reads: Vec<u16>,
}

impl LvmDamage {
    /// Opens and reads the logical volumes.
    pub fn survive(&self) {
        let (kind, level, layout) = ARRAYS[usize::from(self.array) % ARRAYS.len()];
        let mut text = linear("meta", 0, 0, 1) + &linear("data", 0, 1, 4);
        text += &volume(
            "pool",
            4,
            "type = \"thin-pool\" metadata = \"meta\" pool = \"data\" transaction_id = 5 chunk_size = 128",
        );
        text += &volume("thin", 20, "type = \"thin\" thin_pool = \"pool\" device_id = 1");
        let mut raids = String::new();
        for leg in 0..LEGS {
            text += &(linear(&format!("m{leg}"), 0, 5 + 2 * leg, 1)
                + &linear(&format!("d{leg}"), 0, 6 + 2 * leg, 1));
            raids += &format!("\"m{leg}\", \"d{leg}\",");
        }
        text += &volume("raid", 1, &format!("type = \"{kind}\" stripe_size = 8 raids = [{raids}]"));
        text += &volume(
            "mirror",
            1,
            "type = \"mirror\" region_size = 8 mirror_log = \"m0\" mirrors = [\"lost\", 0, \"d1\", 0]",
        );
        for (at, byte) in &self.text {
            let at = usize::from(*at) % text.len();
            let mut bytes = text.into_bytes();
            bytes[at] = byte & 0x7F;
            text = String::from_utf8(bytes).unwrap_or_default();
        }
        let mut disk = disks(1, 5 + 2 * LEGS, &text).remove(0);
        self.damage_pool(&mut extent(&mut disk, 0)[..EXTENT]);
        for leg in 0..LEGS {
            Leg::new(level, layout, LEGS as u32, leg as u32).write(extent(&mut disk, 5 + 2 * leg));
        }
        for (at, value) in &self.legs {
            let leg = usize::from(at / 64) % LEGS;
            put32(extent(&mut disk, 5 + 2 * leg), usize::from(at % 64) * 4, *value);
        }
        let disk: [Arc<dyn Device>; 1] = [Arc::new(Ram::from_image(&disk))];
        let Ok(groups) = Groups::read(&*disk[0]) else { return };
        for name in ["thin", "raid", "mirror", "pool"] {
            let Ok(stack) = groups.find("vg", name) else { continue };
            let Ok(device) = stack.open(&disk, &mut Vec::new()) else { continue };
            let mut bytes = vec![0; 9000];
            let last = device.size().saturating_sub(bytes.len() as u64);
            for at in self.reads.iter().map(|at| u64::from(*at) << 5).chain([0, last / 2, last]) {
                let _ = device.read_exact_at(&mut bytes, DevOffset(at));
            }
        }
    }

    /// Writes the metadata of the pool, with the damage.
    fn damage_pool(&self, metadata: &mut [u8]) {
        superblock(metadata, 2, 1);
        node(metadata, 1, LEAF, 24, &[(1, 7)]);
        node(metadata, 2, LEAF, 8, &[(1, 3)]);
        node(metadata, 3, INNER, 8, &[(0, 4), (9, 5)]);
        node(metadata, 4, LEAF, 8, &[mapping(0, 3), mapping(1, 2), mapping(4, 0)]);
        node(metadata, 5, LEAF, 8, &[mapping(9, 0), mapping(10, 1), mapping(19, 3)]);
        for (at, value) in &self.pool {
            put32(metadata, usize::from(*at) * 4 % (6 * BLOCK), *value);
        }
        for (number, block) in metadata.chunks_mut(BLOCK).enumerate().take(6) {
            seal(block, number == 0);
        }
    }
}
