//! Commands that change a volume have the same effect as the Linux programs with the same names. The Linux programs run on a mounted
//! volume. After the changes, e2fsck finds no fault.

use crate::require;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use crate::common::image::Image;
use crate::common::skip::Need;
use crate::support::{Bench, pattern, text, tool};
use crate::trees::{compare, space, view};
use ironmap::VolumeOptions;
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{Credentials, NewFile};
use rustix::fs::{CWD, RenameFlags, XattrFlags};
use rustix::process::{Pid, Signal};

/// The commands that run on both volumes. `@` is replaced by the volume or by its mount point. A line that begins with `!` must fail on
/// both volumes.
const STEPS: &str = "
mkdir @/a
mkdir -p @/a/b/c/d @/a/b
mknod @/null c 1 3
mknod -m 640 @/disk b 300 70000
mknod @/fifo p
mknod -m u=rw,o=r @/a/fifo p
! mknod @/null c 1 3
! mknod @/fifo2 p 1 2
! mknod @/half b 1
! mknod -m 4755 @/half b 1 2
! mknod @/missing/x p
mkdir -m 2751 @/set-group
mkdir @/set-group/inherits
mkdir -p -m 700 @/p/q/r
mkdir -m u=rwx,go= @/symbolic
! mkdir @/a
! mkdir @/missing/x
touch @/f @/a/now
touch -d 2001-02-03T04:05:06.5Z @/a/t
touch -c @/absent
touch -r @/a/t @/a/t2
! touch -h @/absent
touch -c -h @/absent
truncate -s 5000 @/t
truncate -s +1K @/t
truncate -s -100 @/t
truncate -s %4K @/t
truncate -s <7000 @/t
truncate -s >8KB @/t
truncate -c -s 1 @/absent
truncate -r @/t @/t2
truncate -s 1M @/t3
ln -s a/led-to @/leads
ln -s leads @/leads2
touch @/leads2
ln -s ../truncated @/a/leads
truncate -s 3 @/a/leads
ln -s missing/x @/astray
! touch @/astray
touch -c @/astray
! mkdir -p @/t3/x
! truncate -s 1 @/a
! truncate -s 1 @/missing/x
cp source/small @/small
cp source/small @/a
cp source/program @/plain-program
cp -p source/program @/kept-program
cp -r source @/tree
cp -r source @/tree
cp -a source @/kept
cp -a source/. @/merged
cp -a source/dir/. @/merged
cp -d source/link @/link1
cp source/link @/link2
cp -n source/large @/small
cp -T source/small @/small2
cp source/large source/small @/p
cp --preserve=mode,timestamps source/program @/some-kept
cp source/small @/set-group
cp -a source/program @/set-group/theirs
! cp source @/x
! cp source/small @/missing/
! cp source/missing @/x
! cp source/small source/large @/t
! cp -r source @/small
cp -r @/tree @/tree2
cp -a @/kept @/kept2
cp -a @/kept/again @/kept2/again2
touch @/capable @/capable2
cp -a source/program @/capable
cp -a @/kept/program @/capable2
mkdir @/hands-down
setfattr -n system.posix_acl_default -v 0x0200000001000700ffffffff020007000700000004000500ffffffff10000700ffffffff20000500ffffffff @/hands-down
mkdir @/hands-down/masked
mkdir -p @/hands-down/above/below
cp -a source/small source/dir source/pipe source/link @/hands-down
cp -p source/large @/hands-down
cp source/program @/hands-down
touch @/had-list
setfattr -n system.posix_acl_access -v 0x0200000001000700ffffffff020007000700000004000500ffffffff10000700ffffffff20000500ffffffff @/had-list
cp -p source/small @/had-list
mkdir @/had-lists
mkdir @/had-lists/empty
setfattr -n system.posix_acl_default -v 0x0200000001000700ffffffff020007000700000004000500ffffffff10000700ffffffff20000500ffffffff @/had-lists/empty
cp -a source/dir/. @/had-lists
mkdir @/linked
cp -a source/small source/again source/program @/linked
! cp -a source/small @/kept/small @/linked
mkdir @/linked2
cp -a @/kept/small @/kept/again @/linked2
cp -a @/kept/again @/kept/sparse @/kept2
! cp -r @/tree @/tree/into
! cp @/small @/small
cp source/large @/small2
cp source/small @/small2
ln @/f @/f2
! ln @/f @/f2
ln -f @/small @/f2
ln -s text @/s
! ln -s text @/s
ln -sf text2 @/s
ln -s a @/dirlink
ln -s text @/dirlink
ln -sfn b @/dirlink
! ln @/a @/hard
! ln @/missing @/x
ln @/s @/s-hard
mv @/f @/g
mv @/g @/a
mv -n @/small @/small2
mv @/tree/dir @/moved
mv @/moved @/a/b/c
mv @/tree/source/dir @/tree/source/sub
mv @/small @/a/t2
mv -T @/p/q @/symbolic
mv @/t3 @/t2 @/p
! mv @/a @/a/b
! mv @/missing @/x
! mv @/p @/small2
! mv @/small2 @/missing/
! mv -T @/small2 @/p
! mv @/f2 @/f2
chmod 4711 @/a/t
chmod u-x,g=u @/a/t
chmod +w @/t
chmod -R u=rwX,go=rX @/kept2
chmod 755 @/set-group
chmod g+s,+t @/p
! chmod 600 @/link1
ln -s t @/to-t
chmod 640 @/to-t
! chmod 600 @/missing
chown 1:2 @/a/t
chown 3 @/kept-program
chown -h 5:6 @/link1
chown -R 100:100 @/tree2
chown :7 @/p
! chown 1 @/missing
setfattr -n user.a -v 0x414200 @/t
setfattr -n user.b -v text @/t
setfattr -n user.a -v longer-than-before @/t
setfattr -n trusted.c @/a
setfattr -x user.b @/t
! setfattr -x user.b @/t
! setfattr -n nothing.a -v x @/t
fallocate -l 1M @/fa
fallocate -n -o 2M -l 1M @/fa
fallocate -p -o 4096 -l 10000 @/fa
cp source/large @/cut
fallocate -z -o 5000 -l 20000 @/cut
fallocate -p -o 100000 -l 1 @/cut
fallocate -c -o 8192 -l 4096 @/cut
fallocate -i -o 16384 -l 8192 @/cut
! fallocate -c -o 1 -l 4096 @/cut
! fallocate -p -l 4096 @/absent
chattr +dA @/t
chattr =i @/plain-program
! rm @/plain-program
! chmod 600 @/plain-program
! chattr +i @/missing
chattr -i @/plain-program
chattr -R +d @/kept2/dir/block @/p
rm @/a/now @/plain-program
! rm @/a
! rm @/missing
rm -f @/missing @/missing/x
rm -d @/kept/dir/empty
! rm -d @/kept
! rm -r @/a/.
! rm @/t/
rm -r @/merged/dir @/kept/again
rm -rf @/tree @/missing
rmdir @/set-group/inherits
! rmdir @/a
! rmdir @/t
";

/// Creates a tree with one file of each kind, with old times.
pub(crate) fn fill(root: &Path, as_root: bool) {
    fs::create_dir_all(root.join("dir/empty")).unwrap();
    fs::write(root.join("small"), "small\n").unwrap();
    fs::write(root.join("nothing"), "").unwrap();
    fs::write(root.join("large"), pattern(9 << 20 | 77, 1)).unwrap();
    fs::write(root.join("dir/block"), pattern(4096, 2)).unwrap();
    fs::write(root.join("program"), pattern(5000, 3)).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"raw \xff")), "raw").unwrap();
    fs::hard_link(root.join("small"), root.join("again")).unwrap();
    symlink("small", root.join("link")).unwrap();
    symlink("l".repeat(200), root.join("dir/dangling")).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    sparse.write_all_at(&pattern(4096, 4), 1 << 20).unwrap();
    sparse.write_all_at(&pattern(8192, 5), 5 << 20).unwrap();
    for (name, mode) in [("program", 0o4751), ("dir/empty", 0o1555), ("dir", 0o2770)] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let acl: Vec<u8> = [(1_u16, 7_u16, !0), (2, 4, 1000), (4, 5, !0), (16, 7, !0), (32, 4, !0_u32)]
        .iter()
        .flat_map(|(tag, rights, id)| {
            [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
        })
        .collect();
    let acl = [&2_u32.to_le_bytes()[..], &acl].concat();
    let set = |name: &str, attribute: &str, value: &[u8]| {
        rustix::fs::setxattr(root.join(name), attribute, value, XattrFlags::empty())
    };
    set("dir/block", "system.posix_acl_access", &acl).unwrap();
    set("small", "user.colour", b"gr\xfcn").unwrap();
    set("dir", "user.long", &pattern(300, 6)).unwrap();
    if as_root {
        let node = rustix::fs::FileType::CharacterDevice;
        let mode = rustix::fs::Mode::from_raw_mode(0o640);
        let device = rustix::fs::makedev(300, 70_000);
        rustix::fs::mknodat(CWD, root.join("node"), node, mode, device).unwrap();
        std::os::unix::fs::chown(root.join("dir/block"), Some(1234), Some(70_000)).unwrap();
        std::os::unix::fs::lchown(root.join("link"), Some(12), Some(13)).unwrap();
        set("large", "trusted.t", b"t").unwrap();
        let may_open_raw_sockets = [&[1, 0, 0, 2, 0, 32][..], &[0; 14]].concat();
        set("program", "security.capability", &may_open_raw_sockets).unwrap();
    }
    rustix::fs::mknodat(
        CWD,
        root.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let touch = Command::new("find")
        .arg(root)
        .args(["-depth", "-exec", "touch", "-h", "-d", "2001-09-09T01:46:40.123456789Z", "{}", "+"])
        .status();
    assert!(touch.unwrap().success());
}

pub(crate) fn fsck(image: &Path) {
    let out = tool("e2fsck").arg("-fn").arg(image).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stdout));
}

fn seconds(at: SystemTime) -> i64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64
}

#[test]
fn volumes_change_as_mounted_ones_do_by_the_namesakes() {
    require!([Need::Root, Need::Tool("setfattr"), Need::Tool("fallocate")]);
    let bench = Bench::empty();
    fill(&bench.source(), true);
    let options = ["-t", "ext4", "-b", "4096", "-I", "256"];
    let (twin, own) = (Image::mke2fs("256M", &options), Image::mke2fs("256M", &options));
    let begun = seconds(SystemTime::now() - Duration::from_secs(5));
    let mount = twin.mount("rw");
    for step in STEPS.lines().map(str::trim).filter(|step| !step.is_empty()) {
        let (fails, step) = step.strip_prefix("! ").map_or((false, step), |step| (true, step));
        let words = |at: &Path| -> Vec<String> {
            let at = at.display().to_string();
            step.split(' ')
                .map(|word| word.replacen('@', &at, usize::from(word.starts_with('@'))))
                .collect()
        };
        let theirs = words(mount.dir());
        let theirs =
            tool(&theirs[0]).args(&theirs[1..]).current_dir(bench.dir.path()).output().unwrap();
        assert_eq!(theirs.status.success(), !fails, "theirs: {step}: {}", text(&theirs.stderr));
        let ours = bench.run(words(Path::new(&format!("{}:", own.path().display()))));
        let errors = text(&ours.stderr);
        assert_eq!(ours.status.success(), !fails, "{step}: {errors}");
        assert_eq!(errors.is_empty(), !fails, "{step}: {errors}");
    }
    fsck(&own.path());
    let expected = view(mount.dir(), begun);
    let theirs = space(mount.dir(), &expected);
    let mount = own.mount("ro");
    compare(&expected, &view(mount.dir(), begun));
    for (path, blocks) in space(mount.dir(), &expected) {
        // An extent tree of ironmap may have one more block than the kernel's tree, because ironmap has split extents.
        assert!(blocks.abs_diff(theirs[&path]) <= 8, "{}: {blocks}", path.display());
    }
}

/// A tree keeps all attributes when it is copied into a volume and out of it again. The test does not need root.
#[test]
fn a_tree_goes_in_and_comes_out_as_it_was() {
    let bench = Bench::empty();
    let as_root = rustix::process::geteuid().is_root();
    fill(&bench.source(), as_root);
    let begun = seconds(SystemTime::now());
    for options in ["-b 4096", "-b 1024 -O ^extents,^64bit", "-b 4096 -I 512 -O inline_data"] {
        let mut mke2fs = tool("mke2fs");
        mke2fs.args(["-qF", "-t", "ext4"]).args(options.split(' ')).arg(bench.image()).arg("64M");
        crate::support::succeed(&mut mke2fs);
        bench.succeed(["cp", "-a", "source/.", &bench.target("/")]);
        fsck(&bench.image());
        bench.succeed(["cp", "-r", &bench.target("/"), "copy"]);
        fs::remove_dir(bench.path("copy/lost+found")).unwrap();
        let time = fs::metadata(bench.source()).unwrap().modified().unwrap();
        fs::File::open(bench.path("copy")).unwrap().set_modified(time).unwrap();
        compare(&view(&bench.source(), begun), &view(&bench.path("copy"), begun));
        fs::remove_dir_all(bench.path("copy")).unwrap();
    }
}

/// A volume that mkfs fills from a tree contains this tree. A second mkfs makes the same bytes.
#[test]
fn a_volume_is_made_of_a_tree() {
    let bench = Bench::empty();
    fill(&bench.source(), rustix::process::geteuid().is_root());
    let make = |image: &str| {
        let uuid = "6f1c5a0e-4f0b-4b0e-9a53-1d2f6a7b8c9d";
        let options = ["--time", "1000000000", "--uuid", uuid, "-d", "source", image, "64M"];
        bench.succeed(["mkfs", "-q"].iter().chain(&options));
        fs::read(bench.path(image)).unwrap()
    };
    let first = make("first");
    fsck(&bench.path("first"));
    bench.succeed(["cp", "-r", "first:/", "copy"]);
    let begun = seconds(SystemTime::now());
    let (mut expected, mut found) =
        (view(&bench.source(), begun), view(&bench.path("copy"), begun));
    found.remove(Path::new("lost+found"));
    // The root of the volume also has lost+found, so the roots are not compared.
    for root in [&mut expected, &mut found] {
        root.remove(Path::new(""));
    }
    compare(&expected, &found);
    assert!(first == make("second"), "two volumes of one tree differ");
}

/// A failure gives exit code 1 and one line that names the path. The other files are still changed.
#[test]
fn failures_name_the_path_and_the_rest_goes_on() {
    let bench = Bench::new();
    let at = |path: &str| bench.target(path);
    let fails = |args: &[&str], code: i32, says: &[&str]| {
        let Output { status, stderr, .. } = bench.run(args);
        let errors = text(&stderr);
        assert_eq!(status.code(), Some(code), "{args:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{args:?}: {errors}");
        for says in says {
            assert!(errors.contains(says), "{args:?}: {errors}");
        }
    };
    fails(&["mkdir", &at("/dir"), &at("/new")], 1, &[&at("/dir: "), "EEXIST"]);
    fails(&["mkdir", &at("/")], 1, &[&at("/: "), "the directory exists already", "EEXIST"]);
    fails(&["mkdir", &at("/no/dir")], 1, &[&at("/no/dir: /no/: no such entry (ENOENT)")]);
    fails(&["touch", "-h", &at("/absent")], 1, &[&at("/absent: no such entry (ENOENT)")]);
    fails(&["chmod", "600", &at("/absent")], 1, &[&at("/absent: no such entry (ENOENT)")]);
    fails(&["mv", &at("/absent"), &at("/x")], 1, &[&at("/absent: no such entry (ENOENT)")]);
    fails(&["rmdir", &at("/dir")], 1, &[&at("/dir: "), "ENOTEMPTY"]);
    fails(&["rm", &at("/")], 1, &[&at("/: "), "cannot be removed"]);
    fails(&["rm", &at("/missing"), &at("/nothing")], 1, &[&at("/missing: "), "ENOENT"]);
    fails(&["rm", &at("/dir")], 1, &[&at("/dir: "), "EISDIR"]);
    fails(&["mv", &at("/dir"), &at("/dir/empty")], 1, &[&at("/dir/empty/dir: "), "EINVAL"]);
    fails(&["mv", &at("/small"), "other:/small"], 3, &["other: "]);
    fails(&["mv", &at("/small")], 2, &["destination"]);
    fails(&["ln", &at("/dir"), &at("/hard")], 1, &[&at("/hard: "), "EPERM"]);
    fails(&["chmod", "9", &at("/small")], 2, &["invalid mode: '9'"]);
    fails(&["chown", "no such", &at("/small")], 2, &["invalid user: 'no such'"]);
    fails(&["setfattr", "-n", "nothing.x", &at("/small")], 1, &[&at("/small: "), "EOPNOTSUPP"]);
    fails(&["truncate", &at("/small")], 2, &["--size"]);
    fails(&["fallocate", "-l", "0", &at("/small")], 2, &["length"]);
    fails(&["cp", "small", "copy"], 2, &["VOLUME:/PATH"]);
    fails(&["cp", &at("/small"), &at("/dangling")], 1, &[&at("/dangling: "), "ENOENT"]);
    fails(&["sync", "missing"], 3, &["missing: No such file"]);
    bench.debugfs("set_inode_field /small flags 0x80010");
    fails(&["chmod", "600", &at("/small")], 1, &[&at("/small: "), "EPERM"]);
    fails(&["rm", "-f", &at("/small")], 1, &[&at("/small: "), "EPERM"]);
    bench.succeed(["stat", &at("/new")]);
    assert_eq!(bench.run(["stat", &at("/nothing")]).status.code(), Some(1));
    fsck(&bench.image());
}

#[test]
fn a_full_volume_is_an_error_and_stays_whole() {
    let bench = Bench::empty();
    fs::create_dir(bench.source()).unwrap();
    for number in 0..40 {
        fs::write(bench.source().join(number.to_string()), pattern(1 << 20, number)).unwrap();
    }
    crate::support::succeed(
        tool("mke2fs").args(["-qF", "-t", "ext4"]).arg(bench.image()).arg("24M"),
    );
    let output = bench.run(["cp", "-r", "source", &bench.target("/")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).lines().all(|line| line.contains("ENOSPC")));
    fsck(&bench.image());
    // A failed copy leaves no partial file.
    let listed = bench.json(&["ls", "--json", &bench.target("/source")]);
    for file in listed.as_array().unwrap() {
        assert_eq!(file["size"], 1 << 20, "{file}");
    }
    bench.succeed(["rm", "-r", &bench.target("/source")]);
    fsck(&bench.image());
}

/// If the space runs out during an allocation, the size of the file includes the allocated part. The kernel does the same. A copy or a
/// truncation therefore includes this part.
#[test]
fn the_size_goes_with_the_space_that_a_range_got() {
    require!([Need::Root, Need::Tool("fallocate")]);
    for (options, how) in [("-b 4096", ""), ("-b 1024", ""), ("-b 4096", "-z"), ("-b 4096", "-n")] {
        let mut mke2fs = vec!["-t", "ext4"];
        mke2fs.extend(options.split(' '));
        let (twin, own) = (Image::mke2fs("24M", &mke2fs), Image::mke2fs("24M", &mke2fs));
        let args = |at: &str| -> Vec<String> {
            let args = format!("fallocate {how} -o 5000 -l 64M {at}/file");
            args.split_whitespace().map(str::to_owned).collect()
        };
        let bench = Bench::empty();
        let mount = twin.mount("rw");
        fs::write(mount.dir().join("file"), "").unwrap();
        let theirs = args(mount.dir().to_str().unwrap());
        let theirs = tool(&theirs[0]).args(&theirs[1..]).output().unwrap();
        assert!(text(&theirs.stderr).contains("No space left"), "{}", text(&theirs.stderr));
        let at = format!("{}:", own.path().display());
        bench.succeed(["touch", &format!("{at}/file")]);
        let ours = bench.run(args(&at));
        assert_eq!(ours.status.code(), Some(1), "{options} {how}");
        assert!(text(&ours.stderr).contains("ENOSPC"), "{}", text(&ours.stderr));
        fsck(&own.path());
        // The two volumes may differ in the number of blocks that can be allocated.
        let check = |dir: &Path| {
            let file = fs::metadata(dir.join("file")).unwrap();
            let held = file.blocks() * 512;
            assert!(held > 10 << 20, "{options} {how}: {held} bytes");
            let size = if how == "-n" { 0 } else { held };
            assert!(file.size().abs_diff(size) < 64 << 10, "{options} {how}: {}", file.size());
        };
        check(mount.dir());
        check(own.mount("ro").dir());
    }
}

/// Ctrl-C ends a copy before its next file, and closes the volume. The signal arrives while the program waits for the reader of its pipe.
#[test]
fn an_interrupted_copy_leaves_whole_files_on_a_clean_volume() {
    let bench = Bench::empty();
    fs::create_dir(bench.source()).unwrap();
    let count = 4000;
    for number in 0..count {
        fs::write(bench.source().join(format!("{number:0200}")), pattern(5000, number)).unwrap();
    }
    crate::support::succeed(
        tool("mke2fs").args(["-qF", "-t", "ext4"]).arg(bench.image()).arg("128M"),
    );
    let mut command = bench.hearing_command();
    command.args(["cp", "-rv", "source", &bench.target("/")]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = [0; 100];
    child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    rustix::process::kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(text(&output.stderr), "ironmap: interrupted\n");
    assert_eq!(bench.json(&["info", "--json", bench.image().to_str().unwrap()])["clean"], true);
    fsck(&bench.image());
    let listed = bench.json(&["ls", "--json", &bench.target("/source")]);
    let listed = listed.as_array().unwrap();
    assert!(listed.len() < count as usize);
    for file in listed {
        assert_eq!(file["size"], 5000, "{file}");
    }
}

/// The result of `mv --exchange` equals the result of renameat2 on a mounted copy of the volume. Most versions of the host's mv do not
/// support the option.
#[test]
fn two_files_change_places() {
    require!([Need::Root]);
    let (twin, own) =
        (Image::mke2fs("16M", &["-t", "ext4"]), Image::mke2fs("16M", &["-t", "ext4"]));
    let bench = Bench::empty();
    let mount = twin.mount("rw");
    let at = |path: &str| format!("{}:{path}", own.path().display());
    fs::create_dir_all(mount.dir().join("a/below")).unwrap();
    fs::write(mount.dir().join("file"), "").unwrap();
    bench.succeed(["mkdir", "-p", &at("/a/below")]);
    bench.succeed(["touch", &at("/file")]);
    let (one, other) = (mount.dir().join("a/below"), mount.dir().join("file"));
    rustix::fs::renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
    let said = bench.succeed(["mv", "-v", "--exchange", "-T", &at("/a/below"), &at("/file")]);
    assert!(text(&said).contains("<->"));
    fsck(&own.path());
    let expected = view(mount.dir(), 0);
    let mount = own.mount("ro");
    compare(&expected, &view(mount.dir(), 0));
}

/// A program has not closed a volume. `sync` recovers the journal, and leaves the volume clean.
#[test]
fn sync_recovers_a_volume() {
    let bench = Bench::new();
    let volume = {
        let options = VolumeOptions::new().write(true);
        options.open(bench.image().to_str().unwrap()).unwrap()
    };
    let who = Credentials::default();
    volume.fs().writable().unwrap().create(ROOT, b"made", NewFile::Directory, 0o755, &who).unwrap();
    volume.fs().sync().unwrap();
    fs::copy(bench.image(), bench.path("left")).unwrap();
    volume.close().unwrap();
    assert_eq!(bench.json(&["info", "--json", "left"])["clean"], false);
    bench.succeed(["sync", "left", "left:/made"]);
    assert_eq!(bench.json(&["info", "--json", "left"])["clean"], true);
    fsck(&bench.path("left"));
    bench.succeed(["mkdir", "left:/made/below"]);
    bench.succeed(["rmdir", "-p", "left:/made/below"]);
    assert_eq!(bench.run(["stat", "left:/made"]).status.code(), Some(1));
}
