#![no_main]

use ironmap_fuzz::MdDamage;

libfuzzer_sys::fuzz_target!(|damage: MdDamage| damage.survive());
