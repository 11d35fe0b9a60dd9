#![no_main]

use ironmap_fuzz::XfsDamage;

libfuzzer_sys::fuzz_target!(|damage: XfsDamage| damage.survive());
