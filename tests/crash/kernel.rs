//! Workloads run by the kernel's ext4 on a device that is recorded: what it leaves behind is recovered as it would do it, and
//! the rules that are held against ironmap hold for Linux.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;

use ironmap::device::{Log, Ram, Record};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::common::command::run;
use crate::common::image::scratch;
use crate::history::{History, Op, written};
use crate::watched::Watched;

/// A file system mounted by the kernel on a loop device over a watched file.
struct Mount {
    mount: PathBuf,
    node: String,
    mounted: bool,
}

impl Mount {
    fn new(file: &Watched, mount: PathBuf, options: &str) -> Self {
        std::fs::create_dir(&mount).expect("a mount point");
        let path = file.path().to_str().expect("a plain path");
        let node = run("losetup", &["--find", "--show", path]);
        let node = String::from_utf8(node).expect("a name").trim().to_owned();
        let mut mounted = Self { mount, node, mounted: false };
        run(
            "mount",
            &[
                "-t",
                "ext4",
                "-o",
                options,
                &mounted.node,
                mounted.mount.to_str().expect("a plain path"),
            ],
        );
        mounted.mounted = true;
        mounted
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            crate::common::command::output("umount", &[&self.mount]);
        }
        crate::common::command::output("losetup", &["--detach", &self.node]);
    }
}

/// What the kernel does to a device that holds `base` when it mounts it, runs the operations and unmounts it.
pub(crate) fn record(base: &Ram, history: &History, options: &str) -> Log {
    let dir = scratch();
    let record = Arc::new(Record::new(Arc::new(base.snapshot())));
    let file = Watched::new(record.clone(), &dir.path().join("device"));
    let mount = Mount::new(&file, dir.path().join("mnt"), options);
    let mut open = Vec::new();
    for (number, op) in (1..).zip(&history.ops) {
        carry_out(op, number, &mount.mount, &mut open)
            .unwrap_or_else(|error| panic!("{op:?}: {error}"));
        record.mark(number as u64);
    }
    drop(open);
    drop(mount);
    drop(file);
    record.log()
}

fn carry_out(
    op: &Op,
    number: usize,
    root: &std::path::Path,
    open: &mut Vec<File>,
) -> std::io::Result<()> {
    let at = |path: &String| root.join(path);
    match op {
        Op::Create(path) => File::create_new(at(path)).map(drop),
        Op::Mkdir(path) => std::fs::create_dir(at(path)),
        Op::Symlink { path, target } => symlink(target, at(path)),
        Op::Link { path, to } => std::fs::hard_link(at(path), at(to)),
        Op::Unlink { path, open: false } => std::fs::remove_file(at(path)),
        Op::Unlink { path, open: true } => {
            // What is no file cannot be held.
            let is_file = std::fs::symlink_metadata(at(path))?.is_file();
            open.extend(is_file.then(|| File::open(at(path))).transpose()?);
            std::fs::remove_file(at(path))
        }
        Op::Rmdir(path) => std::fs::remove_dir(at(path)),
        Op::Rename { from, to } => std::fs::rename(at(from), at(to)),
        Op::Exchange { one, other } => {
            Ok(renameat_with(CWD, at(one), CWD, at(other), RenameFlags::EXCHANGE)?)
        }
        Op::Write { path, pos, len } => {
            let data: Vec<_> = (*pos..pos + len).map(|pos| written(number, pos)).collect();
            OpenOptions::new().write(true).open(at(path))?.write_all_at(&data, *pos as u64)
        }
        Op::Truncate { path, size } => {
            OpenOptions::new().write(true).open(at(path))?.set_len(*size as u64)
        }
        Op::Fsync(path) => File::open(at(path))?.sync_all(),
        Op::Sync => Ok(rustix::fs::syncfs(File::open(root)?)?),
    }
}
