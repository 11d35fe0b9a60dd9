//! After each operation that changes attributes, the attributes in the kernel's cache are correct.

use std::fs;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::time::{ClockId, clock_gettime};

use crate::sides::{Ours, check, require_mounts};
use crate::support::{Bench, succeed, tool};

/// Operations that change inodes. Each operation uses the files that the previous operations have left.
const CHANGES: &[&str] = &[
    "chattr +A file",
    "chattr -A file",
    "chattr +d dir",
    "chattr +i file; chattr -i file",
    "chmod 640 file",
    "chown 5:6 file",
    "touch -d @1000000000 file",
    "setfattr -n user.a -v 1 file",
    "setfattr -n user.large -v $(printf %3000d 1) file",
    "setfattr -x user.a file",
    "setfacl -m u:1000:rwx file",
    "setfacl -b file",
    "setfacl -d -m u:1000:rwx dir",
    "ln file other",
    "ln file dir/third",
    "rm other",
    "mv file moved; mv moved file",
    "mv dir/third dir/fourth",
    "mv dir/fourth fourth",
    "touch new; mv new fourth",
    "mkdir dir/sub",
    "mv dir/sub .",
    "rmdir sub",
    "mknod dir/pipe p; ln -s target dir/link; touch dir/empty",
    "rm dir/pipe dir/link dir/empty",
    "echo more >> file",
    "echo over | dd of=file conv=notrunc status=none",
    "echo direct | dd of=file conv=notrunc,sync bs=4096 oflag=direct status=none",
    "truncate -s 50000 file",
    "truncate -s 5 file",
    "fallocate -l 100000 file",
    "fallocate -n -o 100000 -l 100000 file",
    "fallocate -p -o 8192 -l 8192 file",
    "fallocate -z -o 0 -l 4096 file",
    "cp fourth file",
    "chmod 6777 file; $user sh -c 'echo written >> file'",
    "chmod 6777 file; $user truncate -s 3 file",
    "chmod 6777 file; $user fallocate -l 9000 file",
    "chown 1000:1000 file",
    "$user chattr +A file; chattr -A file",
    "setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 file",
    "echo gone >> file",
];
const USER: &str = "setpriv --reuid=1000 --regid=1000 --clear-groups";

/// The attributes from the kernel's cache. If `ask` is true, the kernel requests them from the server instead.
fn attributes(path: &Path, ask: bool) -> String {
    let how = if ask { AtFlags::STATX_FORCE_SYNC } else { AtFlags::empty() };
    let found = statx(CWD, path, how | AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS).unwrap();
    format!(
        "mode {:o}, owner {}:{}, links {}, size {}, blocks {}, modified {}.{:09}, changed {}.{:09}",
        found.stx_mode,
        found.stx_uid,
        found.stx_gid,
        found.stx_nlink,
        found.stx_size,
        found.stx_blocks,
        found.stx_mtime.tv_sec,
        found.stx_mtime.tv_nsec,
        found.stx_ctime.tv_sec,
        found.stx_ctime.tv_nsec,
    )
}

/// Waits for the next tick of the clock for timestamps. The next change then gets another time.
fn next_tick() {
    let now = || clock_gettime(ClockId::RealtimeCoarse);
    let begin = now();
    while now() == begin {
        std::thread::yield_now();
    }
}

#[test]
fn the_kernels_cache_knows_each_change() {
    require_mounts!("the_kernels_cache_knows_each_change");
    let bench = Bench::empty();
    succeed(tool("mke2fs").args(["-qF", "-t", "ext4"]).arg(bench.image()).arg("64M"));
    let dir = bench.path("mounted");
    let ours = Ours::mount(&bench.image(), &dir, "rw,allow_other");
    fs::create_dir(dir.join("dir")).unwrap();
    fs::write(dir.join("file"), "content").unwrap();
    let paths = [".", "dir", "file"].map(|name| dir.join(name));
    let mut stale = Vec::new();
    for change in CHANGES {
        // These requests make the kernel cache the attributes of all files.
        for path in &paths {
            attributes(path, true);
        }
        next_tick();
        let script = format!("user='{USER}'; {change}");
        succeed(tool("sh").args(["-ec", &script]).current_dir(&dir));
        for path in &paths {
            let (known, true_ones) = (attributes(path, false), attributes(path, true));
            if known != true_ones {
                let name = path.file_name().unwrap_or_default();
                stale.push(format!("{change}: {name:?}: {known}; in truth {true_ones}"));
            }
        }
    }
    ours.unmount();
    check(&bench.image());
    assert!(stale.is_empty(), "{}", stale.join("\n"));
}
