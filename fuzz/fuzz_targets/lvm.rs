#![no_main]

use ironmap_fuzz::LvmDamage;

libfuzzer_sys::fuzz_target!(|damage: LvmDamage| damage.survive());
