//! Operations by path, while another thread replaces the files of these paths. A name that always exists is always found. An access by the
//! inode number of a removed directory never reaches another directory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ironmap::device::Ram;
use ironmap::fs::ext4::MkfsOptions;
use ironmap::fs::{Follow, SetAttributes, SetXattr};
use ironmap::prelude::*;

const ROUNDS: usize = 1000;

fn volume() -> Volume {
    let ram = Arc::new(Ram::new(32 << 20));
    ironmap::tools::make(&*ram, &MkfsOptions::new()).unwrap();
    VolumeOptions::new().write(true).open_on(ram).unwrap()
}

/// Calls `other` repeatedly in another thread while `run` runs.
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

/// Each operation by path finds a file, and this file is complete.
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
        // As in Linux, the entries of a removed directory cannot be read. A listing must start without an error, and may end with one.
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

/// A file is created in a directory while another thread removes the directory. The file does not appear in the next directory with the
/// same inode number.
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
            // Most attempts fail because the directory does not exist at that moment. If the other thread has failed, no attempt succeeds,
            // and the time limit ends the loop.
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

/// Fails the test if the threads of `run` wait for each other without end.
fn in_time(run: impl FnOnce() + Send + 'static) {
    let (ended, end) = mpsc::channel();
    let thread = thread::spawn(move || {
        run();
        let _ = ended.send(());
    });
    if let Err(mpsc::RecvTimeoutError::Timeout) = end.recv_timeout(Duration::from_secs(60)) {
        panic!("the threads wait for each other");
    }
    thread.join().unwrap();
}

fn has_kind(result: ironmap::Result<()>, kinds: &[ErrorKind]) {
    if let Err(error) = result {
        assert!(kinds.contains(&error.kind()), "{error}");
    }
}

/// Tests the lock order. A directory is locked before a file with a name in it, even if one rename locks both. A directory is locked before
/// the directories below it.
#[test]
fn threads_do_not_wait_for_each_other() {
    in_time(|| {
        let volume = volume();
        volume.write("file", "").unwrap();
        volume.create_dir_all("dir/below").unwrap();
        volume.write("dir/below/file", "").unwrap();
        beside(
            |_| {
                has_kind(volume.remove_dir("dir/below"), &[ErrorKind::NotEmpty]);
                volume.hard_link("file", "dir/file").unwrap();
                volume.remove_file("dir/file").unwrap();
            },
            || {
                for _ in 0..ROUNDS {
                    has_kind(volume.rename("file", "dir"), &[ErrorKind::IsADirectory]);
                    has_kind(volume.rename("dir", "file"), &[ErrorKind::NotADirectory]);
                    has_kind(volume.hard_link("dir", "dir/below/x"), &[ErrorKind::NotPermitted]);
                }
            },
        );
    });
}

/// Three threads lock directories in a circle. One thread locks a directory and then its entry. The other threads lock in the order of the
/// inode numbers.
#[test]
fn threads_do_not_wait_in_a_circle() {
    in_time(|| {
        let volume = volume();
        let mut made = ["1", "2", "3"];
        made.iter().for_each(|name| volume.create_dir(name).unwrap());
        made.sort_by_key(|name| volume.metadata(name).unwrap().inode);
        let [below, other, dir] = made;
        let below = format!("{dir}/{below}");
        volume.rename(made[0], &below).unwrap();
        for path in [format!("{below}/file"), format!("{below}/stays"), format!("{other}/stays")] {
            volume.write(path, "").unwrap();
        }
        let (here, there) = (format!("{below}/file"), format!("{other}/file"));
        beside(
            |_| has_kind(volume.remove_dir(&below), &[ErrorKind::NotEmpty]),
            || {
                beside(
                    |_| has_kind(volume.rename(other, dir), &[ErrorKind::NotEmpty]),
                    || {
                        for _ in 0..ROUNDS {
                            volume.rename(&here, &there).unwrap();
                            volume.rename(&there, &here).unwrap();
                        }
                    },
                );
            },
        );
    });
}

/// Another thread replaces and removes files with one name. `create_new` of this name opens the file that it has created, and never a file
/// of the other thread.
#[test]
fn a_new_file_is_the_callers() {
    let volume = volume();
    let gone = [ErrorKind::NotFound];
    beside(
        |_| {
            volume.write("other", "other").unwrap();
            volume.rename("other", "file").unwrap();
            has_kind(volume.remove_file("file"), &gone);
        },
        || {
            let mut made = 0;
            while made < ROUNDS {
                match volume.open_with("file", FileOptions::new().write(true).create_new(true)) {
                    Ok(file) => {
                        assert_eq!(file.size(), 0, "this is the file of the other thread");
                        made += 1;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
                        has_kind(volume.remove_file("file"), &gone);
                    }
                }
            }
        },
    );
}

/// `remove_dir_all` removes a tree while another thread removes files in this tree.
#[test]
fn a_tree_is_removed_by_two_threads() {
    let volume = volume();
    let gone = [ErrorKind::NotFound, ErrorKind::NotADirectory];
    beside(
        |_| {
            has_kind(volume.remove_file("tree/file"), &gone);
            has_kind(volume.remove_dir("tree/dir"), &gone);
            has_kind(volume.remove_dir_all("tree/tree"), &gone);
        },
        || {
            for _ in 0..ROUNDS {
                volume.create_dir("tree").unwrap();
                volume.write("tree/file", "").unwrap();
                volume.create_dir("tree/dir").unwrap();
                has_kind(volume.create_dir_all("tree/tree/tree"), &gone);
                volume.remove_dir_all("tree").unwrap();
            }
        },
    );
}

/// The inode of a removed file is the last free inode. It can be allocated while another thread accesses it by its number.
#[test]
fn the_last_inode_is_allocated_again() {
    let ram = Arc::new(Ram::new(8 << 20));
    ironmap::tools::make(&*ram, &MkfsOptions::new().inodes(64)).unwrap();
    let volume = VolumeOptions::new().write(true).open_on(ram).unwrap();
    let mut count = 0;
    while volume.symlink("target", format!("link{count}")).is_ok() {
        count += 1;
    }
    let number = volume.symlink_metadata("link0").unwrap().inode;
    beside(
        |_| has_kind(volume.fs().inspect(number, |_| Ok(())), &[ErrorKind::NotFound]),
        || {
            for _ in 0..10 * ROUNDS {
                volume.remove_file("link0").unwrap();
                // The inode becomes free when the other thread no longer accesses it.
                let made = || volume.symlink("target", "link0").map(drop);
                let is_busy = |made: &ironmap::Result<()>| {
                    made.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace)
                };
                let mut tries = std::iter::repeat_with(made).skip_while(is_busy);
                tries.next().unwrap().unwrap();
            }
        },
    );
}

/// A rename moves a file into a directory while another thread removes this directory and its parent. The rename then fails because the
/// directory does not exist. It does not report corruption.
#[test]
fn a_rename_beside_removed_parents_finds_nothing() {
    let volume = volume();
    volume.create_dir("dir").unwrap();
    volume.write("dir/file", "").unwrap();
    let gone = [ErrorKind::NotFound];
    beside(
        |_| {
            volume.create_dir_all("parent/child").unwrap();
            volume.remove_dir_all("parent").unwrap();
        },
        || {
            for _ in 0..5 * ROUNDS {
                has_kind(volume.rename("dir/file", "parent/child/file"), &gone);
                has_kind(volume.rename("parent/child/file", "dir/file"), &gone);
                if !volume.exists("dir/file").unwrap() {
                    volume.write("dir/file", "").unwrap();
                }
            }
        },
    );
    volume.sync().unwrap();
}

/// The number of a removed file can be reused for an internal inode of the file system, for example for an attribute value. No operation by
/// number changes such an inode.
#[test]
fn the_inodes_of_the_file_system_itself_are_not_changed() {
    let volume = volume();
    let fs = volume.fs();
    let (journal, writer) = (InodeNo(8), fs.writable().unwrap());
    let changes = [
        writer.set_attributes(journal, &SetAttributes::new().permissions(0o755)),
        writer.truncate(journal, 0),
        writer.setxattr(journal, b"user.name", b"value", SetXattr::Any),
        writer.link(journal, fs.root(), b"name"),
    ];
    for change in changes {
        assert_eq!(change.unwrap_err().kind(), ErrorKind::NotPermitted);
    }
}

/// A panic in a program drops and so closes the files of the program. The closes change the volume. The volume stays writable, because each
/// of these changes is complete.
#[test]
fn a_panic_of_the_program_is_no_error_of_the_volume() {
    let volume = volume();
    thread::scope(|scope| {
        let program = scope.spawn(|| {
            let _file = volume.open_with("file", FileOptions::new().write(true).create(true));
            volume.remove_file("file").unwrap();
            panic!("the program fails");
        });
        assert!(program.join().is_err());
    });
    volume.write("file", "content").unwrap();
    volume.sync().unwrap();
}
