//! Access times of reads after changes that do not affect the content.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::sides::{Ours, require_mounts};
use crate::support::{Bench, succeed, tool};

/// With relatime, the first read after any change of an inode updates its access time, even directly after an earlier read.
#[test]
fn the_first_read_after_each_change_sets_a_time() {
    require_mounts!("the_first_read_after_each_change_sets_a_time");
    let bench = Bench::empty();
    succeed(tool("mke2fs").args(["-qF", "-t", "ext4"]).arg(bench.image()).arg("64M"));
    let dir = bench.path("mounted");
    let ours = Ours::mount(&bench.image(), &dir, "relatime");
    fs::write(dir.join("file"), "content").unwrap();
    let run = |script: &str| {
        succeed(tool("sh").args(["-c", script]).current_dir(&dir));
    };
    let times = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        ((found.atime(), found.atime_nsec()), (found.ctime(), found.ctime_nsec()))
    };
    let file = dir.join("file");
    for change in [
        "setfattr -n user.a -v $(cat /proc/sys/kernel/random/uuid) file",
        "setfattr -n user.a -v 1 file; setfattr -x user.a file",
        "rm -f other; ln file other",
        "ln file other 2>/dev/null; rm other",
        "mv file other; mv other file",
        "ln file other; ln file third; mv -f other replaced; rm replaced third",
        "chmod 600 file; chmod 644 file",
    ] {
        fs::read(&file).unwrap();
        let (read, _) = times(&file);
        // The loop repeats the change until the clock for timestamps has advanced.
        while times(&file).1 <= read {
            run(change);
        }
        fs::read(&file).unwrap();
        let (read, changed) = times(&file);
        assert!(read >= changed, "{change}");
    }
    let list = || assert!(fs::read_dir(&dir).unwrap().count() > 0);
    for change in
        ["touch a; rm a", "mkdir a; rmdir a", "ln -s a b; mv b c; rm c", "ln file a; rm a"]
    {
        list();
        let (read, _) = times(&dir);
        while times(&dir).1 <= read {
            run(change);
        }
        list();
        let (read, changed) = times(&dir);
        assert!(read >= changed, "{change}");
    }
    ours.unmount();
}

/// With nodiratime, listings do not update access times. Reads of files update them.
#[test]
fn listings_leave_no_times_with_nodiratime() {
    require_mounts!("listings_leave_no_times_with_nodiratime");
    let bench = Bench::empty();
    succeed(tool("mke2fs").args(["-qF", "-t", "ext4"]).arg(bench.image()).arg("64M"));
    let dir = bench.path("mounted");
    for (options, leaves) in [("strictatime,lazytime", true), ("strictatime,nodiratime", false)] {
        let ours = Ours::mount(&bench.image(), &dir, options);
        fs::write(dir.join("file"), "content").unwrap();
        let reads = |path: &Path, read: &dyn Fn()| {
            succeed(tool("touch").args(["-a", "-d", "@1000000000"]).arg(path));
            read();
            fs::metadata(path).unwrap().atime() != 1_000_000_000
        };
        assert_eq!(reads(&dir, &|| assert!(fs::read_dir(&dir).unwrap().count() > 0)), leaves);
        let file = dir.join("file");
        assert!(reads(&file, &|| assert_eq!(fs::read(&file).unwrap(), b"content")));
        ours.unmount();
    }
}
