//! Volumes on exports. Linux tools check them.

use ironmap::device::QueueOptions;
use ironmap::fs::Follow;
use ironmap::fs::ext4::MkfsOptions;
use ironmap::integrity::{FormatOptions, Mode, format};
use ironmap::location::LocationOptions;
use ironmap::{Engine, FileOptions, Location, Volume, VolumeOptions};

use crate::common::command::{output, run};
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::require;
use crate::server::Server;

fn location(server: &Server) -> Location {
    Location::parse(server.address("").to_string().as_ref()).unwrap()
}

/// Makes a volume and fills it. e2fsck and the kernel check the result.
fn make_and_fill(server: &mut Server, name: &str, block: impl Into<Option<u32>>) {
    let block = block.into();
    let how = LocationOptions::new().write(true).block_size(block);
    let opened = location(server).open(&how).unwrap();
    assert_eq!(opened.engine, Engine::Nbd);
    ironmap::tools::make(&*opened.device, &MkfsOptions::new().block_size(block)).unwrap();
    drop(opened);
    let volume = VolumeOptions::new().write(true).open(location(server)).unwrap();
    volume.create_dir_all("/a/b").unwrap();
    let mut rng = Rng::new(3);
    let mut files = Vec::new();
    for number in 0..20 {
        let path = format!("/a/b/{number}");
        let len = 1 + rng.below(200_000) as usize;
        let data = rng.bytes(len);
        volume.write(&path, &data).unwrap();
        files.push((path, data));
    }
    // Several queues overwrite and append at the same time.
    std::thread::scope(|scope| {
        for (path, data) in &mut files[..4] {
            let volume = &volume;
            scope.spawn(move || {
                let file = volume
                    .open_inode(
                        volume.fs().resolve(path.as_bytes(), Follow::All).unwrap(),
                        FileOptions::new().write(true),
                    )
                    .unwrap();
                let mut queue = volume.queue(&QueueOptions::new()).unwrap();
                let block = vec![path.len() as u8; 4096];
                file.write_all_at(&mut queue, &block, 0).unwrap();
                let len = data.len().max(4096);
                data.resize(len, 0);
                data[..4096].copy_from_slice(&block);
                for at in (0..len - 3072).step_by(7168) {
                    // The length and the position of this piece are multiples of the shortest block.
                    let piece = vec![at as u8; 1024];
                    file.write_all_at(&mut queue, &piece, at as u64).unwrap();
                    data[at..at + 1024].copy_from_slice(&piece);
                }
                file.sync(&mut queue).unwrap();
            });
        }
    });
    volume.close().unwrap();
    drop(volume);
    let volume = Volume::open(location(server)).unwrap();
    for (path, data) in &files {
        assert!(volume.read(path).unwrap() == *data, "{name}: {path}");
    }
    drop(volume);
    server.stop();
    let disk = server.disk();
    let checked = output("e2fsck", &["-fn", disk.to_str().unwrap()]);
    assert!(checked.status.success(), "{name}: {}", String::from_utf8_lossy(&checked.stdout));
    let cat = |path: &str| {
        let command = format!("cat {path}");
        run("debugfs", &["-R", &command, disk.to_str().unwrap()])
    };
    for (path, data) in &files {
        assert!(cat(path) == *data, "{name}: {path} by debugfs");
    }
}

#[test]
fn a_volume_on_an_export_is_one_for_linux() {
    require!([Need::Tool("nbdkit"), Need::Tool("qemu-nbd"), Need::Tool("e2fsck")]);
    let disk = vec![0; 64 << 20];
    for args in [
        "file DISK",
        "--filter=multi-conn file DISK multi-conn-mode=disable",
        "--filter=blocksize-policy file DISK blocksize-minimum=4096 blocksize-error-policy=error",
        "--filter=cache file DISK",
    ] {
        make_and_fill(&mut Server::nbdkit(args, &disk), args, None);
    }
    let args = "-t -e 8 -k SOCKET -f raw DISK";
    make_and_fill(&mut Server::start("qemu-nbd", args, &disk), args, None);
}

/// A volume can have blocks that are shorter than the unit of its server. The server accepts only requests whose length is a multiple of
/// its unit.
#[test]
fn blocks_shorter_than_the_server_takes_are_served() {
    require!([Need::Tool("nbdkit"), Need::Tool("e2fsck")]);
    let disk = vec![0; 64 << 20];
    for (unit, block) in [(2048, 1024), (4096, 1024), (4096, 2048), (65536, 1024), (65536, 4096)] {
        for connections in ["", "--filter=multi-conn"] {
            let args = format!(
                "{connections} --filter=blocksize-policy file DISK blocksize-minimum={unit} \
                 blocksize-preferred=65536 blocksize-error-policy=error"
            );
            let args = args.trim().to_owned()
                + if connections.is_empty() { "" } else { " multi-conn-mode=disable" };
            let name = format!("{args}, blocks of {block}");
            make_and_fill(&mut Server::nbdkit(&args, &disk), &name, block);
        }
    }
}

/// ironmap finds a partition of an export. A volume can be opened with options that contain another location.
#[test]
fn a_partition_of_an_export_is_found() {
    require!([Need::Tool("nbdkit"), Need::Tool("sfdisk")]);
    // The sector size of the partition table does not depend on the server's unit of requests.
    for unit in [1, 512, 4096, 65536] {
        let policy = format!("blocksize-minimum={unit} blocksize-preferred=65536");
        let args = format!("--filter=blocksize-policy file DISK {policy}");
        partition_of(&Server::nbdkit(&args, &vec![0; 64 << 20]));
    }
}

fn partition_of(server: &Server) {
    let disk = server.disk();
    let script = server.path("table");
    std::fs::write(&script, "label: gpt\nsize=16M\nsize=32M\n").unwrap();
    let made = std::process::Command::new(crate::common::command::find("sfdisk").unwrap())
        .arg(&disk)
        .stdin(std::fs::File::open(&script).unwrap())
        .output();
    assert!(made.unwrap().status.success());
    let second: Location = format!("{}@p2", location(server)).parse().unwrap();
    let how = LocationOptions::new().write(true).block_size(4096);
    let opened = second.open(&how).unwrap();
    assert_eq!(opened.device.size(), 32 << 20);
    assert!(opened.device.limits().logical_block <= 4096);
    ironmap::tools::make(&*opened.device, &MkfsOptions::new()).unwrap();
    drop(opened);
    let volume = VolumeOptions::new().write(true).open(&second).unwrap();
    volume.write("/file", b"content").unwrap();
    volume.close().unwrap();
    let kernel: Location = format!("{}@17825792", disk.display()).parse().unwrap();
    let volume = Volume::open(kernel).unwrap();
    assert_eq!(volume.read("/file").unwrap(), b"content");
    let third: Location = format!("{}@p3", location(server)).parse().unwrap();
    let error = third.open(&LocationOptions::new()).unwrap_err().to_string();
    assert!(error.contains("there is no partition 3"), "{error}");
}

/// The sectors of an integrity device can be shorter than the request units of the servers that store its data. The sectors can also be
/// longer than the blocks of the volume above the device. Both work in each mode of the device.
#[test]
fn an_integrity_device_lies_between_shorter_and_longer_blocks() {
    require!([Need::Tool("nbdkit"), Need::Tool("e2fsck")]);
    let policy = "blocksize-preferred=65536 blocksize-error-policy=error";
    for (unit, interval, mode) in [
        (4096, 512, Mode::Bitmap),
        (65536, 4096, Mode::Bitmap),
        (65536, 4096, Mode::Journal),
        (4096, 4096, Mode::Journal),
        (512, 4096, Mode::Bitmap),
    ] {
        let args = format!("--filter=blocksize-policy file DISK blocksize-minimum={unit} {policy}");
        let (mut data, tags) =
            (Server::nbdkit(&args, &vec![0; 32 << 20]), Server::nbdkit(&args, &vec![0; 32 << 20]));
        let both: Location =
            format!("integrity:{},{}", location(&data), location(&tags)).parse().unwrap();
        let halves = both.open_halves(Engine::Auto, true).unwrap();
        let options = FormatOptions::default().interval(interval).mode(mode);
        format(&halves.data.device, halves.tags.as_ref(), &options, &mut |_, _| {}).unwrap();
        drop(halves);
        let opened = both.open(&LocationOptions::new().write(true).block_size(1024)).unwrap();
        let options = MkfsOptions::new().block_size(1024);
        ironmap::tools::make(&*opened.device, &options).unwrap();
        opened.integrity.unwrap().device.close().unwrap();
        drop(opened.device);
        let volume = VolumeOptions::new().write(true).open(&both).unwrap();
        for number in 0..40_u8 {
            volume.write(format!("/{number}"), vec![number; 700 * number as usize]).unwrap();
        }
        volume.close().unwrap();
        drop(volume);
        let volume = Volume::open(&both).unwrap();
        for number in 0..40_u8 {
            let read = volume.read(format!("/{number}")).unwrap();
            assert!(read == vec![number; 700 * number as usize], "{unit} {interval}: {number}");
        }
        drop(volume);
        data.stop();
        let disk = data.disk();
        let checked = output("e2fsck", &["-fn", disk.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success(), "{unit} {interval}: {said}");
    }
}

/// An integrity device can store its data on an export of one server, and its tags (checksums) on an export of another server.
#[test]
fn an_integrity_device_lies_on_two_exports() {
    require!([Need::Tool("nbdkit")]);
    let (data, tags) = (Server::nbdkit("memory 32M", &[]), Server::nbdkit("memory 8M", &[]));
    let both: Location =
        format!("integrity:{},{}", location(&data), location(&tags)).parse().unwrap();
    let halves = both.open_halves(Engine::Auto, true).unwrap();
    let options = FormatOptions::default();
    format(&halves.data.device, halves.tags.as_ref(), &options, &mut |_, _| {}).unwrap();
    drop(halves);
    let opened = both.open(&LocationOptions::new().write(true)).unwrap();
    ironmap::tools::make(&*opened.device, &MkfsOptions::new()).unwrap();
    opened.integrity.unwrap().device.close().unwrap();
    drop(opened.device);
    let volume = VolumeOptions::new().write(true).open(&both).unwrap();
    volume.write("/file", b"content").unwrap();
    volume.close().unwrap();
    assert_eq!(Volume::open(&both).unwrap().read("/file").unwrap(), b"content");
}
