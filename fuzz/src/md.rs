//! Arrays of Linux MD with damaged superblocks. The checksums are repaired, because an attacker would write correct ones.

use std::sync::Arc;

use arbitrary::Arbitrary;
use ironmap::device::{Device, Ram};
use ironmap::md::{Member, assemble, look};
use ironmap::units::DevOffset;

use crate::shape::{Shape, put32, seal};

/// The levels and layouts of the base arrays.
const ARRAYS: [(i32, u32); 9] =
    [(-1, 0), (0, 1), (0, 2), (1, 0), (4, 0), (5, 2), (6, 0), (6, 18), (10, 0x102)];
const SIZE: u64 = 64;

/// The damage of the members of an array.
#[derive(Arbitrary, Debug)]
pub struct MdDamage {
    array: u8,
    minor: u8,
    /// For each member: changes of words of the superblock and of its table of roles, and the length that is cut off.
    members: [(Vec<(u8, u32)>, u8); 4],
    /// A bit for each member: members whose bit is set are missing.
    given: u8,
    reads: Vec<u16>,
}

impl MdDamage {
    /// Examines each member, assembles the array and reads it.
    pub fn survive(&self) {
        let (level, layout) = ARRAYS[usize::from(self.array) % ARRAYS.len()];
        let minor = [0, 1, 2, 90][usize::from(self.minor % 4)];
        let mut shape = Shape::new(minor, level, layout, 4, SIZE);
        let mut members = Vec::new();
        for (index, (changes, cut)) in (0_u32..).zip(&self.members) {
            // The members have different lengths, so that a RAID 0 array has several zones.
            let len = (SIZE as usize + 8 * index as usize) * 512;
            let mut image = shape.image(index, &vec![index as u8 + 1; len]);
            let place = shape.place(image.len());
            let block = &mut image[place..place + 4096];
            for (word, value) in changes {
                // In version 0.90, the fields are spread over the whole block, so only every fourth word is changed.
                let word = usize::from(*word) * if minor == 90 { 4 } else { 1 };
                put32(block, word % 1024 * 4, *value);
            }
            seal(block);
            image.truncate(image.len() - usize::from(*cut) % 64 * 512);
            if self.given >> index & 1 == 0 {
                let device: Arc<dyn Device> = Arc::new(Ram::from_image(&image));
                let _ = look(&*device).map(|found| found.map(|found| found.to_string()));
                members.push(Member { name: index.to_string(), device });
            }
            shape.events += u64::from(self.given >> 7);
        }
        let Ok(array) = assemble(members) else { return };
        let _ = array.to_string();
        let device = array.device();
        let mut bytes = vec![0; 9000];
        let last = device.size().saturating_sub(bytes.len() as u64);
        let places = self.reads.iter().map(|at| u64::from(*at) << 3);
        for at in places.chain([0, last / 2, last]) {
            let _ = device.read_exact_at(&mut bytes, DevOffset(at));
        }
    }
}
