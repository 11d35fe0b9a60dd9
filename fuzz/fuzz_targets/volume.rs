#![no_main]

use ironmap_fuzz::Damage;

libfuzzer_sys::fuzz_target!(|damage: Damage| damage.survive(None));
