//! Block devices with poll queues.

use ironmap::Engine;

use crate::given;
use crate::reads::assert_volume_reads;

/// The bytes are the file's, whether completions are polled, interrupt or return.
#[test]
fn polled_block_devices_read_the_same() {
    for device in [given("LAB_BLOCK1"), given("LAB_BLOCK2"), given("LAB_NULL")] {
        for engine in [Engine::Psync, Engine::IoUring, Engine::IoUringPoll] {
            assert_volume_reads(&device, engine, 0x901);
        }
    }
}
