#![no_main]

use ironmap_fuzz::ImageDamage;

libfuzzer_sys::fuzz_target!(|damage: ImageDamage| damage.survive());
