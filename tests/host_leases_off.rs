//! System settings can forbid leases. Then ironmap reads files of mounted file systems through the kernel. The test is a separate program,
//! because the settings apply to all processes.

mod common;

use common::calls::Both;
use common::mounted::Mounted;
use common::rng::Rng;
use common::setting::Setting;
use common::skip::Need;
use ironmap::{Host, HostOptions, QueueOptions};

const SEED: u64 = 0x1ea_5e0f;
const LEASES: &str = "/proc/sys/fs/leases-enable";
const INOTIFY: &str = "/proc/sys/fs/inotify/max_user_instances";

#[test]
fn without_leases_or_inotify_the_kernel_serves_all() {
    require!([Need::Root, Need::Tool("losetup")]);
    let mounted = Mounted::ext4();
    let content = Rng::new(SEED).bytes(300_001);
    let path = mounted.write("file", &content);
    let host = Host::new(&HostOptions::default()).unwrap();
    let mut queue = host.queue(&QueueOptions::default()).unwrap();
    let before = Both::open(&host, &path);
    let off = Setting::change(LEASES, "0");
    let both = Both::open(&host, &path);
    drop(off);
    assert_eq!((before.served(), both.served()), ("raw", "no_leases"));
    both.check(&mut queue, &content, SEED, 200);
    assert!(queue.stats().kernel_served > 0);
    // A system setting caused the refusal of the lease. No program writes to the file, so ironmap does not wait until a program closes it.
    assert_eq!(both.served(), "no_leases");
    assert!(host.events().take().0.is_empty(), "a refusal is no error");
    assert_eq!(Both::open(&host, &path).served(), "raw");

    // Some truncations break no lease, and ironmap detects them by inotify. Without inotify, ironmap must read the file through the kernel.
    let off = Setting::change(INOTIFY, "0");
    let host = Host::new(&HostOptions::default()).unwrap();
    let mut queue = host.queue(&QueueOptions::default()).unwrap();
    let both = Both::open(&host, &path);
    drop(off);
    assert_eq!(both.served(), "failed");
    both.check(&mut queue, &content, SEED, 50);
}
