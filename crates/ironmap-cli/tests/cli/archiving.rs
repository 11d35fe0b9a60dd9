//! Tests `ironmap tar`. GNU tar extracts the archive. The extracted files equal the files that the kernel shows in the volume.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Stdio;

use crate::common::image::Image;
use crate::common::loop_device::LoopDevice;
use crate::common::mounted::{Mounted, unmount};
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, pattern, succeed, text, tool};
use crate::trees::{compare, view};
use rustix::process::{Pid, Signal, kill_process};

/// An archive of the root or of a directory contains everything that tar can store. The same volume gives the same archive.
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
        // GNU tar prints a warning for each time in the future or before 1970.
        let said = text(&output.stderr);
        assert!(said.lines().all(|line| line.contains("time stamp")), "{dir}: {said}");
        let mount = image.mount("ro");
        let mut expected = view(&mount.dir().join(dir.trim_start_matches('/')), i64::MAX);
        let mut found = view(mounted.dir(), i64::MAX);
        for views in [&mut expected, &mut found] {
            views.remove(Path::new("lost+found"));
            // The archive of a directory is extracted into the root of a volume. The attributes of these paths then differ from the volume.
            // Therefore they are not compared.
            if dir != "/" {
                views.remove(Path::new(""));
                views.remove(Path::new(&format!("{long}/file")));
                views.remove(Path::new("again"));
            }
        }
        compare(&expected, &found);
    }
    // The archive of a single file contains this file. For a missing file, no output is created.
    bench.succeed(["tar", "-f", "out.tar", &format!("{volume}:/near")]);
    assert_eq!(text(&succeed(tool("tar").arg("-tf").arg(bench.path("out.tar"))).stdout), "near\n");
    let output = bench.run(["tar", &format!("{volume}:/missing")]);
    assert!(output.status.code() == Some(1) && output.stdout.is_empty());
}

/// An archive never overwrites its source volume. The output may be another name of the volume, or a loop device on it. After a failed
/// write, the old archive still exists.
#[test]
fn an_archive_replaces_neither_its_volume_nor_a_good_archive() {
    require!([Need::Root, Need::Tool("losetup")]);
    let bench = Bench::with(&["-t", "ext4"]);
    fs::hard_link(bench.image(), bench.path("again")).unwrap();
    symlink(bench.image(), bench.path("link")).unwrap();
    let before = fs::read(bench.image()).unwrap();
    let own = bench.target("/");
    let image = bench.image().display().to_string();
    let refused = |file: &str, volume: &str| {
        let refused = bench.run(["tar", "-f", file, volume]);
        assert_eq!(refused.status.code(), Some(1), "{file} {volume}");
        assert!(text(&refused.stderr).contains("is the source volume"), "{file} {volume}");
        assert!(fs::read(bench.image()).unwrap() == before, "{file} {volume}");
    };
    for file in [&*image, "again", "link"] {
        refused(file, &own);
    }
    {
        let device = LoopDevice::with(&["--read-only"], bench.image());
        for file in [&*image, "again"] {
            refused(file, &format!("{}:/", device.node()));
        }
    }
    fs::write(bench.path("good.tar"), "good").unwrap();
    let missing = bench.run(["tar", "-f", "good.tar", &bench.target("/missing")]);
    assert_eq!(missing.status.code(), Some(1));
    assert_eq!(fs::read_to_string(bench.path("good.tar")).unwrap(), "good");
    bench.succeed(["tar", "-f", "good.tar", &own]);
    succeed(tool("tar").arg("-tf").arg(bench.path("good.tar")));
    bench.succeed(["tar", "-f", "/dev/null", &own]);
    let names = fs::read_dir(bench.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().ends_with(".part")));
}

/// pax headers contain the names of extended attributes in the encoding of GNU tar.
#[test]
fn names_of_attributes_are_those_of_gnu_tar() {
    require!([Need::Root, Need::Tool("tar"), Need::Tool("setfattr")]);
    let bench = Bench::with(&["-t", "ext4"]);
    bench.succeed(["touch", &bench.target("/file")]);
    let names = ["user.a=b", "user.p%25q", "user.%3D", "user.plain"];
    for name in names {
        bench.succeed(["setfattr", "-n", name, "-v", "value", &bench.target("/file")]);
    }
    bench.succeed(["tar", "-f", "out.tar", &bench.target("/file")]);
    let mounted = Mounted::ext4();
    let mut extract = tool("tar");
    extract.arg("-xpf").arg(bench.path("out.tar")).args(["--xattrs", "--xattrs-include=*"]);
    succeed(extract.arg("-C").arg(mounted.dir()));
    let listed =
        succeed(tool("getfattr").args(["--absolute-names", "-d"]).arg(mounted.path("file")));
    let listed = text(&listed.stdout);
    let mut found: Vec<_> =
        listed.lines().filter_map(|line| line.strip_suffix("=\"value\"")).collect();
    found.sort_unstable();
    let mut expected = names.map(|name| name.replace('=', "\\075"));
    expected.sort_unstable();
    assert_eq!(found, expected, "{listed}");
}

/// On a damaged volume, a file can have any size. Therefore a signal must end the archive even within a file.
#[test]
fn an_archive_is_interrupted_within_a_file() {
    let bench = Bench::empty();
    let image = Image::mke2fs("1G", &["-t", "ext4"]);
    let volume = image.path().display().to_string();
    let target = format!("{volume}:/large");
    // The file has no holes.
    bench.succeed(["fallocate", "-l", "800M", &target]);
    let mut command = bench.hearing_command();
    command.args(["tar", &target]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut vec![0; 4 << 20]).unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let left = std::io::copy(&mut out, &mut std::io::sink()).unwrap();
    assert!(left < 400 << 20, "it has gone on for {left} bytes");
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), &*text(&output.stderr)),
        (Some(143), "ironmap: interrupted\n")
    );
}

/// The positions and lengths of nonzero data.
type Ranges = &'static [(u64, u64)];

fn sparse(path: &Path, size: u64, ranges: Ranges) {
    let file = fs::File::create(path).unwrap();
    file.set_len(size).unwrap();
    for (at, len) in ranges {
        file.write_all_at(&pattern(*len as usize, *at), *at).unwrap();
    }
}

/// Asserts that the file has this content, and uses little more space than its data.
fn is_sparse(path: &Path, size: u64, ranges: Ranges) {
    let file = fs::File::open(path).unwrap();
    let found = file.metadata().unwrap();
    assert_eq!(found.len(), size, "{}", path.display());
    for (at, len) in ranges {
        let mut bytes = vec![0; *len as usize];
        file.read_exact_at(&mut bytes, *at).unwrap();
        assert!(bytes == pattern(*len as usize, *at), "{} at {at}", path.display());
    }
    // XFS temporarily allocates more space than the data need.
    let data: u64 = ranges.iter().map(|(_, len)| 4 * len + (1 << 20)).sum();
    assert!(found.blocks() * 512 <= data, "{}: {} blocks", path.display(), found.blocks());
}

/// Only the data of a sparse file are stored, not its holes:
///
/// - in an archive, from which GNU tar extracts the file byte for byte;
/// - in a volume that is made from an archive, in each sparse format of tar;
/// - in copies into and out of a volume.
#[test]
fn a_sparse_file_takes_only_its_data() {
    require!([Need::Root, Need::Tool("tar"), Need::Tool("mkfs.xfs")]);
    const HUGE: (u64, Ranges) = (1 << 62, &[(5, 10_000), (1 << 61, 3_000_000)]);
    // 8 TiB is close to the largest file size that ext4 supports.
    const LARGE: (u64, Ranges) = (8 << 40, &[(1 << 20, 1), (7 << 40, 100_000)]);
    const SMALL: [(&str, u64, Ranges); 5] = [
        ("hole", 1 << 20, &[]),
        ("begin", (1 << 20) + 1, &[(0, 1)]),
        ("end", (1 << 20) + 77, &[(1 << 20, 77)]),
        ("several", 1 << 20, &[(0, 4096), (40_000, 1), (50_000, 5000), (900_000, 40_000)]),
        ("short", 700, &[(1, 2)]),
    ];
    let bench = Bench::empty();
    let long = "l".repeat(120);
    let source = Mounted::new("mkfs.xfs -q", 320, "noatime");
    let tree = |dir: &Path| {
        fs::create_dir(dir.join("small")).unwrap();
        sparse(&dir.join(&long), LARGE.0, LARGE.1);
        for (name, size, ranges) in SMALL {
            sparse(&dir.join("small").join(name), size, ranges);
        }
        fs::hard_link(dir.join("small/several"), dir.join("small/twin")).unwrap();
    };
    tree(source.dir());
    sparse(&source.path("huge"), HUGE.0, HUGE.1);
    assert!(unmount(source.dir()));
    succeed(tool("cp").arg("--sparse=always").arg(source.image()).arg(bench.image()));
    bench.succeed(["tar", "-f", "all.tar", &bench.target("/")]);
    assert!(fs::metadata(bench.path("all.tar")).unwrap().len() < 4 << 20);
    let out = Mounted::new("mkfs.xfs -q", 320, "noatime");
    succeed(tool("tar").arg("-xpf").arg(bench.path("all.tar")).arg("-C").arg(out.dir()));
    is_sparse(&out.path("huge"), HUGE.0, HUGE.1);
    is_sparse(&out.path(&long), LARGE.0, LARGE.1);
    for (name, size, ranges) in SMALL {
        let path = out.path("small").join(name);
        is_sparse(&path, size, ranges);
        let expected = bench.succeed(["cat", &bench.target(&format!("/small/{name}"))]);
        assert!(fs::read(&path).unwrap() == expected, "{name}");
    }
    assert_eq!(fs::metadata(out.path("small/twin")).unwrap().nlink(), 2);
    // The sparse file is copied out of a volume and into a volume.
    let copy = out.path("copy").display().to_string();
    bench.succeed(["cp", &bench.target("/huge"), &copy]);
    is_sparse(Path::new(&copy), HUGE.0, HUGE.1);
    bench.succeed(["tar", "-f", "large.tar", &bench.target(&format!("/{long}"))]);
    assert!(fs::metadata(bench.path("large.tar")).unwrap().len() < 200_000);
    let forms =
        ["--format=gnu", "--sparse-version=0.0", "--sparse-version=0.1", "--sparse-version=1.0"];
    for form in forms {
        let mut tar = tool("tar");
        tar.args(["-S", form, "-cf"]).arg(bench.path(form)).arg("-C").arg(out.dir());
        succeed(tar.arg(&long));
    }
    for archive in forms.into_iter().chain(["large.tar", "."]) {
        let image = Image::none();
        let mut mkfs = bench.command();
        mkfs.args(["mkfs", "-q", "-b", "4K"]).arg(image.path()).arg("32M");
        if archive == "." {
            succeed(&mut mkfs);
            let to = format!("{}:/", image.path().display());
            bench.succeed(["cp", &out.path(&long).display().to_string(), &to]);
        } else {
            succeed(mkfs.arg("-d").arg(bench.path(archive)));
        }
        image.check();
        is_sparse(&image.mount("ro").dir().join(&long), LARGE.0, LARGE.1);
    }
}
