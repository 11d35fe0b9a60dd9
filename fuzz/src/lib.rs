//! What all fuzz targets share: the damage and the visit of `tests/hostile`, the choice of changes by coverage.

#[path = "../../tests/hostile/mutate.rs"]
mod mutate;
#[path = "../../tests/hostile/repair.rs"]
mod repair;
#[path = "../../tests/hostile/scratch.rs"]
mod scratch;
#[path = "../../tests/hostile/spots.rs"]
mod spots;
#[path = "../../tests/hostile/visit.rs"]
mod visit;
#[path = "../../tests/hostile/volume.rs"]
mod volume;

use std::cell::RefCell;

use arbitrary::Arbitrary;

use self::mutate::Change;
use self::scratch::Scratch;
pub use self::spots::Target;
use self::visit::{seen, visit};
use self::volume::Base;

thread_local! {
    static VOLUMES: RefCell<Vec<Scratch>> = RefCell::new(Base::all().into_iter().map(Scratch::new).collect());
}

/// What is done to one of the base volumes.
#[derive(Arbitrary, Debug)]
pub struct Damage {
    base: u8,
    changes: Vec<Change>,
}

impl Damage {
    /// Reads what is left of the volume; without a target the changes may be anywhere.
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
