//! Mounts of who is not the superuser.

use std::fs;

use crate::sides::{check, ironmap, require_mounts, skip};
use crate::support::{Bench, succeed, text, tool};

/// A user, with a device of FUSE's that everybody may open, as it is where a device manager runs: in a mount namespace, so that the machine's
/// own stays as it is. What he mounts is his alone, and nobody gets privileges by it.
const SCRIPT: &str = r"
set -e
mknod fuse c 10 229
chmod 666 fuse
mount --bind fuse /dev/fuse
user='setpriv --reuid=1000 --regid=1000 --clear-groups'
$user ./ironmap mount image mounted
trap '$user fusermount3 -uq mounted || true' EXIT
grep -q ' fuse.ironmap rw,nosuid,nodev,.*user_id=1000,group_id=1000' /proc/mounts
$user sh -c 'echo content > mounted/file; stat -c %u:%s mounted/file'
! ls mounted 2>/dev/null
$user sh -c 'exec 3<mounted/file; ./ironmap umount mounted || echo busy' 2>/dev/null
$user ./ironmap umount mounted
$user ./ironmap cat image:/file
";

/// He mounts what is his by fusermount3, in the background, and ends it so.
#[test]
fn a_user_mounts_and_unmounts() {
    require_mounts!("a_user_mounts_and_unmounts");
    let has = tool("sh").args(["-c", "command -v fusermount3"]).output();
    if !has.is_ok_and(|out| out.status.success()) {
        return skip("a_user_mounts_and_unmounts", "needs the program fusermount3");
    }
    let bench = Bench::empty();
    let mke2fs = ["-qF", "-t", "ext4", "-E", "root_owner=1000:1000"];
    succeed(tool("mke2fs").args(mke2fs).arg(bench.path("image")).arg("32M"));
    // Where the program is built may be nobody else's to enter.
    fs::copy(ironmap(), bench.path("ironmap")).unwrap();
    fs::create_dir(bench.path("mounted")).unwrap();
    succeed(tool("chown").arg("-R").arg("1000:1000").arg(bench.dir.path()));
    succeed(tool("chmod").arg("755").arg(bench.dir.path()));
    let mut script = tool("unshare");
    let script = script.args(["--mount", "sh", "-c", SCRIPT]).current_dir(bench.dir.path());
    let out = succeed(script);
    assert_eq!(text(&out.stdout), "1000:8\nbusy\ncontent\n");
    check(&bench.path("image"));
}
