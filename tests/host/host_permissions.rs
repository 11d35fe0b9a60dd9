//! A user may lack permission to read the device of a file, or to acquire a lease. Then ironmap reads the file through the kernel, and
//! reports the reason.

use crate::require;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use crate::common::again::{again, name_of, role};
use crate::common::calls::Both;
use crate::common::mounted::Mounted;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use ironmap::{Host, HostOptions, QueueOptions};

const SEED: u64 = 0x9e_4215;
const NOBODY: u32 = 65534;

/// A device node with changed permissions. Dropping the value restores the permissions.
struct Node<'a>(&'a str, Permissions);

impl<'a> Node<'a> {
    fn of(path: &'a str) -> Self {
        Self(path, std::fs::metadata(path).unwrap().permissions())
    }

    fn allow(&self, mode: u32) {
        std::fs::set_permissions(self.0, Permissions::from_mode(mode)).unwrap();
    }
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        let _ = std::fs::set_permissions(self.0, self.1.clone());
    }
}

/// The checks that run as an ordinary user. `role` contains the path of the file, and whether its reads go to the device or through the
/// kernel.
fn as_nobody(role: &str) {
    let (served, path) = role.split_once(' ').unwrap();
    let host = Host::new(&HostOptions::default()).unwrap();
    let mut queue = host.queue(&QueueOptions::default()).unwrap();
    let both = Both::open(&host, Path::new(path));
    assert_eq!(both.served(), served, "{:?}", both.any.host());
    both.check(&mut queue, &std::fs::read(path).unwrap(), SEED, 200);
    assert_eq!(queue.stats().kernel_served == 0, served == "raw");
    assert!(host.events().take().0.is_empty(), "a refusal is no error");
}

/// ironmap reports which permission is missing. With both permissions, an ordinary user gets the same result as root.
#[test]
fn an_ordinary_user_is_served_by_the_kernel_unless_device_and_file_are_his() {
    if let Some(role) = role() {
        return as_nobody(&role);
    }
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("setpriv")]);
    let mounted = Mounted::ext4();
    mounted.allow_all_users();
    let path = mounted.write("file", &Rng::new(SEED).bytes(300_001));
    // The program is copied, because an ordinary user may have no access to the build directory.
    let program = mounted.path("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let node = Node::of(mounted.device());
    let user = NOBODY.to_string();
    let beneath = ["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"];
    let run = |served: &str| {
        let test = "an_ordinary_user_is_served_by_the_kernel_unless_device_and_file_are_his";
        let test = &name_of(module_path!(), test);
        again(&beneath, &program, test, &format!("{served} {}", path.display()));
    };

    chown(&path, Some(NOBODY), None).unwrap();
    node.allow(0o600);
    run("device");
    node.allow(0o604);
    run("raw");
    chown(&path, Some(0), None).unwrap();
    run("lease_permission");
}
