//! Volumes in images. Linux tools check them.

use ironmap::fs::ext4::MkfsOptions;
use ironmap::location::LocationOptions;
use ironmap::{Engine, ErrorKind, Location, Volume, VolumeOptions};

use crate::common::command::{find, output, run};
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::make::{Dir, check};
use crate::require;

/// A volume in a qcow2 image is made, filled and read, with and without a backing file. Then the image is converted to a raw image, and
/// e2fsck finds no fault in it.
#[test]
fn a_volume_in_an_image_is_one_for_linux() {
    require!([Need::Tool("qemu-img"), Need::Tool("e2fsck"), Need::Tool("debugfs")]);
    let dir = Dir::new();
    let size = 64 << 20;
    dir.raw("base", &Rng::new(5).bytes(4 << 20));
    let plain: &[&str] = &[];
    for (name, options) in [
        ("plain", plain),
        ("small", &["-o", "cluster_size=512"]),
        ("large", &["-o", "cluster_size=2M"]),
        ("overlay", &["-b", "base", "-F", "raw"]),
    ] {
        let path = dir.create(name, options, size);
        let location: Location = format!("qcow2:{}", path.display()).parse().unwrap();
        let opened = location.open(&LocationOptions::new().write(true)).unwrap();
        assert_eq!(opened.engine, Engine::Image);
        ironmap::tools::make(&*opened.device, &MkfsOptions::new()).unwrap();
        drop(opened);
        let volume = VolumeOptions::new().write(true).open(&location).unwrap();
        let mut rng = Rng::new(8);
        let mut files = Vec::new();
        for number in 0..40 {
            let file = format!("/d{}/{number}", number % 3);
            volume.create_dir_all(&file[..3]).unwrap();
            let len = rng.below(300_000) as usize;
            let data = rng.bytes(len);
            volume.write(&file, &data).unwrap();
            files.push((file, data));
        }
        volume.close().unwrap();
        drop(volume);
        check(&path);
        let volume = Volume::open(&location).unwrap();
        assert!(files.iter().all(|(file, data)| volume.read(file).unwrap() == *data), "{name}");
        drop(volume);
        let raw = dir.path("flat");
        let raw = raw.to_str().unwrap();
        run("qemu-img", &["convert", "-f", "qcow2", "-O", "raw", path.to_str().unwrap(), raw]);
        let checked = output("e2fsck", &["-fn", raw]);
        assert!(checked.status.success(), "{name}: {}", String::from_utf8_lossy(&checked.stdout));
        for (file, data) in &files {
            assert!(
                run("debugfs", &["-R", &format!("cat {file}"), raw]) == *data,
                "{name}: {file}"
            );
        }
    }
}

/// A partition in an image can be opened. An image can also store the data or the tags (checksums) of an integrity device.
#[test]
fn an_image_has_partitions() {
    require!([Need::Tool("qemu-img"), Need::Tool("sfdisk")]);
    let dir = Dir::new();
    let raw = dir.path("raw");
    std::fs::File::create(&raw).unwrap().set_len(64 << 20).unwrap();
    let script = dir.raw("table", b"label: gpt\nsize=16M\nsize=32M\n");
    let made = std::process::Command::new(find("sfdisk").unwrap())
        .arg(&raw)
        .stdin(std::fs::File::open(&script).unwrap())
        .output();
    assert!(made.unwrap().status.success());
    let path = dir.convert(&raw, "image", "qcow2", &[]);
    let at = |part: &str| format!("qcow2:{}{part}", path.display()).parse::<Location>().unwrap();
    let opened = at("@p2").open(&LocationOptions::new().write(true)).unwrap();
    assert_eq!(opened.device.size(), 32 << 20);
    ironmap::tools::make(&*opened.device, &MkfsOptions::new()).unwrap();
    drop(opened);
    let volume = VolumeOptions::new().write(true).open(at("@p2")).unwrap();
    volume.write("/file", b"content").unwrap();
    volume.close().unwrap();
    drop(volume);
    assert_eq!(Volume::open(at("@18M")).err().unwrap().kind(), ErrorKind::UnknownFormat);
    assert_eq!(Volume::open(at("@17M")).unwrap().read("/file").unwrap(), b"content");
    let error = at("@p3").open(&LocationOptions::new()).unwrap_err().to_string();
    assert!(error.contains("there is no partition 3"), "{error}");
    let one = at("@p1").data().clone();
    assert!(one.shares_device(at("@p2").data()));
}

/// ironmap never guesses the format of an image. If a raw image begins like another format, the message names the prefix that selects this
/// format.
#[test]
fn a_format_is_never_guessed() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    for format in ["qcow2", "vmdk", "vhdx"] {
        let raw = dir.raw("raw", &[0; 1 << 20]);
        let path = dir.convert(&raw, format, format, &[]);
        let error = Volume::open(path.to_str().unwrap()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::UnknownFormat);
        assert!(error.to_string().contains(&format!("as in {format}:FILE")), "{error}");
    }
}
