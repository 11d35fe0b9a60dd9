#![no_main]

use ironmap_fuzz::{Damage, Target};

libfuzzer_sys::fuzz_target!(|damage: Damage| damage.survive(Some(Target::Inline)));
