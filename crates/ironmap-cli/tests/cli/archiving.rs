//! `ironmap tar`: what GNU tar extracts of it is what the kernel shows of the volume.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::image::Image;
use crate::common::mounted::Mounted;
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, succeed, text, tool};
use crate::trees::{compare, view};

/// Everything that tar holds comes out, from the root and from a directory, and the same volume gives the same archive.
#[test]
fn an_archive_holds_what_the_volume_does() {
    require!([Need::Root, Need::Tool("tar"), Need::Tool("setfacl")]);
    let bench = Bench::new();
    let tree = bench.source();
    let long = "n".repeat(150);
    fs::create_dir_all(tree.join(format!("dir/{long}"))).unwrap();
    fs::write(tree.join(format!("dir/{long}/file")), "deep").unwrap();
    fs::hard_link(tree.join(format!("dir/{long}/file")), tree.join("near")).unwrap();
    symlink(format!("dir/{long}/file"), tree.join("dir/far")).unwrap();
    let script = "mknod dir/zero c 1 5; mknod disk b 259 1234; mkfifo -m 640 pipe
        chown 1000:1001 small; chown -h 70000:3000000 dir/far; chmod 6755 near; chmod 1777 dir
        setfattr -n user.lines -v 'a
b' small; setfattr -n trusted.it -v x dir; setfacl -m user:7:r small; setfacl -d -m user:8:rwx dir
        touch -d '1960-01-02 03:04:05.678901234' dir/zero; touch -hd '2033-01-02 03:04:05.5' dir/far";
    succeed(tool("sh").args(["-ec", script]).current_dir(&tree));
    let image = Image::none();
    let volume = image.path().display().to_string();
    bench.succeed(["mkfs", "-q", "-d", "source", &volume, "64M"]);
    for dir in ["/", "/dir", "/dir/"] {
        let archive = bench.path("out.tar");
        let target = format!("{volume}:{dir}");
        bench.succeed(["tar", "-f", "out.tar", &target]);
        assert!(bench.succeed(["tar", &target]) == fs::read(&archive).unwrap(), "{dir}");
        let mounted = Mounted::ext4();
        let mut tar = tool("tar");
        tar.arg("-xpf").arg(&archive).args(["--xattrs", "--xattrs-include=*", "--numeric-owner"]);
        let output = succeed(tar.arg("-C").arg(mounted.dir()));
        // It wonders at times of the future, and before 1970.
        let said = text(&output.stderr);
        assert!(said.lines().all(|line| line.contains("time stamp")), "{dir}: {said}");
        let mount = image.mount("ro");
        let mut expected = view(&mount.dir().join(dir.trim_start_matches('/')), i64::MAX);
        let mut found = view(mounted.dir(), i64::MAX);
        for views in [&mut expected, &mut found] {
            views.remove(Path::new("lost+found"));
            // The root of the other volume has a directory more, and a name of this file is not below.
            if dir != "/" {
                views.remove(Path::new(""));
                views.remove(Path::new(&format!("{long}/file")));
                views.remove(Path::new("again"));
            }
        }
        compare(&expected, &found);
    }
    // A file by itself, and what is not there.
    bench.succeed(["tar", "-f", "out.tar", &format!("{volume}:/near")]);
    assert_eq!(text(&succeed(tool("tar").arg("-tf").arg(bench.path("out.tar"))).stdout), "near\n");
    let output = bench.run(["tar", &format!("{volume}:/missing")]);
    assert!(output.status.code() == Some(1) && output.stdout.is_empty());
}
