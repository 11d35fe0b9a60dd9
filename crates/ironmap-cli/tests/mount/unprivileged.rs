//! Mounts of a user other than the superuser.

use std::fs;

use crate::sides::{check, ironmap, require_mounts, skip};
use crate::support::{Bench, succeed, text, tool};

/// Prepares a user without privileges. Prepares a FUSE device that every user may open, as on most systems. The test runs in a separate
/// mount namespace, and does not change the device of the machine.
const USER: &str = r"
set -e
mknod fuse c 10 229
chmod 666 fuse
mount --bind fuse /dev/fuse
user='setpriv --reuid=1000 --regid=1000 --clear-groups'
trap '$user fusermount3 -uqz mounted || true' EXIT
";

/// Other users cannot access the mount of an unprivileged user, and the mount gives no privileges.
const HIS_OWN: &str = r"
$user ./ironmap mount image mounted
grep -q ' fuse.ironmap rw,nosuid,nodev,.*user_id=1000,group_id=1000' /proc/mounts
$user sh -c 'echo content > mounted/file; stat -c %u:%s mounted/file'
! ls mounted 2>/dev/null
$user sh -c 'exec 3<mounted/file; ./ironmap umount mounted || echo busy' 2>/dev/null
$user ./ironmap umount mounted
$user ./ironmap cat image:/file
debugfs -w -R 'set_inode_field <2> uid 0' image 2>/dev/null
$user ./ironmap mount image mounted 2>&1 | grep -o 'with -o uid=1000'
$user ./ironmap umount mounted
";

/// Sends a signal to a daemon. Meanwhile, a program writes to a file of the mount until it gets an error. In the first run,
/// /sys/fs/fuse/connections is missing. In the second run, it exists, and the user can abort the connection.
const SIGNALS: &str = r#"
end_it() {
    $user ./ironmap mount -f --tell image mounted >told & daemon=$!
    until [ -s told ]; do kill -0 $daemon; done
    $user sh -c 'exec 3>mounted/open; echo kept >&3; kill -TERM $1; while echo more >&3; do :; done' - $daemon 2>/dev/null || true
    ended=0; wait $daemon || ended=$?
    ! grep -q "$PWD/mounted" /proc/mounts
    rm told
    echo "ended: $ended"
}
umount /sys/fs/fuse/connections 2>/dev/null || true
end_it 2>/dev/null
mount -t fusectl none /sys/fs/fuse/connections
end_it
$user ./ironmap cat image:/open | head -n1
"#;

/// Two mounts are refused. fusermount3 refuses the first mount. The second mount is refused because the user may not open the FUSE device.
const REFUSED: &str = r"
$user ./ironmap mount -o allow_other image mounted 2>&1 || echo $?
chmod 600 fuse
$user ./ironmap mount image mounted 2>&1 || echo $?
";

/// Runs a script as root in the user's directory, and returns its output. The volume must be sound afterwards.
fn played(script: &str) -> String {
    let bench = Bench::empty();
    let mke2fs = ["-qF", "-t", "ext4", "-E", "root_owner=1000:1000"];
    succeed(tool("mke2fs").args(mke2fs).arg(bench.path("image")).arg("32M"));
    // The program is copied, because other users may have no access to the build directory. A separate process makes the copy. If this
    // process made it, a child process of another test could inherit the descriptor that is open for writing, and the copy could then not
    // be executed (ETXTBSY).
    succeed(tool("cp").arg(ironmap()).arg(bench.path("ironmap")));
    fs::create_dir(bench.path("mounted")).unwrap();
    succeed(tool("chown").arg("-R").arg("1000:1000").arg(bench.dir.path()));
    succeed(tool("chmod").arg("755").arg(bench.dir.path()));
    let mut shell = tool("unshare");
    let script = format!("{USER}{script}");
    let out = succeed(shell.args(["--mount", "sh", "-c", &script]).current_dir(bench.dir.path()));
    check(&bench.path("image"));
    text(&out.stdout)
}

fn has_fusermount() -> bool {
    let has = tool("sh").args(["-c", "command -v fusermount3"]).output();
    has.is_ok_and(|out| out.status.success())
}

/// A user mounts the user's own image with fusermount3, in the background, and unmounts it with fusermount3.
#[test]
fn a_user_mounts_and_unmounts() {
    require_mounts!("a_user_mounts_and_unmounts");
    if !has_fusermount() {
        return skip("a_user_mounts_and_unmounts", "needs the program fusermount3");
    }
    assert_eq!(played(HIS_OWN), "1000:8\nbusy\ncontent\nwith -o uid=1000\n");
}

/// A signal ends the user's daemon although a file is open. If the user may abort the connection to the kernel, the volume is closed. If
/// not, the volume needs recovery afterwards, and the exit status reports this.
#[test]
fn a_signal_ends_a_users_daemon() {
    require_mounts!("a_signal_ends_a_users_daemon");
    if !has_fusermount() {
        return skip("a_signal_ends_a_users_daemon", "needs the program fusermount3");
    }
    assert_eq!(played(SIGNALS), "ended: 1\nended: 0\nkept\n");
}

/// The reason for a refused mount is one line, even if fusermount3 gives the reason. If the user may not open the FUSE device, the line
/// names the device.
#[test]
fn a_refused_mount_of_a_user_has_a_reason() {
    require_mounts!("a_refused_mount_of_a_user_has_a_reason");
    if !has_fusermount() {
        return skip("a_refused_mount_of_a_user_has_a_reason", "needs the program fusermount3");
    }
    let said = played(REFUSED);
    let lines: Vec<_> = said.lines().collect();
    let [theirs, "1", ours, "1"] = lines[..] else {
        panic!("{said}");
    };
    assert!(theirs.starts_with("ironmap: ") && theirs.contains("user_allow_other"), "{said}");
    assert!(ours.starts_with("ironmap: /dev/fuse: Permission denied: mount as root, or"), "{said}");
    assert!(!theirs.contains("\\n"), "{said}");
}
