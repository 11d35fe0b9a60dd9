//! Tests `ironmap mkfs --oci` with image layouts. The volume has the same files as a tree that umoci or GNU tar extracts. After GNU tar,
//! the test itself applies the whiteouts.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tar::{EntryType, Header};

use crate::common::image::Image;
use crate::common::mounted::Mounted;
use crate::common::skip::Need;
use crate::images::same;
use crate::require;
use crate::support::{Bench, IRONMAP, succeed, text, tool};
use crate::trees::{compare, view};

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A layout without images.
fn layout(dir: &Path) {
    fs::create_dir_all(dir.join("blobs/sha256")).unwrap();
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}

/// Adds a blob to a layout, and returns its descriptor.
fn blob(layout: &Path, media: &str, bytes: &[u8]) -> Value {
    let mut sum = tool("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    sum.stdin.take().unwrap().write_all(bytes).unwrap();
    let sum = text(&sum.wait_with_output().unwrap().stdout);
    let digest = sum.split(' ').next().unwrap();
    fs::write(layout.join("blobs/sha256").join(digest), bytes).unwrap();
    json!({"mediaType": media, "digest": format!("sha256:{digest}"), "size": bytes.len()})
}

fn index(layout: &Path, images: &[Value]) {
    let index = json!({"schemaVersion": 2, "manifests": images}).to_string();
    fs::write(layout.join("index.json"), index).unwrap();
}

fn of_platform(mut image: Value, architecture: &str) -> Value {
    image["platform"] = json!({"os": "linux", "architecture": architecture});
    image
}

/// The layout's index names a second index with two images. The image for this machine is chosen. Its three layers (uncompressed, gzip and
/// zstd) are applied.
#[test]
fn the_layers_of_a_layout_are_applied() {
    require!([Need::Root, Need::Tool("tar"), Need::Tool("gzip"), Need::Tool("zstd")]);
    let bench = Bench::empty();
    let script = "mkdir -p 1/a 1/tree/below 1/opaque/dir 2/a 2/opaque/dir 3
        for file in 1/a/gone 1/a/kept 1/tree/below/file 1/opaque/old 1/opaque/dir/old; do echo $file >$file; done
        chown 5:6 1/a/kept; chmod 6755 1/a/kept; ln 1/a/kept 1/a/twin; ln -s a 1/link; mkfifo 1/replaced
        touch 2/a/.wh.gone 2/.wh.tree 2/opaque/.wh..wh..opq 2/.wh.replaced
        echo new >2/opaque/new; echo new >2/opaque/dir/new; mkdir 2/replaced; setfattr -n user.x -v y 2/replaced
        echo last >3/last; touch 3/.wh.link
        for layer in 1 2 3; do tar --xattrs -cf $layer.tar -C $layer .; done
        gzip -k 2.tar; zstd -q 3.tar";
    succeed(tool("sh").args(["-ec", script]).current_dir(bench.path("")));
    let dir = bench.path("layout");
    layout(&dir);
    let read = |name: &str| fs::read(bench.path(name)).unwrap();
    let layers = [
        blob(&dir, LAYER, &read("1.tar")),
        blob(&dir, &format!("{LAYER}+gzip"), &read("2.tar.gz")),
        blob(&dir, &format!("{LAYER}+zstd"), &read("3.tar.zst")),
    ];
    let manifest = |layers: &[Value]| json!({"schemaVersion": 2, "layers": layers}).to_string();
    let own = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let images = [
        of_platform(blob(&dir, MANIFEST, manifest(&layers[..1]).as_bytes()), "s390x"),
        of_platform(blob(&dir, MANIFEST, manifest(&layers).as_bytes()), own),
    ];
    let inner = json!({"schemaVersion": 2, "manifests": images}).to_string();
    index(&dir, &[blob(&dir, INDEX, inner.as_bytes())]);

    let expected = Mounted::ext4();
    let script = "tar --xattrs --numeric-owner -xpf 1.tar -C \"$0\"
        rm -r \"$0/a/gone\" \"$0/tree\" \"$0/replaced\"; find \"$0/opaque\" -mindepth 1 -delete
        tar --xattrs --numeric-owner -xpf 2.tar -C \"$0\" --exclude='.wh.*'
        rm \"$0/link\"; tar --xattrs --numeric-owner -xpf 3.tar -C \"$0\" --exclude='.wh.*'";
    let mut sh = tool("sh");
    succeed(sh.args(["-ec", script]).arg(expected.dir()).current_dir(bench.path("")));
    let image = Image::none();
    succeed(
        bench.command().args(["mkfs", "-q", "--oci", "-d"]).arg(&dir).arg(image.path()).arg("32M"),
    );
    same(&image, expected.dir());
    // Without --oci, the layout is an ordinary directory.
    bench.succeed(["mkfs", "-q", "-d", "layout", "plain"]);
    assert_eq!(
        text(&bench.succeed(["cat", "plain:/oci-layout"])),
        r#"{"imageLayoutVersion":"1.0.0"}"#
    );
}

/// umoci makes an image from changes to a tree, with whiteouts. The volume has the same files as the tree of `umoci unpack`.
#[test]
fn an_image_of_umoci_is_what_umoci_unpacks() {
    require!([Need::Root, Need::Tool("umoci")]);
    let bench = Bench::empty();
    let expected = Mounted::ext4();
    let script = "umoci init --layout l; umoci new --image l:t; umoci unpack --image l:t 1
        cd 1/rootfs; mkdir -p etc/old usr/bin; echo a >etc/a; echo b >etc/old/b; echo c >usr/bin/c; ln usr/bin/c usr/bin/d; chown 7:8 etc/a
        cd ../..; umoci repack --image l:t 1; umoci unpack --image l:t 2
        cd 2/rootfs; rm -r etc/old usr/bin/d; echo new >etc/new; ln -s new etc/link; rm etc/a; mkdir etc/a
        cd ../..; umoci repack --image l:t 2; umoci raw unpack --image l:t \"$0/rootfs\"";
    let mut sh = tool("sh");
    succeed(sh.args(["-ec", script]).arg(expected.dir()).current_dir(bench.path("")));
    let image = Image::none();
    succeed(bench.command().args(["mkfs", "-q", "--oci", "-d", "l"]).arg(image.path()).arg("32M"));
    image.check();
    let mount = image.mount("ro");
    let views = [expected.dir().join("rootfs"), mount.dir().to_owned()].map(|root| {
        let mut views = view(&root, i64::MAX);
        // The root directory is not compared, because it is not a file of the image.
        views.retain(|path, _| !["", "lost+found"].map(Path::new).contains(&path.as_path()));
        views
    });
    assert!(views[0].contains_key(Path::new("etc/link")), "umoci has unpacked it");
    compare(&views[0], &views[1]);
}

/// A layout that is damaged or names unsupported blobs is refused in one line, and no image is made.
#[test]
fn a_layout_that_is_wrong_is_refused() {
    let bench = Bench::empty();
    let dir = bench.path("layout");
    layout(&dir);
    let write = |name: &str, text: &str| fs::write(dir.join(name), text).unwrap();
    let refused = |what: &str| {
        let output = bench.run(["mkfs", "-q", "--oci", "-d", "layout", "image"]);
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(what), "{what}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!bench.path("image").exists(), "{what}");
    };
    refused("index.json: No such file");
    write("index.json", "{}");
    refused("neither an image index nor an image manifest");
    write("index.json", r#"{"layers":[],"manifests":[]}"#);
    refused("both an image index and an image manifest");
    write("index.json", "[");
    refused("index.json: ");
    let image = |layer: Value| {
        let manifest = json!({"layers": [layer]}).to_string();
        index(&dir, &[blob(&dir, MANIFEST, manifest.as_bytes())]);
    };
    let layer = blob(&dir, LAYER, &[0; 1024]);
    for (digest, what) in [
        ("sha256:../../../x", "is not a digest"),
        ("sha256:", "is not a digest"),
        ("sha512:0", "No such file"),
    ] {
        let mut other = layer.clone();
        other["digest"] = digest.into();
        image(other);
        refused(what);
    }
    let mut short = layer.clone();
    short["size"] = 1023.into();
    image(short);
    refused("but its descriptor says 1023");
    let mut encrypted = layer.clone();
    encrypted["mediaType"] = format!("{LAYER}+gzip+encrypted").into();
    image(encrypted);
    refused("unknown type");
    let manifest = blob(&dir, MANIFEST, json!({"layers": [layer]}).to_string().as_bytes());
    index(&dir, &[manifest.clone(), of_platform(manifest.clone(), "s390x")]);
    refused("names 2 images, but not exactly one for linux/");
    // The index of this layout names itself.
    let own = json!({"mediaType": INDEX, "digest": "sha256:loop", "size": 500});
    let text_of = json!({"manifests": [own.clone()]}).to_string();
    write("blobs/sha256/loop", &format!("{text_of:500}"));
    index(&dir, &[own]);
    refused("too deep");
    write("oci-layout", r#"{"imageLayoutVersion":"2.0.0"}"#);
    refused("version 2.0.0");
    // The undamaged layout makes a volume.
    layout(&dir);
    index(&dir, &[manifest]);
    bench.succeed(["mkfs", "-q", "--oci", "-d", "layout", "image"]);
}

/// An archive with one member.
fn layer_of(kind: EntryType, name: &str, link: &str, content: &str) -> Vec<u8> {
    let mut archive = Vec::new();
    member(&mut archive, kind, name, link, content);
    archive.resize(archive.len() + 1024, 0);
    archive
}

fn member(archive: &mut Vec<u8>, kind: EntryType, name: &str, link: &str, content: &str) {
    let mut header = Header::new_gnu();
    header.set_path(name).unwrap();
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    header.set_size(content.len() as u64);
    header.set_cksum();
    archive.extend_from_slice(header.as_bytes());
    archive.extend_from_slice(content.as_bytes());
    archive.resize(archive.len().next_multiple_of(512), 0);
}

const FILE: EntryType = EntryType::Regular;

/// Makes an image from a source, and returns the bytes of the image.
fn image_of(bench: &Bench, source: &str) -> Vec<u8> {
    let mut mkfs = bench.command();
    mkfs.env("SOURCE_DATE_EPOCH", "1").args(["mkfs", "-q", "--oci", "-d", source, "image", "8M"]);
    succeed(&mut mkfs);
    let bytes = fs::read(bench.path("image")).unwrap();
    fs::remove_file(bench.path("image")).unwrap();
    bytes
}

fn refused(bench: &Bench, args: &[&str], what: &[&str]) {
    let output = bench.run([&["mkfs", "-q", "--oci"], args, &["image"]].concat());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
    assert!(what.iter().all(|what| said.contains(what)), "{args:?}: {said}");
    assert!(said.lines().count() == 1 && !bench.path("image").exists(), "{args:?}: {said}");
}

/// Makes four directories, and an archive of each. They are an OCI layout, an unpacked archive of one image, an unpacked archive of two
/// images, and an ordinary tree. Returns the descriptor of the image in the layout.
fn make_archives(bench: &Bench) -> Value {
    let dir = bench.path("layout");
    layout(&dir);
    let contents = [
        layer_of(FILE, "etc/a", "", "a"),
        layer_of(FILE, "etc/b", "", "b"),
        layer_of(FILE, "etc/.wh.a", "", ""),
    ];
    // The image contains one layer twice.
    let layers = [0, 1, 1, 2].map(|at| blob(&dir, LAYER, &contents[at]));
    let manifest = json!({"schemaVersion": 2, "layers": layers}).to_string();
    let mut image = blob(&dir, MANIFEST, manifest.as_bytes());
    // An image with two names is still one image.
    let mut twin = image.clone();
    for (image, name) in [(&mut image, "x:1"), (&mut twin, "x:2")] {
        image["annotations"] = json!({"io.containerd.image.name": name});
    }
    index(&dir, &[image.clone(), twin]);
    let saved = |name: &str| json!({"Config": "c.json", "RepoTags": [name], "Layers": ["1/layer.tar", "2/layer.tar", "2/layer.tar", "3/layer.tar"]});
    let script = "mkdir -p saved/1 saved/2 saved/3 several tree; echo '{}' > saved/c.json
        ln -s ../4.tar saved/1/layer.tar; ln saved/c.json saved/d.json
        echo '{\"name\": 1}' > tree/manifest.json; tar -cf tree.tar -C tree .";
    succeed(tool("sh").args(["-ec", script]).current_dir(bench.path("")));
    for (name, content) in ["4.tar", "2/layer.tar", "3/layer.tar"].iter().zip(&contents) {
        fs::write(bench.path("saved").join(name), content).unwrap();
    }
    fs::write(bench.path("saved/manifest.json"), json!([saved("x:1")]).to_string()).unwrap();
    fs::write(bench.path("several/manifest.json"), json!([saved("x:1"), saved("y:1")]).to_string())
        .unwrap();
    let script =
        "for dir in layout saved several tree; do tar -cf $dir.tar -C $dir .; gzip -k $dir.tar; done
        zstd -q layout.tar
        tar --transform 's,^[.]/,,' -cf bare.tar -C layout ./index.json ./blobs ./oci-layout";
    succeed(tool("sh").args(["-ec", script]).current_dir(bench.path("")));
    image
}

/// An archive of a layout gives the same image as the layout itself. An archive with `manifest.json`, and the directory of its members,
/// give the same image too. An archive that cannot be applied is refused, and the error names the archive.
#[test]
fn an_archive_of_images_is_applied() {
    require!([Need::Tool("tar"), Need::Tool("gzip"), Need::Tool("zstd")]);
    let bench = Bench::empty();
    let image = make_archives(&bench);
    let expected = image_of(&bench, "layout");
    fs::write(bench.path("kept"), &expected).unwrap();
    assert_eq!(bench.succeed(["ls", "kept:/etc"]), b"b\n");
    for source in [
        "layout.tar",
        "bare.tar",
        "saved",
        "saved.tar",
        "layout.tar.gz",
        "saved.tar.gz",
        "layout.tar.zst",
    ] {
        assert!(image_of(&bench, source) == expected, "{source}");
    }
    // Without a given size, the size of the image is computed from the same layers.
    for source in ["saved.tar", "saved.tar.gz"] {
        bench.succeed(["mkfs", "-q", "--oci", "-d", source, "fits"]);
        assert_eq!(bench.succeed(["ls", "fits:/etc"]), b"b\n");
        fs::remove_file(bench.path("fits")).unwrap();
    }
    // An ordinary tree or layer may contain a file with the name `manifest.json`.
    for source in ["tree", "tree.tar", "tree.tar.gz"] {
        fs::write(bench.path("kept"), image_of(&bench, source)).unwrap();
        assert_eq!(bench.succeed(["cat", "kept:/manifest.json"]), b"{\"name\": 1}\n");
    }
    for source in ["several", "several.tar", "several.tar.gz"] {
        refused(
            &bench,
            &["-d", source],
            &["manifest.json", "2 images", "x:1, y:1", "--image NAME"],
        );
    }
    // A stream can only be a single layer, not an archive of images.
    let mut mkfs = bench.command();
    mkfs.args(["mkfs", "-q", "--oci", "-d", "-", "image"]);
    let output = mkfs.stdin(fs::File::open(bench.path("saved.tar.gz")).unwrap()).output().unwrap();
    assert!(text(&output.stderr).contains("use an uncompressed file of the archive"), "{output:?}");
    let mut other = image.clone();
    other["digest"] = format!("sha256:{}", "0".repeat(64)).into();
    index(&bench.path("layout"), &[image, other]);
    refused(&bench, &["-d", "layout"], &["names 2 images", "x:1"]);
    fs::write(
        bench.path("saved/manifest.json"),
        json!([{"Config": "", "Layers": ["../layout/oci-layout"]}]).to_string(),
    )
    .unwrap();
    refused(&bench, &["-d", "saved"], &["is not a valid name of a layer"]);
}

/// Makes a layout and an archive of `docker save`, each with several images. Returns the digest of the image `one:1` of the layout.
fn make_several(bench: &Bench) -> String {
    let dir = bench.path("layout");
    layout(&dir);
    let image = |content: &str, architecture: &str| {
        let config = json!({"os": "linux", "architecture": architecture}).to_string();
        let config = blob(&dir, "application/vnd.oci.image.config.v1+json", config.as_bytes());
        let layer = blob(&dir, LAYER, &layer_of(FILE, content, "", ""));
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": [layer]});
        blob(&dir, MANIFEST, manifest.to_string().as_bytes())
    };
    let named = |mut image: Value, name: &str| {
        image["annotations"] = json!({"io.containerd.image.name": name});
        image
    };
    let inner = json!({"schemaVersion": 2, "manifests": [
        of_platform(image("arm", "arm64"), "arm64"), of_platform(image("z", "s390x"), "s390x")]});
    let many = blob(&dir, INDEX, inner.to_string().as_bytes());
    let riscv = image("riscv", "riscv64");
    let digest = riscv["digest"].as_str().unwrap().to_owned();
    index(
        &dir,
        &[named(many, "docker.io/library/many:1"), named(riscv, "docker.io/library/one:1")],
    );
    fs::create_dir(bench.path("saved")).unwrap();
    let saved: Vec<_> = [("x", "arm64"), ("y", "s390x")]
        .iter()
        .map(|(name, architecture)| {
            let write = |file: String, bytes: &[u8]| {
                fs::write(bench.path("saved").join(&file), bytes).unwrap();
                file
            };
            let config = json!({"os": "linux", "architecture": architecture}).to_string();
            let config = write(format!("{name}0123456789.json"), config.as_bytes());
            let layer = write(format!("{name}.tar"), &layer_of(FILE, name, "", ""));
            json!({"Config": config, "RepoTags": [format!("{name}:1")], "Layers": [layer]})
        })
        .collect();
    fs::write(bench.path("saved/manifest.json"), json!(saved).to_string()).unwrap();
    let script = "for dir in layout saved; do tar -czf $dir.tar.gz -C $dir .; done";
    succeed(tool("sh").args(["-ec", script]).current_dir(bench.path("")));
    digest
}

/// One of several images is chosen by a name, by the first digits of a digest, or by a platform. The images are in a layout, in an index
/// that the layout's index names, or in an archive of `docker save`. In the archive, configurations name the platforms. Errors list the
/// images.
#[test]
fn one_of_several_images_is_chosen() {
    require!([Need::Tool("tar"), Need::Tool("gzip")]);
    let bench = Bench::empty();
    let digest = make_several(&bench);
    let short = &digest["sha256:".len()..][..12];
    for (source, options, file) in [
        ("layout", &["--image", "one:1"][..], "riscv"),
        ("layout.tar.gz", &["--image", "docker.io/library/one:1"], "riscv"),
        ("layout", &["--image", &digest], "riscv"),
        ("layout", &["--image", short, "--platform", "linux/riscv64"], "riscv"),
        ("layout.tar.gz", &["--image", "many:1", "--platform", "linux/s390x"], "z"),
        ("layout", &["--image", "library/many:1", "--platform", "linux/arm64"], "arm"),
        ("saved", &["--image", "x:1"], "x"),
        ("saved.tar.gz", &["--platform", "linux/s390x"], "y"),
        ("saved.tar.gz", &["--image", "y:1", "--platform", "linux/s390x"], "y"),
    ] {
        let args = [&["mkfs", "-q", "--oci", "-d", source][..], options, &["image"]].concat();
        bench.succeed(args);
        let found = text(&bench.succeed(["ls", "image:/"]));
        let found: Vec<_> = found.lines().filter(|name| *name != "lost+found").collect();
        assert_eq!(found, [file], "{options:?}");
        fs::remove_file(bench.path("image")).unwrap();
    }
    let all = "library/many:1, docker.io/library/one:1";
    for (source, options, says) in [
        ("layout", &[][..], &[all, "names 2 images", "--image NAME"][..]),
        ("layout.tar.gz", &["--image", "none:1"], &[all, "not none:1"]),
        ("layout", &["--platform", "linux/arm64"], &[all, "not exactly one for linux/arm64"]),
        ("layout", &["--image", "one:1", "--platform", "linux/s390x"], &["for linux/riscv64, not"]),
        ("layout", &["--image", "many:1", "--platform", "linux/386"], &["linux/arm64), sha256:"]),
        ("saved", &["--image", "z:1"], &["x:1, y:1"]),
        ("saved", &["--image", "x:1", "--platform", "linux/s390x"], &["x:1 (linux/arm64), y:1"]),
    ] {
        refused(&bench, &[&["-d", source], options].concat(), says);
    }
}

/// The number of layers of an image may exceed the limit for open files.
#[test]
fn an_image_of_many_layers_takes_few_files() {
    require!([Need::Tool("tar")]);
    let bench = Bench::empty();
    fs::create_dir(bench.path("saved")).unwrap();
    let names: Vec<_> = (0..300).map(|number| format!("{number}.tar")).collect();
    for name in &names {
        fs::write(bench.path("saved").join(name), layer_of(FILE, name, "", "")).unwrap();
    }
    let manifest = json!([{"Config": "c", "RepoTags": null, "Layers": names}]).to_string();
    fs::write(bench.path("saved/manifest.json"), manifest).unwrap();
    succeed(tool("tar").args(["-cf", "saved.tar", "-C", "saved", "."]).current_dir(bench.path("")));
    for source in ["saved", "saved.tar"] {
        let script = "ulimit -n 40; \"$0\" mkfs -q --oci -d $1 image";
        let mut sh = tool("sh");
        succeed(sh.args(["-ec", script, IRONMAP, source]).current_dir(bench.path("")));
        let found = text(&bench.succeed(["ls", "image:/"]));
        assert_eq!(found.lines().filter(|name| name.ends_with(".tar")).count(), 300, "{source}");
        fs::remove_file(bench.path("image")).unwrap();
    }
}

/// No name that begins with `.wh.` becomes a file of the volume. Members of a layer may be hard links to files that AUFS uses for itself.
/// These files are removed after the layer is applied.
#[test]
fn metadata_of_aufs_become_no_files() {
    let bench = Bench::empty();
    let (dir, link) = (EntryType::Directory, EntryType::Link);
    let members = [
        (dir, ".wh..wh.plnk", "", ""),
        (FILE, ".wh..wh.plnk/77.1", "", "linked"),
        (FILE, ".wh..wh.plnk/78.2", "", "alone"),
        (dir, ".wh..wh.orph", "", ""),
        (FILE, ".wh..wh.aufs", "", ""),
        (link, "one", ".wh..wh.plnk/77.1", ""),
        (link, "dir/two", ".wh..wh.plnk/77.1", ""),
        (FILE, "dir/.wh..wh.x/y/z", "", "below"),
        (FILE, "dir/.wh.gone/below", "", "below"),
        (EntryType::Symlink, "moved", "dir", ""),
        (FILE, "moved/.wh..wh.y/z", "", "through a link"),
        (dir, "moved", "", ""),
    ];
    let mut archive = layer_of(FILE, "dir/gone", "", "");
    fs::write(bench.path("below.tar"), &archive).unwrap();
    archive.clear();
    for (kind, name, link, content) in members {
        member(&mut archive, kind, name, link, content);
    }
    archive.resize(archive.len() + 1024, 0);
    fs::write(bench.path("aufs.tar"), &archive).unwrap();
    bench.succeed("mkfs -q --oci -d below.tar -d aufs.tar image 8M".split(' '));
    let found = text(&bench.succeed(["find", "image:/", "-type", "f"]));
    assert_eq!(found, "image:/dir/two\nimage:/one\n");
    let found = text(&bench.succeed(["find", "image:/", "-name", ".wh.*"]));
    assert_eq!(found, "");
    assert_eq!(bench.succeed(["cat", "image:/one"]), b"linked");
    assert_eq!(text(&bench.succeed(["stat", "-c", "%h", "image:/one"])), "2\n");
    succeed(tool("e2fsck").arg("-fn").arg(bench.path("image")));
    // Without --oci these names are ordinary files.
    bench.succeed("mkfs -q -d aufs.tar plain 8M".split(' '));
    assert_eq!(bench.succeed(["cat", "plain:/.wh..wh.plnk/78.2"]), b"alone");
}
