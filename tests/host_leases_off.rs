//! A system whose settings forbid leases. Alone in its program: the setting is everybody's.

mod common;

use common::mounted::Mounted;
use common::rng::Rng;
use common::skip::Need;
use common::ways::Both;
use ironmap::QueueOptions;
use ironmap::host::{Host, HostOptions};

const SEED: u64 = 0x1ea_5e0f;
const SETTING: &str = "/proc/sys/fs/leases-enable";

/// The setting is off; on drop it is what it was.
struct Off(String);

impl Off {
    fn new() -> Self {
        let was = std::fs::read_to_string(SETTING).unwrap();
        std::fs::write(SETTING, "0").unwrap();
        Self(was)
    }
}

impl Drop for Off {
    fn drop(&mut self) {
        let _ = std::fs::write(SETTING, &self.0);
    }
}

#[test]
fn without_leases_the_kernel_serves_all() {
    require!([Need::Root, Need::Tool("losetup")]);
    let mounted = Mounted::ext4();
    let content = Rng::new(SEED).bytes(300_001);
    let path = mounted.write("file", &content);
    let host = Host::new(&HostOptions::default()).unwrap();
    let mut queue = host.queue(&QueueOptions::default()).unwrap();
    let before = Both::open(&host, &path);
    let off = Off::new();
    let both = Both::open(&host, &path);
    drop(off);
    assert_eq!((before.served(), both.served()), ("raw", "no_leases"));
    both.check(&mut queue, &content, SEED, 200);
    assert!(queue.stats().kernel_served > 0);
    // It is no writer that was in the way, whose end could be waited for.
    assert_eq!(both.served(), "no_leases");
    assert!(host.events().take().0.is_empty(), "a refusal is no error");
    assert_eq!(Both::open(&host, &path).served(), "raw");
}
