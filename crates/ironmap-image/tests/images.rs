//! The tests build images in this process, compare them with their sources, and check them with e2fsck and debugfs. No test needs root.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ironmap::fs::ext4::{Features, MkfsOptions};
use ironmap::{ErrorKind, NewSize};
use ironmap_image::progress::{Bar, Total};
use ironmap_image::{Content, Failure, Image, Reason, Stop};

const EPOCH: i64 = 1_700_000_000;
const MIB: u64 = 1 << 20;

fn program(name: &str, args: &[&str]) -> Output {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(name).args(args).env("PATH", path).env("LC_ALL", "C").output();
    output.unwrap_or_else(|error| panic!("{name}: {error}: run ./x setup"))
}

fn run(name: &str, args: &[&str]) -> String {
    let Output { status, stdout, stderr } = program(name, args);
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{name} {args:?}: {status}\n{stdout}{stderr}");
    stdout.into_owned()
}

/// Returns the output of one command of debugfs.
fn debugfs(image: &Path, command: &str) -> String {
    run("debugfs", &["-R", command, text(image)])
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Asserts that neither e2fsck nor the check of this library finds a fault.
fn assert_clean(image: &Path) {
    run("e2fsck", &["-fn", text(image)]);
    let checked = Image::open(image).unwrap().check().unwrap();
    assert!(checked.is_clean(), "{:?}", checked.findings);
}

/// Makes a tree with a large file, a hole, a hard link, a symbolic link, modes and an empty directory.
fn make_tree(dir: &Path) -> PathBuf {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("etc/empty")).unwrap();
    let large: Vec<u8> = (0..3_000_017_u32).map(|at| (at % 251) as u8).collect();
    fs::write(tree.join("large"), &large).unwrap();
    fs::hard_link(tree.join("large"), tree.join("etc/again")).unwrap();
    symlink("../large", tree.join("etc/link")).unwrap();
    let hole = fs::File::create(tree.join("hole")).unwrap();
    hole.set_len(5 * MIB).unwrap();
    fs::write(tree.join("etc/secret"), "of the tree").unwrap();
    fs::set_permissions(tree.join("etc/secret"), fs::Permissions::from_mode(0o640)).unwrap();
    tree
}

/// Asserts that both trees have the same names, types, modes, link counts, contents and targets of links.
fn assert_same(one: &Path, other: &Path) {
    run("diff", &["--recursive", "--no-dereference", text(one), text(other)]);
    let facts = |tree: &Path| {
        let format = "%P %y %m %n %l %s\n";
        let mut lines: Vec<_> =
            run("find", &[text(tree), "-mindepth", "1", "!", "-type", "d", "-printf", format])
                .lines()
                .map(str::to_owned)
                .collect();
        lines.sort();
        lines
    };
    assert_eq!(facts(one), facts(other));
}

/// The volume contains every kind of source. A later source replaces files of earlier sources, and a layer hides files of earlier sources.
#[test]
fn all_sources_are_in_the_volume_and_later_sources_replace_files() {
    let dir = tempfile::tempdir().unwrap();
    let tree = make_tree(dir.path());
    let base = dir.path().join("base.img");
    let other = dir.path().join("other");
    fs::create_dir_all(other.join("sub/deep")).unwrap();
    fs::write(other.join("sub/deep/file"), "of the volume").unwrap();
    fs::write(other.join("sub/secret"), "of the volume").unwrap();
    run("mke2fs", &["-q", "-t", "ext4", "-d", text(&other), text(&base), "16M"]);
    let layer = dir.path().join("layer");
    fs::create_dir_all(layer.join("etc")).unwrap();
    fs::write(layer.join("etc/.wh.link"), "").unwrap();
    fs::write(layer.join("etc/secret"), "of the layer").unwrap();
    let archive = dir.path().join("layer.tar");
    run("tar", &["-C", text(&layer), "-cf", text(&archive), "."]);
    let table = dir.path().join("table");
    fs::write(&table, "/dev d 755 0 0\n/dev/null c 666 0 0 1 3\n").unwrap();

    let image = dir.path().join("disk.img");
    let location = text(&base).parse().unwrap();
    let made = Image::ext4()
        .add(&tree)
        .add(Content::layer("layer", fs::File::open(&archive).unwrap()))
        .add(Content::volume(location, "/sub"))
        .owner(7, 8)
        .device_table(&table)
        .inject("/etc/new/host name", "box\n", 0o600, (1, 2))
        .inject("etc/secret", vec![b'x'; 3 * MIB as usize + 1], 0o604, (3, 4))
        .label("root")
        .uuid([9; 16])
        .build(&image)
        .unwrap();
    assert_eq!((&*made.label, made.uuid), (&b"root"[..], [9; 16]));
    assert_clean(&image);
    for (path, facts) in [
        ("/etc/again", "Mode:  0644 User: 7 Group: 8 Links: 2"),
        ("/deep/file", "Mode:  0644 User: 7 Group: 8 Links: 1"),
        ("/dev/null", "Mode:  0666 User: 0 Group: 0 Links: 1"),
        ("\"/etc/new/host name\"", "Mode:  0600 User: 1 Group: 2 Links: 1"),
        ("/etc/secret", "Mode:  0604 User: 3 Group: 4 Links: 1"),
    ] {
        let words: Vec<_> = facts.split("  ").flat_map(|part| part.split(' ')).collect();
        let stat = debugfs(&image, &format!("stat {path}"));
        let found: Vec<_> = stat.split_whitespace().collect();
        for pair in words.chunks(2) {
            assert!(found.windows(2).any(|found| found == pair), "{path}: {pair:?}: {stat}");
        }
    }
    assert!(debugfs(&image, "stat /etc/link").is_empty(), "the layer hides the link");
    assert_eq!(debugfs(&image, "cat \"/etc/new/host name\""), "box\n");
    assert_eq!(debugfs(&image, "cat /etc/secret"), "x".repeat(3 * MIB as usize + 1));
    assert_eq!(debugfs(&image, "cat /secret"), "of the volume");
}

/// The same sources and options produce the same bytes, for each way in which an image gets its size.
#[test]
fn the_same_sources_give_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let tree = make_tree(dir.path());
    let sizes: [fn(Image) -> Image; 3] = [|image| image.size(24 * MIB), Image::fit, Image::shrink];
    for (number, size) in sizes.into_iter().enumerate() {
        let images = ["first", "second"].map(|name| {
            let path = dir.path().join(format!("{name}{number}.img"));
            let image = size(Image::ext4()).add(&tree).source_date_epoch(EPOCH);
            image.inject("/seed", "1", 0o644, (0, 0)).build(&path).unwrap();
            assert_clean(&path);
            fs::read(path).unwrap()
        });
        assert!(images[0] == images[1], "size {number}");
    }
    let shrunk = fs::metadata(dir.path().join("first2.img")).unwrap().size();
    let fitted = fs::metadata(dir.path().join("first1.img")).unwrap().size();
    assert!(shrunk < fitted && shrunk < 12 * MIB, "{shrunk} {fitted}");
}

/// The test builds, grows and shrinks an image. The tree that is then extracted from the image equals its source. The smallest size does
/// not exceed the smallest size that resize2fs finds.
#[test]
fn an_image_is_extracted_and_resized() {
    let dir = tempfile::tempdir().unwrap();
    let tree = make_tree(dir.path());
    let (image, copy) = (dir.path().join("disk.img"), dir.path().join("copy"));
    Image::ext4().add(&tree).fit().build(&image).unwrap();
    let opened = Image::open(&image).unwrap();
    let before = fs::metadata(&image).unwrap().size();
    let grown = opened.grow(before + 40 * MIB).unwrap();
    assert_eq!(grown.blocks * u64::from(grown.block_size), before + 40 * MIB);
    assert_clean(&image);
    let shrunk = opened.resize(NewSize::Minimum).unwrap();
    assert_eq!(fs::metadata(&image).unwrap().size(), shrunk.blocks * u64::from(shrunk.block_size));
    assert_clean(&image);
    opened.extract("/", &copy).unwrap();
    fs::remove_dir(copy.join("lost+found")).unwrap();
    assert_same(&tree, &copy);
    let one = dir.path().join("one");
    opened.extract("/etc/secret", &one).unwrap();
    assert_eq!(fs::read(one).unwrap(), b"of the tree");
    let volume = opened.volume().unwrap();
    assert_eq!(volume.read("/etc/secret").unwrap(), b"of the tree");
}

/// A reader that fails in the middle.
struct Broken(u64);

impl Read for Broken {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::ConnectionReset)?;
        bytes.fill(0);
        Ok(bytes.len())
    }
}

/// A build that fails leaves no new image. An existing image that is not empty stays unchanged.
#[test]
fn a_failed_build_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let tree = make_tree(dir.path());
    let archive = dir.path().join("cut.tar");
    run("tar", &["-C", text(&tree), "-cf", text(&archive), "."]);
    let cut = fs::read(&archive).unwrap();
    let stop = Stop::default();
    stop.flag().store(15, Ordering::Relaxed);
    let image = dir.path().join("disk.img");
    let failing: [(&str, Image); 6] = [
        ("missing", Image::ext4().add(dir.path().join("missing"))),
        ("a reader", Image::ext4().add(Content::tar("a reader", Broken(3)))),
        ("cut", Image::ext4().add(Content::tar("cut", io::Cursor::new(cut[..4096].to_vec())))),
        ("interrupted", Image::ext4().add(&tree).stop(&stop)),
        ("too small", Image::ext4().add(&tree).size(2 * MIB)),
        ("label", Image::ext4().add(&tree).label("a label of more than sixteen bytes")),
    ];
    for (what, builder) in failing {
        let failure = builder.build(&image).unwrap_err();
        assert!(failure.to_string().contains(what), "{what}: {failure}");
        assert!(!image.exists(), "{what}");
    }
    fs::write(&image, &cut).unwrap();
    run("mke2fs", &["-q", "-F", text(&image)]);
    let before = fs::read(&image).unwrap();
    let failure = Image::ext4().add(&tree).build(&image).unwrap_err();
    assert!(failure.is_of(ErrorKind::Exists), "{failure}");
    assert!(fs::read(&image).unwrap() == before);
    let own = Image::ext4().add(&image).force(true).build(&image).unwrap_err();
    assert_eq!(own.reason(), Reason::Usage, "{own}");
    assert!(fs::read(&image).unwrap() == before);
}

/// If a volume is too small, the failure contains the space that the content needs. A volume with this space is large enough for the
/// content.
#[test]
fn the_needs_of_a_volume_that_is_too_small_are_enough() {
    let dir = tempfile::tempdir().unwrap();
    let tree = make_tree(dir.path());
    let image = dir.path().join("disk.img");
    let needs = |failure: Failure| failure.too_small().expect("too small").needs.clone();
    let options = || MkfsOptions::new().size(3 * MIB).inodes(64);
    let small = Image::ext4().options(options()).add(&tree).build(&image).unwrap_err();
    let needs = needs(small);
    assert!(needs.bytes >= 3_000_017 && needs.inodes >= 6, "{needs:?}");
    let size = needs.bytes + needs.bytes / 3 + 8 * MIB;
    let options = MkfsOptions::new().inodes(needs.inodes + 64);
    Image::ext4().options(options).size(size).add(&tree).build(&image).unwrap();
    assert_clean(&image);
}

#[derive(Default)]
struct Counts {
    files: AtomicU64,
    bytes: AtomicU64,
    total: Mutex<Total>,
}

impl Bar for Counts {
    fn begin(&self, _: &str) {}
    fn advance(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
    fn add_file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }
    fn set_total(&self, total: Total) {
        *self.total.lock().unwrap() = total;
    }
    fn finish(&self) {}
}

/// At the end of a build, the numbers of copied files and bytes that the progress reports are equal to the totals. The options of the file
/// system are used, and no message is printed.
#[test]
fn progress_and_messages_reach_the_callbacks() {
    let dir = tempfile::tempdir().unwrap();
    let tree = make_tree(dir.path());
    let (counts, lines) = (Arc::new(Counts::default()), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&lines);
    let made = Image::ext4()
        .options(MkfsOptions::new().features(without_journal()).block_size(1024))
        .add(&tree)
        .fit()
        .progress(Arc::clone(&counts) as Arc<dyn Bar>)
        .on_message(move |line| seen.lock().unwrap().push(line.to_owned()))
        .build(dir.path().join("disk.img"))
        .unwrap();
    assert_eq!(made.block_size.bytes(), 1024);
    let shown = debugfs(&dir.path().join("disk.img"), "features");
    assert!(!shown.contains("has_journal") && shown.contains("extent"), "{shown}");
    let total = *counts.total.lock().unwrap();
    assert_eq!(total.files, 5);
    assert_eq!(counts.files.load(Ordering::Relaxed), total.files);
    assert_eq!(counts.bytes.load(Ordering::Relaxed), total.bytes);
    assert_eq!(*lines.lock().unwrap(), [""; 0]);
}

/// A hard link joins names of one source only: a later source can replace a file, and volumes can use the same inode numbers.
#[test]
fn hard_links_join_names_of_one_source() {
    let dir = tempfile::tempdir().unwrap();
    let pairs = ["one", "two"].map(|name| {
        let (tree, image) = (dir.path().join(name), dir.path().join(format!("{name}.img")));
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join(format!("{name}-a")), name).unwrap();
        fs::hard_link(tree.join(format!("{name}-a")), tree.join(format!("{name}-b"))).unwrap();
        run("mke2fs", &["-q", "-t", "ext4", "-d", text(&tree), text(&image), "8M"]);
        Content::volume(text(&image).parse().unwrap(), "/")
    });
    let image = dir.path().join("disk.img");
    let builder = pairs.into_iter().fold(Image::ext4(), |image, pair| image.add(pair));
    builder.build(&image).unwrap();
    for (path, content) in [("one-a", "one"), ("one-b", "one"), ("two-a", "two"), ("two-b", "two")]
    {
        assert_eq!(debugfs(&image, &format!("cat {path}")), content, "{path}");
    }
    // The first and the third tree contain two names of one file. The second tree replaces the first of these names.
    let trees = ["first", "second", "third"].map(|name| dir.path().join(name));
    trees.iter().for_each(|tree| fs::create_dir(tree).unwrap());
    fs::write(trees[0].join("shared"), "shared").unwrap();
    fs::write(trees[1].join("shared"), "replaced").unwrap();
    fs::hard_link(trees[0].join("shared"), trees[2].join("other")).unwrap();
    let image = dir.path().join("trees.img");
    let builder = trees.iter().fold(Image::ext4(), |image, tree| image.add(tree));
    builder.add(&trees[0]).build(&image).unwrap();
    assert_clean(&image);
    assert_eq!(debugfs(&image, "cat shared"), "shared", "the last source wins");
    assert_eq!(debugfs(&image, "cat other"), "shared");
}

/// An attribute that the volume cannot store ends the build. The test builds images of many sizes, from too small to large enough: each
/// build that succeeds has stored all attributes.
#[test]
fn an_attribute_is_stored_or_the_build_fails() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let value = "v".repeat(900);
    for number in 0..40 {
        let path = tree.join(format!("f{number}"));
        fs::write(&path, "x").unwrap();
        let set = program("setfattr", &["-n", "user.x", "-v", &value, text(&path)]);
        if !set.status.success() {
            println!(
                "SKIP an_attribute_is_stored_or_the_build_fails: the directory for temporary files has no extended attributes"
            );
            return;
        }
        // The attribute has a different value in each file, so the files share no attribute block.
        run("setfattr", &["-n", "user.n", "-v", &number.to_string(), text(&path)]);
    }
    let image = dir.path().join("disk.img");
    let mut results = [0; 2];
    for size in (64 << 10..512 << 10).step_by(16 << 10) {
        let options = MkfsOptions::new().features(without_journal()).inodes(64);
        let built = Image::ext4().options(options).add(&tree).size(size).force(true).build(&image);
        results[usize::from(built.is_ok())] += 1;
        if built.is_ok() {
            for number in 0..40 {
                let shown = debugfs(&image, &format!("ea_get f{number} user.x"));
                assert!(shown.contains(&value), "{size}: f{number}: {shown}");
            }
            fs::remove_file(&image).unwrap();
        }
    }
    assert!(results[0] > 2 && results[1] > 2, "{results:?}");
}

fn without_journal() -> Features {
    let mut features = Features::MODERN;
    features.edit("^has_journal").unwrap();
    features
}

/// The order of the calls that set options has no effect. If the caller gives a size, the volume has this size, even if the image file is
/// larger.
#[test]
fn sizes_and_options_are_used_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let tree = make_tree(dir.path());
    let options = || MkfsOptions::new().block_size(2048);
    let paths = ["a.img", "b.img"].map(|name| dir.path().join(name));
    let first = Image::ext4().options(options()).add(&tree).label("x").source_date_epoch(EPOCH);
    first.size(16 * MIB).build(&paths[0]).unwrap();
    let second = Image::ext4().size(16 * MIB).source_date_epoch(EPOCH).label("x").add(&tree);
    second.options(options()).build(&paths[1]).unwrap();
    assert!(fs::read(&paths[0]).unwrap() == fs::read(&paths[1]).unwrap());
    let large = dir.path().join("large.img");
    fs::File::create(&large).unwrap().set_len(64 * MIB).unwrap();
    let made = Image::ext4().add(&tree).size(16 * MIB).build(&large).unwrap();
    assert_eq!(made.blocks_count * made.block_size.bytes() as u64, 16 * MIB);
    let image = Image::open(&large).unwrap();
    assert_eq!(image.grow(8 * MIB).unwrap_err().reason(), Reason::Usage);
    assert_eq!(fs::metadata(&large).unwrap().size(), 64 * MIB);
}

/// Impossible options are errors, and a volume that is a source is checked before an existing image is overwritten.
#[test]
fn impossible_requests_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let tree = make_tree(dir.path());
    let image = dir.path().join("disk.img");
    for options in [
        MkfsOptions::new().block_size(512),
        MkfsOptions::new().block_size(1 << 31),
        MkfsOptions::new().block_size(u32::MAX),
        MkfsOptions::new().inodes(u64::MAX),
        MkfsOptions::new().inodes(u64::MAX - 10),
        MkfsOptions::new().inode_size(3_u16),
        MkfsOptions::new().journal_size(u64::MAX),
    ] {
        for shrink in [false, true] {
            let builder = Image::ext4().options(options.clone()).add(&tree);
            let builder = if shrink { builder.shrink() } else { builder.size(16 * MIB) };
            builder.build(&image).unwrap_err();
            assert!(!image.exists(), "{options:?}");
        }
    }
    run("mke2fs", &["-q", "-t", "ext4", text(&image), "8M"]);
    let before = fs::read(&image).unwrap();
    let linked = dir.path().join("linked.img");
    fs::hard_link(&image, &linked).unwrap();
    let (missing, own) = (dir.path().join("missing.img"), format!("{}@0", linked.display()));
    for source in [text(&missing), text(&linked), &own, "noload:disk.img"] {
        let source = Content::volume(source.parse().unwrap(), "/");
        Image::ext4().add(source).force(true).build(&image).unwrap_err();
        assert!(fs::read(&image).unwrap() == before);
    }
}

/// A request to stop ends the copy of a reader that never ends.
#[test]
fn an_endless_reader_is_stopped() {
    struct Endless(Stop, u64);
    impl Read for Endless {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.1 += bytes.len() as u64;
            assert!(self.1 < 64 * MIB, "the request to stop is ignored");
            if self.1 > 4 * MIB {
                self.0.flag().store(15, Ordering::Relaxed);
            }
            bytes.fill(1);
            Ok(bytes.len())
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let stop = Stop::default();
    let content = Content::tar("endless", Endless(stop.clone(), 0));
    let failure = Image::ext4().add(content).stop(&stop).build(dir.path().join("disk.img"));
    assert_eq!(failure.unwrap_err().reason(), Reason::Stopped(15));
}

/// A deep tree does not need more stack in the calling thread than a flat tree.
#[test]
fn a_deep_tree_is_built_and_extracted_on_a_small_stack() {
    const DEPTH: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let deepest: PathBuf = std::iter::repeat_n("d", DEPTH).collect();
    let (tree, copy) = (dir.path().join("tree"), dir.path().join("copy"));
    fs::create_dir_all(tree.join(&deepest)).unwrap();
    fs::write(tree.join(&deepest).join("file"), "deep").unwrap();
    let (image, target) = (dir.path().join("disk.img"), copy.clone());
    let work = move || {
        Image::ext4().add(&tree).build(&image).unwrap();
        Image::open(&image).unwrap().extract("/", target).unwrap();
    };
    let thread = std::thread::Builder::new().stack_size(512 << 10).spawn(work).unwrap();
    thread.join().unwrap();
    assert_eq!(fs::read(copy.join(deepest).join("file")).unwrap(), b"deep");
}

/// If another program replaces the file of a new image during the build, the build fails, and the file of the other program remains.
#[test]
fn a_replaced_image_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let tree = make_tree(dir.path());
    let image = dir.path().join("disk.img");
    struct Replacing(PathBuf);
    impl Bar for Replacing {
        fn begin(&self, _: &str) {
            fs::remove_file(&self.0).ok();
            fs::write(&self.0, "mine").unwrap();
        }
        fn advance(&self, _: u64) {}
        fn add_file(&self) {}
        fn set_total(&self, _: Total) {}
        fn finish(&self) {}
    }
    let builder =
        Image::ext4().add(&tree).size(16 * MIB).progress(Arc::new(Replacing(image.clone())));
    let failure = builder.build(&image).unwrap_err();
    assert!(failure.to_string().contains("replaced"), "{failure}");
    assert_eq!(fs::read(&image).unwrap(), b"mine");
}
