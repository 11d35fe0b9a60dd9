//! Tests copies of special files into a volume, of files whose attributes fakeroot reports, and with the time of a reproducible build
//! (`SOURCE_DATE_EPOCH`).

use crate::require;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use crate::common::image::Image;
use crate::common::loop_device::LoopDevice;
use crate::common::skip::Need;
use crate::support::{Bench, IRONMAP, pattern, text, tool};
use rustix::process::{Pid, Signal, kill_process};

/// The attributes of a file from debugfs and stat(1): type, permissions, content.
#[derive(Debug, PartialEq, Eq)]
struct Copy {
    kind: &'static str,
    mode: u32,
    content: Vec<u8>,
}

fn host_copy(path: &Path) -> Option<Copy> {
    let stat = fs::symlink_metadata(path).ok()?;
    let kind = match stat.file_type() {
        kind if kind.is_file() => "regular",
        kind if kind.is_symlink() => "symlink",
        kind if kind.is_fifo() => "FIFO",
        kind if kind.is_char_device() => "character",
        kind if kind.is_socket() => "socket",
        kind => panic!("{kind:?}"),
    };
    let content = if kind == "regular" { fs::read(path).unwrap() } else { Vec::new() };
    Some(Copy { kind, mode: stat.mode() & 0o7777, content })
}

fn volume_copy(bench: &Bench, name: &str) -> Option<Copy> {
    let said = bench.ask(&format!("stat {name}"));
    let word = |key: &str| said.split(key).nth(1)?.split_whitespace().next();
    let kinds = ["regular", "symlink", "FIFO", "character", "socket"];
    let kind = kinds.into_iter().find(|kind| word("Type:") == Some(*kind))?;
    let dumped = bench.path("dumped");
    let content = if kind == "regular" {
        bench.ask(&format!("dump {name} {}", dumped.display()));
        fs::read(&dumped).unwrap()
    } else {
        Vec::new()
    };
    let mode = u32::from_str_radix(word("Mode:")?, 8).unwrap();
    Some(Copy { kind, mode, content })
}

/// `@` is replaced by `cp` or `ironmap cp`, and `%` by the destination of the copy. A line that begins with `!` must fail.
const KINDS: &str = "
printf 'through a pipe' | @ /dev/stdin %
@ /dev/stdin % < file
@ <(printf substituted; exec 1>&-; :) %
head -c 3000000 large | @ -p /dev/stdin %
timeout 60 sh -c 'cat large > fifo' & @ fifo %
timeout 60 sh -c 'printf linked > fifo' & @ link %
timeout 60 sh -c 'printf kept > fifo' & @ --preserve=mode,timestamps,links fifo %
timeout 60 sh -c 'printf d > fifo' & @ -d fifo %
@ -P link %
@ -r fifo %
@ -a fifo %
@ -r link %
@ /dev/null %
@ /proc/version %
@ /proc/filesystems %
@ /proc/sys/kernel/ostype %
@ /sys/kernel/fscaps %
@ -r /sys/kernel/fscaps %
@ -a socket %
! @ socket %
! @ link-to-socket %
printf 'typed\\n\\004' | script -qec '@ /dev/stdin %' /dev/null
";

/// Without `-r` or `-a`, the content of special files is copied. With one of these options, the special file itself is copied. cp does the
/// same.
#[test]
fn special_files_are_copied_as_cp_copies_them() {
    require!([Need::Tool("bash"), Need::Tool("script"), Need::Tool("timeout")]);
    let bench = Bench::with(&["-t", "ext4", "-b", "4096"]);
    let at = |name: &str| bench.path(name);
    fs::write(at("file"), "a file").unwrap();
    fs::write(at("large"), pattern((3 << 20) + 77, 5)).unwrap();
    crate::support::succeed(tool("mkfifo").args(["-m", "640"]).arg(at("fifo")));
    std::os::unix::fs::symlink("fifo", at("link")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    std::os::unix::fs::symlink("socket", at("link-to-socket")).unwrap();
    for (number, line) in KINDS.lines().filter(|line| !line.is_empty()).enumerate() {
        let (line, fails) = match line.strip_prefix("! ") {
            Some(line) => (line, true),
            None => (line, false),
        };
        let run = |cp: &str, copy: &str| {
            let script = format!("umask 022; {}", line.replace('@', cp).replace('%', copy));
            // If a copy does not read the FIFO, the writer waits until its timeout.
            let mut bash = tool("timeout");
            bash.args(["120", "bash", "-c", &script]).current_dir(bench.dir.path());
            bash.stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::null()).output().unwrap()
        };
        let (own, theirs) = (format!("/copy-{number}"), format!("copy-{number}"));
        let cp = run("cp", &theirs);
        assert_eq!(cp.status.code(), Some(i32::from(fails)), "{line}: {}", text(&cp.stderr));
        let ours = run(&format!("{IRONMAP} cp"), &bench.target(&own));
        let said = text(&ours.stderr);
        assert_eq!(ours.status.code(), Some(i32::from(fails)), "{line}: {said}");
        assert_eq!(said.lines().count(), usize::from(fails), "{line}: {said}");
        let (expected, mut found) = (host_copy(&at(&theirs)), volume_copy(&bench, &own));
        if let Some(copy) = found.as_mut().filter(|copy| copy.kind == "symlink") {
            copy.mode = 0o777;
        }
        assert!(expected == found, "{line}: {expected:?} {found:?}");
    }
    crate::support::succeed(tool("e2fsck").arg("-fn").arg(bench.image()));
}

/// The content of a block device is copied.
#[test]
fn the_content_of_a_block_device_is_copied() {
    require!([Need::Root, Need::Tool("losetup")]);
    let bench = Bench::with(&["-t", "ext4", "-b", "4096"]);
    let content = pattern(5 << 20, 9);
    fs::write(bench.path("disk"), &content).unwrap();
    let device = LoopDevice::with(&["--read-only"], bench.path("disk"));
    let copied = bench.run(["cp", device.node(), &bench.target("/copy")]);
    assert_eq!(copied.status.code(), Some(0), "{}", text(&copied.stderr));
    let copy = volume_copy(&bench, "/copy").unwrap();
    assert!(copy.kind == "regular" && copy.content == content);
}

/// A volume stores no content for a special file. Without `-r`, a copy of the file is refused, both to the host and within volumes.
#[test]
fn special_files_of_a_volume_have_no_content() {
    let bench = Bench::new();
    for (name, node) in [("pipe", "pipe p"), ("null", "null c 1 3"), ("disk", "disk b 7 0")] {
        bench.debugfs(&format!("mknod {node}"));
        for copy in ["copy".to_owned(), bench.target("/copy")] {
            let output = bench.run(["cp", &bench.target(&format!("/{name}")), &copy]);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{name} to {copy}: {said}");
            assert!(said.lines().count() == 1 && said.contains("copy it with -r"), "{said}");
            assert!(!bench.path("copy").exists());
        }
    }
    bench.succeed(["cp", "-r", &bench.target("/pipe"), "copy"]);
    assert!(fs::metadata(bench.path("copy")).unwrap().file_type().is_fifo());
}

/// A copy from a pipe without a writer waits. It can be interrupted, and leaves no file.
#[test]
fn a_copy_that_waits_for_a_pipe_is_interrupted() {
    let bench = Bench::new();
    crate::support::succeed(tool("mkfifo").arg(bench.path("fifo")));
    let mut command = bench.hearing_command();
    command.args(["cp", "-v", "fifo", &bench.target("/copy")]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = [0; 8];
    child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    assert_eq!(&line, b"'fifo' -");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "ironmap: interrupted\n");
    assert_eq!(volume_copy(&bench, "/copy"), None);
    crate::support::succeed(tool("e2fsck").arg("-fn").arg(bench.image()));
}

/// A refused source is not read further. Otherwise, the copy of an endless source, or of a pipe without a writer, would not end.
#[test]
fn a_source_that_is_not_wanted_is_not_read_on() {
    require!([Need::Tool("bash"), Need::Tool("timeout")]);
    let bench = Bench::with(&["-t", "ext4", "-b", "4096"]);
    crate::support::succeed(tool("mkfifo").arg(bench.path("fifo")));
    bench.debugfs("mkdir place");
    bench.debugfs("mknod null c 1 3");
    bench.debugfs(&format!("write {} there", bench.path("source/small").display()));
    for (line, code, says) in [
        ("cp /dev/zero %/zeros", 1, "(ENOSPC)"),
        ("cp -n /dev/zero %/there", 0, ""),
        ("cp -n fifo %/there", 0, ""),
        ("cp -T fifo %/place", 1, "a file cannot replace a directory"),
        ("cp fifo %/nowhere/copy", 1, "nowhere"),
        ("cp source/small %/null", 1, "a regular file cannot replace a special file"),
    ] {
        let line = line.replace('%', &bench.target(""));
        let mut bash = tool("timeout");
        bash.args(["120", "bash", "-c", &format!("{IRONMAP} {line}")]);
        let output = bash.current_dir(bench.dir.path()).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{line}: {said}");
        assert!(said.contains(says) && said.lines().count() == code as usize, "{line}: {said}");
    }
    // If the output of -v fails, the file is still copied.
    let line = format!("{IRONMAP} cp -v source/small {} > /dev/full", bench.target("/heard"));
    let mut bash = tool("bash");
    let output = bash.args(["-c", &line]).current_dir(bench.dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let copy = volume_copy(&bench, "/heard").unwrap();
    assert!(copy.content == fs::read(bench.path("source/small")).unwrap());
    assert_eq!(volume_copy(&bench, "/zeros"), None, "half a file looks like a whole one");
    crate::support::succeed(tool("e2fsck").arg("-fn").arg(bench.image()));
}

/// Commands in one session of fakeroot, as in a package build.
const FAKED: &str = "
set -e
mkdir tree tree/dir
echo data > tree/file
chown 1000:1001 tree/file
chmod 4755 tree/file
setfattr -n trusted.name -v value tree/file
chown 0:5 tree/dir
mknod tree/null c 1 3
mknod tree/disk b 259 1234
chown 2:3 tree/disk
mkfifo tree/pipe
ln -s file tree/link
chown -h 12:13 tree/link
ln tree/file tree/dir/again
./ironmap mkfs -q -d tree made 16M
./ironmap mkfs -q copied 16M
./ironmap cp -a tree/. copied:/
./ironmap mkfs -q plain 16M
./ironmap cp tree/file plain:/file
./ironmap mkdir plain:/dir
./ironmap stat --json host:tree/null > null.json
./ironmap cp -r made:/ out
rmdir out/lost+found
cd out
find . ! -name . -exec stat -c '%n %f %u %g %t %T' {} + > ../out.txt
getfattr --only-values -n trusted.name file > ../out.name
";

/// Under fakeroot, a copy has the owners, modes, devices and attributes that fakeroot reports.
#[test]
fn owners_under_fakeroot_are_taken() {
    let needs = [Need::Root, Need::Tool("fakeroot"), Need::Tool("setpriv"), Need::Tool("setfattr")];
    require!(needs);
    let bench = Bench::empty();
    fs::set_permissions(bench.dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(Command::new("cp").arg(IRONMAP).arg(bench.path("ironmap")).status().unwrap().success());
    let mut session = tool("setpriv");
    session.args(["--reuid=65534", "--regid=65534", "--clear-groups", "fakeroot", "sh", "-c"]);
    let output = session.arg(FAKED).current_dir(bench.dir.path()).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    let expected = [
        ("file", 0o104_755, (1000, 1001), 0),
        ("dir", 0o040_755, (0, 5), 0),
        ("null", 0o020_644, (0, 0), rustix::fs::makedev(1, 3)),
        ("disk", 0o060_644, (2, 3), rustix::fs::makedev(259, 1234)),
        ("pipe", 0o010_644, (0, 0), 0),
        ("link", 0o120_777, (12, 13), 0),
        ("dir/again", 0o104_755, (1000, 1001), 0),
    ];
    // The kernel mounts the volumes and shows their files.
    for volume in ["made", "copied"] {
        let image = Image::none();
        fs::copy(bench.path(volume), image.path()).unwrap();
        image.check();
        let mount = image.mount("ro");
        for (name, mode, owner, device) in expected {
            let path = mount.dir().join(name);
            let stat = fs::symlink_metadata(&path).unwrap();
            let found = (stat.mode(), (stat.uid(), stat.gid()), stat.rdev());
            assert_eq!(found, (mode, owner, device), "{volume}: {name}");
        }
        let name = crate::support::xattr(&mount.dir().join("file"), "trusted.name");
        assert_eq!(name.as_deref(), Some(&b"value"[..]), "{volume}");
    }
    // New files belong to the user, who is root in fakeroot.
    for name in ["file", "dir"] {
        let stat = bench.json(&["stat", "--json", &format!("plain:/{name}")]);
        assert_eq!((&stat["uid"], &stat["gid"]), (&0.into(), &0.into()), "{name}");
    }
    let null: serde_json::Value =
        serde_json::from_slice(&fs::read(bench.path("null.json")).unwrap()).unwrap();
    assert_eq!((&null["type"], &null["uid"]), (&"char_device".into(), &0.into()));
    // Under fakeroot, a file that is copied out of a volume has the same attributes as in the volume.
    let out = fs::read_to_string(bench.path("out.txt")).unwrap();
    for (name, mode, (user, group), device) in expected {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let line = format!("./{name} {mode:x} {user} {group} {major:x} {minor:x}\n");
        assert!(out.contains(&line), "{line}{out}");
    }
    assert_eq!(fs::read(bench.path("out.name")).unwrap(), b"value");
}

/// Commands that change a volume. `@` is replaced by the volume.
const VERBS: &str = "
cp -a tree/. @/
cp -r tree @/plain
cp -p tree/small @/kept
cp tree/small tree/large @/plain
cp -a @/plain @/twice
mkdir -p @/new/dir
mkdir @/gone
rmdir @/gone
rm -r @/twice/many
mv @/kept @/new/moved
ln @/small @/new/hard
ln -s nowhere @/new/soft
touch @/touched @/small
touch -d 2001-02-03T04:05:06Z @/dated
truncate -s 12345 @/large
fallocate -l 1M @/new/allocated
chmod 640 @/small
chown 5:6 @/small
chattr +d @/small
setfattr -n user.name -v value @/small
rm @/sparse
sync @
";

/// With `SOURCE_DATE_EPOCH`, the same commands on the same tree always give the same bytes. No timestamp is later than `SOURCE_DATE_EPOCH`.
#[test]
fn a_reproducible_build_makes_the_same_bytes() {
    const DATE: &str = "1700000000";
    let seconds = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    for options in ["", "-b 1K -O ^has_journal", "-b 4K -O quota,project,inline_data"] {
        let make = || {
            let bench = Bench::empty();
            let tree = bench.path("tree");
            fs::create_dir_all(tree.join("many")).unwrap();
            for number in 0..300 {
                fs::write(tree.join(format!("many/{number:080}")), number.to_string()).unwrap();
            }
            fs::write(tree.join("small"), "small").unwrap();
            fs::hard_link(tree.join("small"), tree.join("again")).unwrap();
            fs::write(tree.join("large"), pattern(6 << 20 | 99, 4)).unwrap();
            let sparse = fs::File::create(tree.join("sparse")).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&sparse, b"data", 3 << 20).unwrap();
            let run = |words: &str| {
                let words = words.replace("@/", "image:/").replace('@', "image");
                let mut command = bench.command();
                command.env("SOURCE_DATE_EPOCH", DATE).args(words.split_whitespace());
                crate::support::succeed(&mut command);
            };
            run(&format!("mkfs -q {options} image 48M"));
            VERBS.lines().filter(|line| !line.is_empty()).for_each(run);
            run("mkfs -q -d tree filled 32M");
            crate::support::succeed(tool("e2fsck").arg("-fn").arg(bench.image()));
            bench
        };
        let first = make();
        let begun = seconds();
        while seconds() == begun {
            std::thread::yield_now();
        }
        let second = make();
        for image in ["image", "filled"] {
            let read = |bench: &Bench| fs::read(bench.path(image)).unwrap();
            let (first, second) = (read(&first), read(&second));
            let differ: Vec<_> = (0..first.len()).filter(|at| first[*at] != second[*at]).collect();
            assert!(
                differ.is_empty(),
                "{options}: {image}: {} bytes from {:x}",
                differ.len(),
                differ[0]
            );
        }
        let files = first.json(&["ls", "-R", "--json", &first.target("/")]);
        for file in files.as_array().unwrap() {
            for time in ["accessed", "modified", "changed", "created"] {
                let at = file[time].as_str().unwrap();
                assert!(at <= "2023-11-14T22:13:20.000000000Z", "{options}: {time} of {file}");
            }
        }
    }
}

/// An invalid time ends every command that would use the time. Nothing is changed.
#[test]
fn a_date_that_is_none_is_refused() {
    let bench = Bench::new();
    let before = fs::read(bench.image()).unwrap();
    for args in [
        &["mkfs", "-q", "new", "16M"][..],
        &["cp", "source/small", &bench.target("/copy")],
        &["touch", &bench.target("/small")],
        &["rm", &bench.target("/small")],
    ] {
        // The last date in the list is one second after the latest timestamp of an inode.
        for date in ["yesterday", "-1", "15032385536"] {
            let output = bench.command().env("SOURCE_DATE_EPOCH", date).args(args).output();
            let output = output.unwrap();
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
            let expected = format!("SOURCE_DATE_EPOCH={date} is not a number of seconds");
            assert!(said.contains(&expected), "{args:?}: {said}");
        }
    }
    assert!(!bench.path("new").exists() && fs::read(bench.image()).unwrap() == before);
}
