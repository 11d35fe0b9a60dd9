//! Every engine reads the same bytes, both with and without the short code path for simple requests.

use ironmap::Engine;

use crate::common::compare::assert_contents;
use crate::common::image::{Image, scratch};
use crate::common::kernel;
use crate::common::tree::{Limits, Scope, grow};
use crate::common::view::Subject;
use crate::{DEPTH, SEED, SIZE};

#[test]
fn every_engine_reads_the_same() {
    for block in [1024, 4096] {
        let source = scratch();
        let scope = Scope {
            seed: SEED,
            block,
            nodes: false,
            large_xattrs: false,
            fragments: 1200,
            limits: Limits::EXT4,
        };
        grow(source.path(), scope);
        let options = ["-t", "ext4", "-b", &block.to_string(), "-N", "8192"];
        let image = Image::populated(SIZE, &options, source.path());
        let expected = kernel::view(source.path(), DEPTH, SEED);
        for engine in [Engine::Psync, Engine::IoUring, Engine::IoUringPoll, Engine::Dax] {
            let mut subject = Subject::open_with(&image, engine);
            let numbers = subject.view();
            for simple in [true, false] {
                subject.queue().set_simple(simple);
                let what = format!("{engine}, simple {simple}, blocks of {block}, seed {SEED:#x}");
                assert_contents(&expected, &mut subject, &numbers, &what);
            }
        }
    }
}
