//! Code that all fuzz targets share. `tests/hostile` contains the code that damages and visits a volume. The fuzzer's coverage guides the
//! choice of changes.

#[path = "../../tests/integrity/damage.rs"]
#[allow(dead_code, reason = "the fuzz targets use only a part of the module")]
mod damage;
mod image;
mod lvm;
#[path = "../../tests/lvm/shape.rs"]
#[allow(dead_code, reason = "the fuzz targets use only a part of the module")]
mod lvm_shape;
mod md;
#[path = "../../tests/hostile/mutate.rs"]
mod mutate;
mod nbd;
#[path = "../../tests/hostile/repair.rs"]
mod repair;
#[path = "../../tests/common/rng.rs"]
#[allow(dead_code, reason = "the fuzz targets use only a part of the module")]
mod rng;
#[path = "../../tests/hostile/scratch.rs"]
mod scratch;
#[path = "../../tests/md/shape.rs"]
#[allow(dead_code, reason = "the fuzz targets use only a part of the module")]
mod shape;
#[path = "../../tests/hostile/spots.rs"]
mod spots;
#[path = "../../tests/integrity/stand.rs"]
#[allow(dead_code, reason = "the fuzz targets use only a part of the module")]
mod stand;
#[path = "../../tests/hostile_xfs/structures.rs"]
mod structures;
#[path = "../../tests/hostile/visit.rs"]
mod visit;
#[path = "../../tests/hostile/volume.rs"]
mod volume;
mod xfs;

use std::cell::RefCell;

use arbitrary::Arbitrary;

use self::mutate::Change;
use self::scratch::Scratch;
pub use self::damage::Damage as IntegrityDamage;
pub use self::image::ImageDamage;
pub use self::lvm::LvmDamage;
pub use self::md::MdDamage;
pub use self::nbd::Replies;
pub use self::spots::Target;
pub use self::xfs::XfsDamage;
use self::visit::{seen, visit};
use self::volume::Base;

thread_local! {
    static VOLUMES: RefCell<Vec<Scratch>> = RefCell::new(Base::all().into_iter().map(Scratch::new).collect());
}

thread_local! {
    static DEVICES: Vec<stand::Stand> = damage::crashed();
}

/// Opens and uses a damaged integrity device.
pub fn survive_integrity(damage: &damage::Damage) {
    DEVICES.with(|devices| damage.survive(devices));
}

/// The damage of one of the base volumes.
#[derive(Arbitrary, Debug)]
pub struct Damage {
    base: u8,
    changes: Vec<Change>,
}

impl Damage {
    /// Reads the damaged volume. If no kind of structure is given as the target, the changes may be in any structure.
    pub fn survive(&self, target: Option<Target>) {
        VOLUMES.with_borrow_mut(|volumes| {
            let index = usize::from(self.base) % volumes.len();
            let scratch = &mut volumes[index];
            if let Some(volume) = seen(scratch.damaged(&self.changes, target)) {
                visit(&volume);
            }
        });
    }
}
