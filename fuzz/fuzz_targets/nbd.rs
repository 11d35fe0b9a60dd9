#![no_main]

use ironmap_fuzz::Replies;

libfuzzer_sys::fuzz_target!(|replies: Replies| replies.survive());
