//! Tests `ironmap undelete` on files that the kernel, debugfs or ironmap has deleted. A file is recovered byte for byte if all of its data
//! exist. The results are compared with `debugfs lsdel` and `debugfs dump`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use ironmap::VolumeOptions;
use serde_json::Value;

use crate::common::image::Image;
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, pattern, succeed, text, tool};

/// The deleted files of an image, by inode. If several deleted files had the same inode, only one of them is returned.
fn deleted(bench: &Bench, image: &Path) -> BTreeMap<u64, Value> {
    let by_inode = |file: Value| (file["inode"].as_u64().unwrap(), file);
    deleted_files(bench, image).into_iter().map(by_inode).collect()
}

/// Returns the deleted files of an image. Asserts that the command does not change the image.
fn deleted_files(bench: &Bench, image: &Path) -> Vec<Value> {
    let before = fs::read(image).unwrap();
    let found = bench.json(&["undelete", "--json", image.to_str().unwrap()]);
    assert!(before == fs::read(image).unwrap(), "the volume was changed");
    found.as_array().unwrap().clone()
}

/// The deleted files that `debugfs lsdel` lists, by inode number. For each file: its size, the number of its blocks that are still free,
/// and the number of all its blocks.
fn lsdel(image: &Path) -> BTreeMap<u64, (u64, u64, u64)> {
    let said = text(&succeed(tool("debugfs").args(["-R", "lsdel"]).arg(image)).stdout);
    let line = |line: &str| {
        let line = line.replace('/', " ");
        let words: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [inode, _, _, size, free, blocks] = words[..] else { return None };
        Some((inode, (size, free, blocks)))
    };
    said.lines().filter_map(line).collect()
}

/// ext2 and debugfs keep the block maps of deleted files in the inodes. They also keep the names in the directories.
#[test]
fn files_that_debugfs_deleted_are_found_in_the_inodes() {
    for options in [
        &["-t", "ext2", "-b", "1024"][..],
        &["-t", "ext2", "-b", "4096", "-I", "128"],
        &["-t", "ext4", "-b", "1024", "-O", "^has_journal"],
    ] {
        let bench = Bench::with(options);
        let contents = ["dir/.hidden", "dir/large", "sparse"]
            .map(|name| (name, fs::read(bench.source().join(name)).unwrap()));
        for (name, _) in &contents {
            bench.debugfs(&format!("rm {name}"));
        }
        let found = deleted(&bench, &bench.image());
        let listed = lsdel(&bench.image());
        assert_eq!(found.keys().collect::<Vec<_>>(), listed.keys().collect::<Vec<_>>());
        for (inode, (size, free, blocks)) in listed {
            let file = &found[&inode];
            assert_eq!(file["size"], size, "{file}");
            assert_eq!((file["free_blocks"] == file["blocks"]), free == blocks, "{file}");
            assert_eq!(file["whole"], true, "{file}");
            assert_eq!(file["deleted"].as_str().unwrap().len(), 30, "{file}");
            let dump = bench.path("dump");
            bench.ask(&format!("dump <{inode}> {}", dump.display()));
            let out = format!("out-{inode}");
            bench.succeed(["undelete", "image", &format!("<{inode}>"), "-o", &out]);
            let path = file["path"].as_str().unwrap();
            let copied = fs::read(bench.path(&out).join(&path[1..])).unwrap();
            assert!(copied == fs::read(&dump).unwrap(), "{file}");
        }
        bench.succeed(["undelete", "image", "-o", "out"]);
        for (name, content) in &contents {
            assert!(fs::read(bench.path("out").join(name)).unwrap() == *content, "{name}");
        }
        let sparse = fs::metadata(bench.path("out/sparse")).unwrap();
        assert!(sparse.blocks() * 512 < sparse.size(), "holes are filled");
    }
}

/// If the name of a deleted directory is lost, the names below it are kept: the path begins with the inode number of the directory.
#[test]
fn names_below_a_directory_without_a_name_are_kept() {
    let bench = Bench::with(&["-t", "ext2", "-b", "1024"]);
    let inode = |path: &str| bench.json(&["stat", "--json", &bench.target(path)])["inode"].clone();
    let (dir, large) = (inode("/dir"), fs::read(bench.source().join("dir/large")).unwrap());
    for request in ["rm dir/large", "rm dir/.hidden", "rm dir/again", "rm dir/link"] {
        bench.debugfs(request);
    }
    bench.debugfs("rmdir dir/empty");
    bench.debugfs("rmdir dir");
    let block: u64 = bench.ask("blocks /").split_whitespace().next().unwrap().parse().unwrap();
    let image = File::options().read(true).write(true).open(bench.image()).unwrap();
    let mut root = vec![0; 1024];
    image.read_exact_at(&mut root, block * 1024).unwrap();
    let at = root.windows(3).position(|bytes| bytes == b"dir").expect("the name in a gap");
    image.write_all_at(&[0; 3], block * 1024 + at as u64).unwrap();
    let path = format!("<{dir}>/large");
    let found = deleted_files(&bench, &bench.image());
    let file =
        found.iter().find(|file| file["path"] == path).unwrap_or_else(|| panic!("{found:?}"));
    assert_eq!(file["whole"], true, "{file}");
    bench.succeed(["undelete", "image", "large", "-o", "out"]);
    assert!(fs::read(bench.path(&format!("out/inode-{dir}/large"))).unwrap() == large);
}

/// Fills a directory, and returns the content of each file. The file `scattered` has a separate extent for each block.
fn fill(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::create_dir_all(dir.join("tree/below")).unwrap();
    let mut files = BTreeMap::new();
    for (name, len) in
        [("one", 1), ("tree/two", 70_000), ("tree/below/three", 3 << 20), ("tree/below/four", 5)]
    {
        let content = pattern(len, len as u64);
        fs::write(dir.join(name), &content).unwrap();
        files.insert(name.to_owned(), content);
    }
    let scattered = File::create(dir.join("scattered")).unwrap();
    for at in 0..800 {
        scattered.write_all_at(&pattern(4096, at), at * 8192).unwrap();
    }
    files.insert("scattered".to_owned(), fs::read(dir.join("scattered")).unwrap());
    files
}

fn check(image: &Path) {
    succeed(tool("e2fsck").arg("-fn").arg(image));
}

/// The kernel clears the block maps of deleted files. The journal still contains the maps and the names, even for complete trees.
#[test]
fn files_that_the_kernel_deleted_are_found_in_the_journal() {
    require!([Need::Root]);
    for options in [
        &["-t", "ext4", "-b", "4096"][..],
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"],
        &["-t", "ext3", "-b", "1024"],
        &["-t", "ext3", "-b", "4096", "-I", "128"],
    ] {
        let bench = Bench::empty();
        let image = Image::mke2fs("64M", options);
        let mount = image.mount("noatime,commit=600");
        fs::write(mount.dir().join("stays"), "stays").unwrap();
        let files = fill(mount.dir());
        rustix::fs::syncfs(File::open(mount.dir()).unwrap()).unwrap();
        for name in ["one", "scattered"] {
            fs::remove_file(mount.dir().join(name)).unwrap();
        }
        fs::remove_dir_all(mount.dir().join("tree")).unwrap();
        drop(mount);
        let found = deleted(&bench, &image.path());
        let paths: BTreeSet<_> =
            found.values().map(|file| file["path"].as_str().unwrap_or_default()).collect();
        let expected: Vec<_> = files.keys().map(|name| format!("/{name}")).collect();
        assert_eq!(paths, expected.iter().map(String::as_str).collect(), "{options:?}");
        for file in found.values() {
            assert_eq!(file["whole"], true, "{options:?}: {file}");
        }
        let volume = image.path().to_str().unwrap().to_owned();
        bench.succeed(["undelete", &volume, "-o", "out"]);
        for (name, content) in &files {
            let copied = fs::read(bench.path("out").join(name)).unwrap();
            assert!(copied == *content, "{options:?}: {name}");
        }
        let only = bench.succeed(["undelete", &volume, "tw?"]);
        assert!(text(&only).contains("/tree/two (whole)"), "{}", text(&only));
        assert_eq!(text(&only).lines().count(), 1);
        check(&image.path());
        // Another file uses all free blocks.
        let mount = image.mount("noatime");
        mount.fill("full");
        drop(mount);
        // The last free blocks may be too few for a write. Some deleted files then still have all of their blocks. These files are whole.
        let found = deleted(&bench, &image.path());
        let reused = |file: &&Value| file["free_blocks"].as_u64() < file["blocks"].as_u64();
        let count = found.values().filter(reused).count();
        assert!(count > 1, "{options:?}: {found:?}");
        assert!(found.values().filter(reused).all(|file| file["whole"] == false), "{found:?}");
        let refused = bench.run(["undelete", &volume, "-o", "again"]);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert_eq!(said.lines().count(), count, "{said}");
        assert!(said.lines().all(|line| line.contains("--partial")), "{said}");
        for (name, content) in &files {
            let copied = fs::read(bench.path("again").join(name));
            assert!(
                copied.is_ok_and(|copied| copied == *content)
                    || !found.values().any(|file| {
                        file["whole"] == true && file["path"] == format!("/{name}")
                    })
            );
        }
        check(&image.path());
    }
}

/// Files that ironmap removes are found too. `/dir/large` is not found: mke2fs made this file, so the journal does not contain its state
/// before the removal.
#[test]
fn files_that_ironmap_deleted_are_found_in_the_journal() {
    let bench = Bench::with(&["-t", "ext4", "-b", "1024"]);
    let files = fill(&bench.path("new"));
    let volume = VolumeOptions::new().write(true).open(bench.image()).unwrap();
    volume.create_dir_all("/new/tree/below").unwrap();
    for (name, content) in &files {
        volume.write(Path::new("/new").join(name), content).unwrap();
    }
    volume.sync().unwrap();
    let number = volume.metadata("/new/one").unwrap().inode.0;
    volume.remove_dir_all("/new").unwrap();
    volume.remove_file("/dir/large").unwrap();
    volume.close().unwrap();
    drop(volume);
    let found = deleted(&bench, &bench.image());
    assert_eq!(found.len(), files.len(), "{found:?}");
    bench.succeed(["undelete", "image", "-o", "out"]);
    for (name, content) in &files {
        assert!(fs::read(bench.path("out/new").join(name)).unwrap() == *content, "{name}");
    }
    assert_eq!(found[&number]["path"], "/new/one");
    check(&bench.image());
}

/// No file is overwritten. On a volume without deleted files, nothing is found.
#[test]
fn files_that_are_there_stay() {
    let bench = Bench::with(&["-t", "ext2", "-b", "1024"]);
    assert_eq!(deleted(&bench, &bench.image()).len(), 0);
    bench.debugfs("rm dir/large");
    fs::create_dir_all(bench.path("out/dir")).unwrap();
    fs::write(bench.path("out/dir/large"), "mine").unwrap();
    let said = text(&bench.succeed(["undelete", "image", "large", "-o", "out"]));
    assert!(said.contains("out/dir/large.inode-"), "{said}");
    assert_eq!(fs::read(bench.path("out/dir/large")).unwrap(), b"mine");
    let again = bench.run(["undelete", "image", "-o", "out"]);
    assert_eq!(again.status.code(), Some(1), "{}", text(&again.stderr));
    let none = bench.run(["undelete", "image", "nothing*"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stderr).contains("no deleted file matches"));
}

/// The contents of all files below a directory, without following links.
fn contents(dir: &Path) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(dir).unwrap() {
        let (kind, path) = entry.map(|entry| (entry.file_type().unwrap(), entry.path())).unwrap();
        match (kind.is_dir(), kind.is_file()) {
            (true, _) => all.extend(contents(&path)),
            (_, true) => drop(all.insert(fs::read_to_string(&path).unwrap())),
            _ => {}
        }
    }
    all
}

/// A deleted file and a deleted directory with the same name are both copied. In the target directory, an existing file is not overwritten,
/// and a symbolic link is not followed. An error names the deleted file. The other files are still copied.
#[test]
fn a_name_that_is_taken_leads_nowhere_and_stops_nothing() {
    let bench = Bench::with(&["-t", "ext4", "-b", "1024"]);
    let files = [("/a/b", "in the directory"), ("/a/c", "beside it"), ("/z", "alone")];
    let volume = VolumeOptions::new().write(true).open(bench.image()).unwrap();
    volume.create_dir_all("/a").unwrap();
    for (name, content) in files.into_iter().chain([("/later", "the file")]) {
        volume.write(name, content).unwrap();
    }
    volume.sync().unwrap();
    volume.remove_dir_all("/a").unwrap();
    volume.remove_file("/z").unwrap();
    volume.sync().unwrap();
    volume.rename("/later", "/a").unwrap();
    volume.sync().unwrap();
    volume.remove_file("/a").unwrap();
    volume.close().unwrap();
    drop(volume);
    let found = deleted_files(&bench, &bench.image());
    let number = |path: &str| {
        let file = found.iter().find(|file| file["path"] == path);
        file.unwrap_or_else(|| panic!("no {path}: {found:?}"))["inode"].as_u64().unwrap()
    };
    let expected: BTreeSet<_> =
        files.iter().map(|(_, content)| *content).chain(["the file"]).collect();
    let outside = bench.path("outside");
    fs::create_dir(&outside).unwrap();
    type Prepare<'a> = (&'a str, &'a dyn Fn(&Path));
    let prepared: [Prepare<'_>; 4] = [
        ("nothing", &|_| {}),
        ("file", &|out| fs::write(out.join("a"), "the file").unwrap()),
        ("link", &|out| symlink(&outside, out.join("a")).unwrap()),
        ("dangling", &|out| {
            symlink(outside.join("new"), out.join("a")).unwrap();
            symlink(outside.join("new"), out.join("z")).unwrap();
        }),
    ];
    for (name, prepare) in prepared {
        let out = bench.path(&format!("out-{name}"));
        fs::create_dir(&out).unwrap();
        prepare(&out);
        bench.succeed(["undelete", "image", "-o", out.to_str().unwrap()]);
        let copied = contents(&out);
        assert_eq!(copied.iter().map(String::as_str).collect::<BTreeSet<_>>(), expected, "{name}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{name}: a link was followed");
    }
    let out = bench.path("out-taken");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("a"), "mine").unwrap();
    fs::write(out.join(format!("a.inode-{}", number("/a/b"))), "mine").unwrap();
    let said = bench.run(["undelete", "image", "-o", out.to_str().unwrap()]);
    let errors = text(&said.stderr);
    assert_eq!(said.status.code(), Some(1), "{errors}");
    assert!(errors.contains("image:/a/b: ") && errors.contains("Not a directory"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    let copied = contents(&out);
    for content in ["mine", "beside it", "alone", "the file"] {
        assert!(copied.contains(content), "no {content:?}: {copied:?}");
    }
}

/// If several deleted files had the same block, the block belongs to the file that was deleted last.
#[test]
fn a_block_of_two_deleted_files_is_the_younger_ones() {
    require!([Need::Root]);
    let bench = Bench::empty();
    let image = Image::mke2fs("16M", &["-t", "ext4", "-b", "1024", "-J", "size=4"]);
    let mount = image.mount("noatime,commit=600");
    // Each file is larger than half of the free space. The first file is deleted, and the second file reuses some of its blocks.
    let sync = || rustix::fs::syncfs(File::open(mount.dir()).unwrap()).unwrap();
    for (name, seed) in [("old", 1), ("young", 2)] {
        fs::write(mount.dir().join(name), pattern(7 << 20, seed)).unwrap();
        sync();
        fs::remove_file(mount.dir().join(name)).unwrap();
        sync();
    }
    drop(mount);
    // The kernel may give both files the same inode.
    let found = deleted_files(&bench, &image.path());
    let whole = |name: &str| {
        let mut files = found.iter().filter(|file| file["path"] == name);
        files.next().map(|file| file["whole"] == true)
    };
    assert_eq!(whole("/young"), Some(true), "{found:?}");
    assert_ne!(whole("/old"), Some(true), "{found:?}");
}

/// Three files with the same inode number are deleted one after the other. Each is listed with its own name, even if two of the names are
/// equal.
#[test]
fn each_deleted_file_has_the_name_of_its_time() {
    require!([Need::Root]);
    let bench = Bench::empty();
    let image = Image::mke2fs("32M", &["-t", "ext4"]);
    let mount = image.mount("noatime");
    let sync = || rustix::fs::syncfs(File::open(mount.dir()).unwrap()).unwrap();
    let contents = [("alpha", "secretA"), ("beta", "contentB"), ("beta", "contentC")];
    for (name, content) in contents {
        fs::write(mount.dir().join(name), content).unwrap();
        sync();
        fs::remove_file(mount.dir().join(name)).unwrap();
        sync();
    }
    drop(mount);
    bench.succeed(["undelete", image.path().to_str().unwrap(), "-o", "out"]);
    let mut found = BTreeMap::new();
    for file in fs::read_dir(bench.path("out")).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        let name = name.split('.').next().unwrap().to_owned();
        found.insert(fs::read_to_string(file.path()).unwrap(), name);
    }
    let expected = contents.map(|(name, content)| (content.to_owned(), name.to_owned()));
    assert_eq!(found, BTreeMap::from(expected));
}

/// A damaged inode has a size above the length of its inline data. The rest of the copy is a hole.
#[test]
fn a_damaged_size_of_inline_data_does_not_keep_a_copy() {
    const SIZE: u64 = 1 << 42;
    let bench = Bench::with(&["-t", "ext4", "-O", "inline_data,^metadata_csum"]);
    bench.debugfs(&format!("sif dir/.hidden size {SIZE}"));
    bench.debugfs("rm dir/.hidden");
    bench.succeed(["undelete", "image", "*.hidden", "-o", "out"]);
    let file = File::open(bench.path("out/dir/.hidden")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), SIZE);
    let mut start = [0; 8];
    file.read_exact_at(&mut start, 0).unwrap();
    assert_eq!(&start, b"hidden\0\0");
}

/// If the disk is full, no partial file is left.
#[test]
fn a_full_disk_keeps_only_whole_files() {
    require!([Need::Root]);
    let bench = Bench::with(&["-t", "ext2"]);
    bench.debugfs("rm dir/large");
    bench.debugfs("rm dir/.hidden");
    let out = bench.path("out");
    fs::create_dir(&out).unwrap();
    succeed(tool("mount").args(["-t", "tmpfs", "-o", "size=1M", "none"]).arg(&out));
    let said = bench.run(["undelete", "image", "-o", "out"]);
    let left: Vec<_> = fs::read_dir(out.join("dir"))
        .map(|entries| entries.map(|entry| entry.unwrap().file_name()).collect())
        .unwrap_or_default();
    succeed(tool("umount").arg(&out));
    assert_eq!(said.status.code(), Some(1), "{}", text(&said.stderr));
    assert!(text(&said.stderr).contains("No space left"), "{}", text(&said.stderr));
    assert_eq!(left, [".hidden"]);
}
