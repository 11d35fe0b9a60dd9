//! Options of `-o`, compared with `mount -t ext4`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::sides::{Kernels, Ours, ironmap, require_mounts, unmount};
use crate::support::{Bench, succeed, text, tool};

fn volume() -> Bench {
    let bench = Bench::empty();
    succeed(tool("mke2fs").args(["-qF", "-t", "ext4"]).arg(bench.image()).arg("16M"));
    bench
}

/// For each of these mount options, the same values are accepted and refused as by the kernel's ext4.
#[test]
fn values_of_options_are_those_of_the_kernel() {
    require_mounts!("values_of_options_are_those_of_the_kernel");
    let bench = volume();
    let dir = bench.path("kernel");
    fs::create_dir(&dir).unwrap();
    let options = "inode_readahead_blks=0 inode_readahead_blks=1 inode_readahead_blks=3 inode_readahead_blks=040 \
         inode_readahead_blks=1073741824 inode_readahead_blks=2147483648 inode_readahead_blks=-1 \
         inode_readahead_blks=+32 inode_readahead_blks inode_readahead_blks= journal_ioprio=0 journal_ioprio=7 \
         journal_ioprio=8 mb_optimize_scan=0 mb_optimize_scan=1 mb_optimize_scan=2 mb_optimize_scan stripe=0 \
         stripe=7 stripe=4294967295 stripe=4294967296 stripe=x stripe=0x10 stripe=0X1f stripe=0x stripe=0b1 \
         stripe=08 stripe=++5 stripe max_batch_time=0 max_batch_time=4294967295 max_batch_time=4294967296 \
         max_batch_time=x min_batch_time=0 min_batch_time=4294967295 min_batch_time=-5 init_itable \
         init_itable=5 init_itable=x auto_da_alloc=2 auto_da_alloc=x noauto_da_alloc barrier=2 barrier=x reservation \
         noreservation fc_debug_max_replay=5 fc_debug_max_replay nodioread_nolock dioread_lock iversion \
         noiversion i_version mand nomand symfollow nosymfollow norelatime nostrictatime commit=0x10 commit=010 \
         commit=2147483 delalloc=1 acl=1 nombcache no_mbcache warn_on_error check=none nocheck";
    for option in options.split_whitespace() {
        let mut kernels = tool("mount");
        kernels.args(["-t", "ext4", "-o", &format!("loop,{option}")]).arg(bench.image()).arg(&dir);
        let kernels = kernels.output().unwrap();
        if kernels.status.success() {
            assert!(unmount(&dir));
        }
        let mut ours = Command::new(ironmap());
        ours.args(["mount", "--fake", "-o", option]).arg(bench.image()).arg(&dir);
        let ours = ours.output().unwrap();
        let code = if kernels.status.success() { 0 } else { 2 };
        assert_eq!(ours.status.code(), Some(code), "{option}: {}", text(&ours.stderr));
        assert_eq!(ours.stderr.is_empty(), code == 0, "{option}");
    }
}

fn shown(dir: &Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let dir = dir.to_str().unwrap();
    let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(dir)).unwrap();
    line.split(' ').nth(3).unwrap().split(',').map(str::to_owned).collect()
}

/// With nosymfollow, symbolic links are not followed, but can be read. The other flags of the mount are not changed. A remount changes
/// nosymfollow only on request.
#[test]
fn nosymfollow_is_obeyed() {
    require_mounts!("nosymfollow_is_obeyed");
    let bench = volume();
    let twin = bench.path("twin");
    fs::copy(bench.image(), &twin).unwrap();
    let dir = bench.path("mounted");
    for options in
        ["nosymfollow", "noexec,nosymfollow,nodev,noatime", "symfollow", "nosymfollow,symfollow"]
    {
        let kernels = Kernels::mount(&twin, &bench.path("kernel"), options);
        let ours = Ours::mount(&bench.image(), &dir, options);
        let run = |dir: &Path| {
            let link = dir.join("link");
            let _ = fs::remove_file(&link);
            fs::write(dir.join("file"), "content").unwrap();
            symlink("file", &link).unwrap();
            let read = fs::read_to_string(&link).map_err(|error| error.raw_os_error());
            let flags = ["nosymfollow", "noexec", "nodev", "nosuid", "noatime", "ro"];
            let shown = shown(dir).into_iter().filter(|option| flags.contains(&&**option));
            (read, fs::read_link(&link).unwrap(), shown.collect::<Vec<_>>())
        };
        assert_eq!(run(&dir), run(&kernels.dir), "{options}");
        ours.unmount();
    }
    let ours = Ours::mount(&bench.image(), &dir, "nosymfollow");
    for (options, follows, read_only) in [
        ("ro", false, true),
        ("rw", false, false),
        ("symfollow", true, false),
        ("nosymfollow", false, false),
    ] {
        let mut remount = Command::new(ironmap());
        succeed(remount.args(["mount", "-o", &format!("remount,{options}")]).arg(&dir));
        assert_eq!(fs::read(dir.join("link")).is_ok(), follows, "{options}");
        assert_eq!(fs::write(dir.join("new"), "").is_err(), read_only, "{options}");
    }
    ours.unmount();
    // nosymfollow works on a read-only mount too.
    let ours = Ours::mount(&bench.image(), &dir, "ro,nosymfollow");
    assert!(fs::read(dir.join("link")).is_err() && fs::write(dir.join("new"), "").is_err());
    ours.unmount();
}
