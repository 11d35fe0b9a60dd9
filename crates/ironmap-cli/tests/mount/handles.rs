//! File handles (`name_to_handle_at`, `open_by_handle_at`), as on the kernel's ext4. A handle contains the inode number and the generation
//! of a file, and is valid as long as the file exists.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::sides::{Ours, Sides, check, require_mounts, skip};
use crate::support::{Bench, pattern, succeed, text, tool};

/// A Perl script. `save PATH` prints the handle of a file in hexadecimal. `open DIR HANDLE` opens a handle. It prints the path of the file,
/// and the content of a regular file. After a failure, it prints the errno.
const HANDLES: &str = r#"
use Errno; use Config;
my ($to, $from) = $Config{archname} =~ /^x86_64/ ? (303, 304) : (264, 265);
my ($verb, $path, $hex) = @ARGV;
if ($verb eq "save") {
    my ($handle, $mount) = (pack("Ii", 128, 0) . "\0" x 128, pack("i", 0));
    syscall($to, -100, $path, $handle, $mount, 0) == 0 or die "$path: $!";
    print unpack("H*", substr($handle, 0, 8 + unpack("I", $handle)));
} else {
    opendir(my $dir, $path) or die "$path: $!";
    my $open = syscall($from, fileno($dir), pack("H*", $hex), 0);
    if ($open < 0) { print((grep { $!{$_} } "ESTALE", "EIO", "ENOENT")[0] // "$!"); exit }
    print readlink("/proc/self/fd/$open"), "\n";
    open(my $file, "<&=", $open) or die "$!";
    print <$file> if -f $file;
}
"#;

fn perl(arguments: &[&str]) -> String {
    text(&succeed(tool("perl").args(["-e", HANDLES]).args(arguments)).stdout)
}

fn save(path: &Path) -> String {
    perl(&["save", path.to_str().unwrap()])
}

fn open(dir: &Path, handle: &str) -> String {
    perl(&["open", dir.to_str().unwrap(), handle])
}

/// Opens each handle, and returns what the script prints. In this output, TOP replaces the path of the mount.
fn open_all(dir: &Path, handles: &[String; 4]) -> [String; 4] {
    handles.each_ref().map(|handle| open(dir, handle).replace(dir.to_str().unwrap(), "TOP"))
}

/// Removes the paths of regular files from the output of the script, because the kernel knows the path of a file only while the name is
/// cached.
fn without_paths(found: &[String; 4]) -> [String; 4] {
    found.each_ref().map(|found| match found.split_once('\n') {
        Some((_, content)) if !content.is_empty() => content.to_owned(),
        _ => found.clone(),
    })
}

fn can_run(name: &str) -> bool {
    let arch = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
    let can = arch && tool("perl").arg("-v").output().is_ok();
    if !can {
        skip(name, "needs perl, and numbers of system calls");
    }
    can
}

/// Makes the kernel drop unused inodes.
fn forget() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

/// Handles lead to their files even after the kernel has forgotten the inodes, and on the next mount. The handle of a removed file is
/// invalid. It does not lead to a new file with the same inode number.
#[test]
fn handles_are_those_of_the_kernels_ext4() {
    require_mounts!("handles_are_those_of_the_kernels_ext4");
    if !can_run("handles_are_those_of_the_kernels_ext4") {
        return;
    }
    let sides = Sides::new(&["-t", "ext4", "-b", "4096"], &[]);
    let mut saved = Vec::new();
    for dir in sides.dirs() {
        fs::create_dir_all(dir.join("d/e")).unwrap();
        fs::write(dir.join("d/e/file"), "content").unwrap();
        fs::write(dir.join("gone"), "gone").unwrap();
        let number = fs::metadata(dir.join("gone")).unwrap().ino();
        saved.push((["", "d/e", "d/e/file", "gone"].map(|name| save(&dir.join(name))), number));
    }
    let all = |sides: &Sides| {
        let [ours, kernels] = [0, 1].map(|side| open_all(sides.dirs()[side], &saved[side].0));
        assert_eq!(without_paths(&ours), without_paths(&kernels));
        ours
    };
    let there = |found: &[String; 4]| {
        // For a regular file, a handle leads only to the inode. Without a lookup of the name, the kernel does not know the path. Only the
        // content is compared.
        found[0] == "TOP\n" && found[1] == "TOP/d/e\n" && found[2].ends_with("content")
    };
    let found = all(&sides);
    assert!(there(&found) && found[3].ends_with("gone"), "{found:?}");
    forget();
    for (side, dir) in sides.dirs().into_iter().enumerate() {
        let found = open_all(dir, &saved[side].0);
        assert!(there(&found) && found[3].ends_with("gone"), "{found:?}");
        // The root has the inode number 1 in the FUSE protocol, but programs see the number 2, as on the kernel's ext4.
        assert_eq!(fs::metadata(dir).unwrap().ino(), 2);
    }
    // A removed file exists as long as a program has it open.
    let opened = sides.dirs().map(|dir| File::open(dir.join("gone")).unwrap());
    sides.dirs().into_iter().for_each(|dir| fs::remove_file(dir.join("gone")).unwrap());
    for (side, dir) in sides.dirs().into_iter().enumerate() {
        assert!(open(dir, &saved[side].0[3]).ends_with("gone"));
    }
    drop(opened);
    let are_stale = |when: &str, sides: &Sides| {
        for (side, dir) in sides.dirs().into_iter().enumerate() {
            assert_eq!(open(dir, &saved[side].0[3]), "ESTALE", "{when}, side {side}");
        }
    };
    are_stale("removed", &sides);
    forget();
    are_stale("forgotten", &sides);
    // New files are made until one of them reuses the inode number of the removed file.
    let ours = sides.dirs()[0];
    let reused = (0..20).any(|new| {
        let path = ours.join(format!("new{new}"));
        fs::write(&path, "another").unwrap();
        fs::metadata(&path).unwrap().ino() == saved[0].1
    });
    assert!(reused, "the number {} is not given again", saved[0].1);
    are_stale("given again", &sides);
    forget();
    are_stale("given again and forgotten", &sides);
    let sides = sides.again();
    are_stale("mounted again", &sides);
    for (side, dir) in sides.dirs().into_iter().enumerate() {
        let found = open_all(dir, &saved[side].0);
        assert!(there(&found), "mounted again, side {side}: {found:?}");
    }
    sides.end();
}

/// A handle with the number of an internal inode, or with an invalid number, does not lead to a file. The request is not recorded as an
/// error of the volume.
#[test]
fn handles_that_were_made_up_lead_nowhere() {
    require_mounts!("handles_that_were_made_up_lead_nowhere");
    if !can_run("handles_that_were_made_up_lead_nowhere") {
        return;
    }
    let bench = Bench::empty();
    let features = "orphan_file,quota,project,metadata_csum";
    let quota = ["-E", "quotatype=usrquota:grpquota:prjquota"];
    succeed(
        tool("mke2fs")
            .args(["-qF", "-t", "ext4", "-I", "256", "-O", features])
            .args(quota)
            .arg(bench.image())
            .arg("64M"),
    );
    let dir = bench.path("mounted");
    let ours = Ours::mount(&bench.image(), &dir, "rw");
    fs::write(dir.join("file"), pattern(5000, 1)).unwrap();
    let (handle, number) = (save(&dir.join("file")), fs::metadata(dir.join("file")).unwrap().ino());
    forget();
    assert!(open(&dir, &handle).contains("/file") || open(&dir, &handle).len() > 5000);
    // The handle contains a length, a type, the upper half of the inode number, its lower half, and the generation.
    let made = |number: u64, generation: &str| {
        let [upper, lower] = [(number >> 32) as u32, number as u32].map(u32::swap_bytes);
        format!("{}{upper:08x}{lower:08x}{generation}", &handle[..16])
    };
    assert_eq!(made(number, &handle[32..]), handle, "a handle is made otherwise");
    // The root has the number 1 in the FUSE protocol, so a handle with 1 is valid. On the volume, the root has the number 2. No handle
    // contains 2.
    for number in
        (2..number).chain([number + 1, 16_000, 1 << 20, u64::from(u32::MAX), 1 << 40, u64::MAX])
    {
        for generation in ["00000000", &handle[32..]] {
            let found = open(&dir, &made(number, generation));
            // One of the tested numbers may be the inode number of lost+found. Its handle is valid, because lost+found is a directory that
            // users can see.
            assert!(found == "ESTALE" || found.ends_with("/lost+found\n"), "{number}: {found}");
        }
    }
    ours.unmount();
    check(&bench.image());
    assert!(!bench.ask("show_super_stats -h").contains("FS Error count"));
}
