#![no_main]

use ironmap_fuzz::{IntegrityDamage, survive_integrity};

libfuzzer_sys::fuzz_target!(|damage: IntegrityDamage| survive_integrity(&damage));
