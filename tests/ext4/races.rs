//! Operations by path, while another thread replaces the files of the paths. A name that always exists is always found, and the number of a
//! removed directory does not lead into another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ironmap::device::Ram;
use ironmap::fs::Follow;
use ironmap::fs::ext4::MkfsOptions;
use ironmap::prelude::*;

const ROUNDS: usize = 1000;

fn volume() -> Volume {
    let ram = Arc::new(Ram::new(32 << 20));
    ironmap::tools::make(&*ram, &MkfsOptions::new()).unwrap();
    VolumeOptions::new().write(true).open_on(ram).unwrap()
}

/// Runs `other` again and again while `run` runs.
fn beside(other: impl Fn(usize) + Send, run: impl FnOnce()) {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| (0..).take_while(|_| !stop.load(Ordering::Relaxed)).for_each(other));
        let _stop = Stop(&stop);
        run();
    });
}

fn replace(volume: &Volume, round: usize) {
    volume.write("new", round.to_string()).unwrap();
    volume.rename("new", "file").unwrap();
    volume.symlink(format!("/file{round:0>100}"), "new").unwrap();
    volume.rename("new", "link").unwrap();
    volume.create_dir("new").unwrap();
    volume.rename("new", "dir").unwrap();
}

type Operation = fn(&Volume) -> ironmap::Result<()>;

/// Each operation by path finds a file, and the file that it finds is whole.
#[test]
fn a_replaced_name_is_always_found() {
    let volume = volume();
    replace(&volume, 0);
    let by_path: [(&str, Operation); 9] = [
        ("open", |volume| volume.open("file").map(drop)),
        ("write", |volume| volume.open_with("file", FileOptions::new().write(true)).map(drop)),
        ("create", |volume| {
            let options = FileOptions::new().write(true).create(true);
            volume.open_with("file", options).map(drop)
        }),
        ("read", |volume| {
            let text = String::from_utf8(volume.read("file")?).unwrap();
            assert!(text.parse::<usize>().is_ok(), "{text:?}");
            Ok(())
        }),
        ("metadata", |volume| volume.metadata("file").map(drop)),
        ("read_link", |volume| {
            let target = volume.read_link("link")?;
            assert_eq!(target.as_os_str().len(), 105);
            Ok(())
        }),
        // As in Linux, the entries of a removed directory cannot be read. So only the start of a listing must succeed.
        ("read_dir", |volume| volume.read_dir("dir").map(drop)),
        ("in a directory", |volume| volume.exists("dir/none").map(drop)),
        ("xattrs", |volume| {
            let (_held, inode) = volume.fs().hold_path(b"file", Follow::All)?;
            inode.xattrs().map(drop)
        }),
    ];
    beside(
        |round| replace(&volume, round),
        || {
            for _ in 0..ROUNDS {
                for (name, run) in by_path {
                    run(&volume).unwrap_or_else(|error| panic!("{name}: {error}"));
                }
            }
        },
    );
}

/// Several threads can create the same directories.
#[test]
fn directories_are_made_by_several_threads() {
    let volume = volume();
    for round in 0..ROUNDS {
        let path = format!("{round}/a/b");
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| volume.create_dir_all(&path).unwrap());
            }
        });
        volume.remove_dir_all(round.to_string()).unwrap();
    }
}

/// A file that is created in a directory, which another thread removes, does not appear in the directory that gets the number.
#[test]
fn a_new_file_does_not_move_to_another_directory() {
    let volume = volume();
    beside(
        |_| {
            volume.create_dir("first").unwrap();
            volume.remove_dir_all("first").unwrap();
            volume.create_dir("second").unwrap();
            let found: Vec<_> = volume.read_dir("second").unwrap().map(Result::unwrap).collect();
            volume.remove_dir_all("second").unwrap();
            assert!(found.is_empty(), "the second directory has {found:?}");
        },
        || {
            // Most attempts find no directory. If the other thread has failed, no attempt finds one.
            let (mut made, begin) = (0, Instant::now());
            while made < ROUNDS && begin.elapsed() < Duration::from_secs(60) {
                match volume.create_dir("first/new") {
                    Ok(()) => made += 1,
                    Err(error) => assert!(
                        matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Exists),
                        "{error}"
                    ),
                }
            }
            assert!(made > 0);
        },
    );
}
