//! Commands on XFS volumes that the kernel has filled. Some commands read the volumes, and others refuse them.

use std::fs;
use std::os::unix::fs::symlink;

use crate::common::mounted::{Mounted, unmount};
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, pattern, succeed, text, tool};
use crate::trees::{compare, view};

/// Makes a tree, and an XFS image of this tree. The image is unmounted, or is left as after a crash.
fn filled(bench: &Bench, shutdown: bool) {
    let source = bench.source();
    fs::create_dir_all(source.join("dir/deep")).unwrap();
    fs::write(source.join("dir/file"), pattern(100_000, 7)).unwrap();
    fs::write(source.join("empty"), b"").unwrap();
    symlink("dir/file", source.join("link")).unwrap();
    fs::hard_link(source.join("dir/file"), source.join("dir/deep/other")).unwrap();
    for number in 0..300 {
        fs::write(source.join(format!("dir/deep/{number}")), number.to_string()).unwrap();
    }
    let script = "setfattr -n user.colour -v red dir/file; setfacl -m user:7:r empty; touch -d '1960-01-02 03:04:05.678901234' empty";
    succeed(tool("sh").args(["-ec", script]).current_dir(&source));
    let mounted = Mounted::new("mkfs.xfs -q -L spare", 320, "noatime");
    succeed(tool("cp").arg("-a").arg(format!("{}/.", source.display())).arg(mounted.dir()));
    if shutdown {
        // Delayed allocations are not in the log. Therefore the data are synced first.
        succeed(tool("sync").arg("-f").arg(mounted.dir()));
        succeed(tool("xfs_io").args(["-x", "-c", "shutdown -f"]).arg(mounted.dir()));
    }
    assert!(unmount(mounted.dir()));
    succeed(tool("cp").arg("--sparse=always").arg(mounted.image()).arg(bench.image()));
}

#[test]
fn a_volume_is_read_and_its_log_is_recovered() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    for shutdown in [false, true] {
        let bench = Bench::empty();
        filled(&bench, shutdown);
        let before = fs::read(bench.image()).unwrap();
        bench.succeed(["cp", "-a", &bench.target("/."), "out"]);
        let (expected, mut found) =
            (view(&bench.source(), i64::MAX), view(&bench.path("out"), i64::MAX));
        found.retain(|path, _| expected.contains_key(path));
        compare(&expected, &found);
        let shown = bench.run(["cat", &bench.target("/link")]);
        assert_eq!(shown.stdout, pattern(100_000, 7));
        let info = bench.json(&["info", "--json", bench.image().to_str().unwrap()]);
        assert_eq!(info["format"], "xfs");
        assert_eq!(info["label"], "spare");
        assert_eq!(info["log"]["state"], if shutdown { "recovered" } else { "clean" });
        bench.succeed(["diff", &bench.target("/dir"), "source/dir"]);
        assert!(before == fs::read(bench.image()).unwrap(), "the image was written");
    }
}

#[test]
fn a_check_says_what_is_wrong() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io"), Need::Tool("xfs_db")]);
    for shutdown in [false, true] {
        let bench = Bench::empty();
        filled(&bench, shutdown);
        let image = bench.image();
        let image = image.to_str().unwrap();
        let before = fs::read(image).unwrap();
        let clean = bench.json(&["check", "--json", image]);
        assert_eq!(clean["clean"], true, "{clean}");
        assert_eq!(clean["directories"], 3);
        assert!(before == fs::read(image).unwrap(), "the image was written");
        if shutdown {
            continue;
        }
        let args = ["-x", "-c", "agf 1", "-c", "write -d freeblks 7", image];
        succeed(tool("xfs_db").args(args));
        let damaged = bench.run(["check", image]);
        assert_eq!(damaged.status.code(), Some(4));
        let said = text(&damaged.stdout);
        let line = "repairable: group 1: header of free space, agf_freeblks: 7, should be ";
        assert!(said.lines().any(|said| said.starts_with(line)), "{said}");
        assert!(said.contains("not clean"), "{said}");
    }
}

#[test]
fn operations_that_xfs_lacks_are_refused() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    let bench = Bench::empty();
    filled(&bench, false);
    let before = fs::read(bench.image()).unwrap();
    let image = bench.image();
    let image = image.to_str().unwrap();
    let target = bench.target("/new");
    for (args, says) in [
        (vec!["cp", "source/empty", &target], "on XFS only the data of files can be overwritten"),
        (vec!["mkdir", &target], "on XFS only the data of files can be overwritten"),
        (
            vec!["resize", "-M", image],
            "the file system is XFS, but this command supports only ext2, ext3 and ext4",
        ),
        (
            vec!["tune", "-L", "name", image],
            "the file system is XFS, but this command supports only ext2, ext3 and ext4",
        ),
        (vec!["mkfs", image], "contains an XFS file system"),
    ] {
        let output = bench.run(&args);
        let errors = text(&output.stderr);
        assert!(!output.status.success(), "{args:?}");
        assert!(errors.contains(says) && errors.lines().count() == 1, "{args:?}: {errors}");
    }
    assert!(before == fs::read(bench.image()).unwrap(), "the image was written");
}
