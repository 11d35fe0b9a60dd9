//! Processes that change no file's content: one fills the disk and frees it, so that blocks come to other files soon; one runs the
//! programs of an administrator.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Duration;

use ironmap::bio::Buffer;
use rustix::fs::{FlockOperation, OFlags};

use super::common::command::output;
use super::common::rng::Rng;
use super::ledger::{FOREIGN, Ledger, content};
use super::{Kind, Setting};

/// Space that is left to the others, in bytes.
const SPARED: u64 = 12 << 20;

/// Writes files that nobody reads, and removes them.
pub(crate) fn churn(setting: &Setting, ledger: &Ledger) {
    let mut rng = Rng::new(setting.seed ^ 0xc4);
    let mut files: Vec<u64> = Vec::new();
    let mut next = 0;
    while !ledger.stopped() {
        let fill = rng.below(8) == 0;
        let lock = File::open(&setting.ledger).expect("the ledger");
        if fill {
            rustix::fs::flock(&lock, FlockOperation::LockExclusive).expect("a lock");
        }
        while !ledger.stopped() {
            let free = rustix::fs::statvfs(&setting.dir).expect("the free space");
            if !fill && free.f_bavail * free.f_frsize < SPARED {
                break;
            }
            next += 1;
            files.push(next);
            match write_foreign(setting, &mut rng, next) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
                Err(error) => panic!("seed {:#x}: {error}", setting.seed),
            }
        }
        drop(lock);
        for _ in 0..files.len() / 2 {
            let file = files.swap_remove(rng.below(files.len() as u64) as usize);
            // Where the disk was full it may not be there.
            let _ = std::fs::remove_file(setting.dir.join(format!("foreign.{file}")));
        }
    }
}

fn write_foreign(setting: &Setting, rng: &mut Rng, number: u64) -> io::Result<()> {
    let direct = rng.below(2) == 0;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    if direct {
        options.custom_flags(OFlags::DIRECT.bits() as i32);
    }
    let file = options.open(setting.dir.join(format!("foreign.{number}")))?;
    let bytes = content(FOREIGN, 0..(rng.below(256) + 16) * 4096, number & 0xff_ffff);
    let mut buffer = Buffer::aligned(bytes.len()).map_err(io::Error::other)?;
    buffer.copy_from_slice(&bytes);
    file.write_all_at(&buffer, 0)?;
    if direct { Ok(()) } else { file.sync_data() }
}

/// Runs programs that move data, or hold the whole file system up.
pub(crate) fn administer(setting: &Setting, ledger: &Ledger) {
    let mut rng = Rng::new(setting.seed ^ 0xad);
    let dir = setting.dir.to_str().expect("a plain path");
    let mut grown = 0;
    while !ledger.stopped() {
        let slot = setting.any_slot(&mut rng);
        let slot = slot.to_str().expect("a plain path");
        match rng.below(10) {
            0..=3 if setting.kind.is_xfs() => drop(output("xfs_fsr", &["-v", slot])),
            0..=3 => drop(output("e4defrag", &[slot])),
            4 => freeze(setting.kind, dir),
            5 => drop(output("sync", &["--file-system", dir])),
            6 => std::fs::write("/proc/sys/vm/drop_caches", "1").expect("root"),
            7 if grown < 3 => {
                grown += 1;
                grow(setting, dir);
            }
            _ if setting.kind.has_reflink() => dedupe(setting),
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(rng.below(150)));
    }
}

/// Stops all changes for a moment. The shell thaws even where this process is killed.
fn freeze(kind: Kind, dir: &str) {
    let script = if kind.is_xfs() {
        "xfs_freeze -f $0; sleep 0.03; xfs_freeze -u $0"
    } else {
        "fsfreeze --freeze $0; sleep 0.03; fsfreeze --unfreeze $0"
    };
    output("sh", &["-c", script, dir]);
}

fn grow(setting: &Setting, dir: &str) {
    let image = OpenOptions::new().write(true).open(&setting.image).expect("the image");
    let size = image.metadata().expect("its size").len();
    image.set_len(size + (16 << 20)).expect("a sparse file");
    output("losetup", &["--set-capacity", &setting.device]);
    if setting.kind.is_xfs() {
        output("xfs_growfs", &["-d", dir]);
    } else {
        output("resize2fs", &[&setting.device]);
    }
}

/// Lets files share the blocks of the immutable one; nobody can make the immutable one share those of another.
fn dedupe(setting: &Setting) {
    let path = |name: &str| setting.dir.join(name).to_str().expect("a plain path").to_owned();
    let (immutable, deduped, copy) =
        (path(Setting::IMMUTABLE), path(Setting::DEDUPED), path("copy"));
    for original in [&immutable, &deduped] {
        let args = ["--reflink=never", original, &copy];
        if !output("cp", &args).status.success() {
            // The disk is full.
            continue;
        }
        let len = std::fs::metadata(original).expect("its size").len();
        let share = |flags: &str, from: &str, to: &str| {
            let command = format!("dedupe {from} 0 0 {len}");
            let result = output("xfs_io", &[flags, "-c", &command, to]);
            String::from_utf8_lossy(&result.stderr).into_owned()
                + &String::from_utf8_lossy(&result.stdout)
        };
        share("-x", original, &copy);
        let answer = share("-r", &copy, original);
        if *original == immutable {
            assert!(answer.contains("not permitted"), "dedupe of an immutable file: {answer}");
        }
    }
    let _ = std::fs::remove_file(&copy);
}
