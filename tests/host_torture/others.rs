//! Processes that do not change the content of the tested files. One process fills the disk and frees space, so that other files reuse
//! blocks soon. Another process runs administration programs.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Duration;

use ironmap::bio::Buffer;
use rustix::fs::{FlockOperation, OFlags};

use super::common::command::output;
use super::common::process::pause;
use super::common::rng::Rng;
use super::common::skip::note_part;
use super::ledger::{FOREIGN, Ledger, content};
use super::{Kind, Setting, mutator};

/// The names of the counted actions: the actions of the administrator, and the filling of the disk. Only successes are counted.
pub(crate) const ACTS: [&str; 9] = [
    "defragment",
    "freeze and thaw",
    "sync",
    "drop caches",
    "grow",
    "dedupe against the immutable",
    "dedupe of the immutable refused",
    "dedupe of what the kernel serves",
    "fill the disk",
];
const FIRST: usize = mutator::OPERATIONS.len();

/// The minimum and the maximum free space in bytes. The free space is small, so that another file soon gets a freed block.
const SPARED: (u64, u64) = (4 << 20, 8 << 20);

/// Writes files that are never read, and removes them.
pub(crate) fn churn(setting: &Setting, ledger: &Ledger) {
    let mut rng = Rng::new(setting.seed ^ 0xc4);
    let mut files: Vec<u64> = Vec::new();
    let mut next = 0;
    while !ledger.stopped() {
        let fill = rng.below(64) == 0;
        let lock = File::open(&setting.ledger).expect("the ledger");
        if fill {
            rustix::fs::flock(&lock, FlockOperation::LockExclusive).expect("a lock");
        }
        while !ledger.stopped() && (fill || free(setting) > SPARED.0) {
            next += 1;
            files.push(next);
            match write_foreign(setting, &mut rng, next) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
                Err(error) => panic!("seed {:#x}: {error}", setting.seed),
            }
        }
        if fill {
            ledger.count(FIRST + ACTS.len() - 1);
        }
        while !files.is_empty() && free(setting) < SPARED.1 {
            let file = files.swap_remove(rng.below(files.len() as u64) as usize);
            // The file is missing if its creation failed on the full disk. So an error is ignored.
            let _ = std::fs::remove_file(setting.dir.join(format!("foreign.{file}")));
        }
    }
}

fn free(setting: &Setting) -> u64 {
    let free = rustix::fs::statvfs(&setting.dir).expect("the free space");
    free.f_bavail * free.f_frsize
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

/// Runs programs that move data or freeze the file system.
pub(crate) fn administer(setting: &Setting, ledger: &Ledger) {
    let mut rng = Rng::new(setting.seed ^ 0xad);
    let dir = setting.dir.to_str().expect("a plain path");
    let mut grown = 0;
    while !ledger.stopped() {
        let slot = setting.any_slot(&mut rng);
        let slot = slot.to_str().expect("a plain path");
        let act = rng.below(ACTS.len() as u64) as usize;
        let done = match ACTS[act] {
            "defragment" if setting.kind.is_xfs() => succeeds("xfs_fsr", &["-v", slot]),
            "defragment" => succeeds("e4defrag", &[slot]),
            "freeze and thaw" => freeze(setting.kind, dir),
            "sync" => succeeds("sync", &["--file-system", dir]),
            "drop caches" => std::fs::write("/proc/sys/vm/drop_caches", "1").is_ok(),
            "grow" if grown < 3 => {
                grown += 1;
                grow(setting, dir)
            }
            "dedupe against the immutable" if setting.kind.has_reflink() => {
                dedupe(setting, Setting::IMMUTABLE, false)
            }
            "dedupe of the immutable refused" if setting.kind.has_reflink() => {
                dedupe(setting, Setting::IMMUTABLE, true)
            }
            "dedupe of what the kernel serves" if setting.kind.has_reflink() => {
                dedupe(setting, Setting::DEDUPED, true)
            }
            _ => false,
        };
        if done {
            ledger.count(FIRST + act);
        }
        pause(Duration::from_millis(rng.below(100)));
    }
}

fn succeeds(program: &str, args: &[&str]) -> bool {
    output(program, args).status.success()
}

/// Freezes the file system for a short time. A shell thaws it, even if this process is killed.
fn freeze(kind: Kind, dir: &str) -> bool {
    let script = if kind.is_xfs() {
        "xfs_freeze -f $0 && sleep 0.03; xfs_freeze -u $0"
    } else {
        "fsfreeze --freeze $0 && sleep 0.03; fsfreeze --unfreeze $0"
    };
    succeeds("sh", &["-c", script, dir])
}

fn grow(setting: &Setting, dir: &str) -> bool {
    let image = OpenOptions::new().write(true).open(&setting.image).expect("the image");
    let size = image.metadata().expect("its size").len();
    image.set_len(size + (16 << 20)).expect("a sparse file");
    succeeds("losetup", &["--set-capacity", &setting.device])
        && if setting.kind.is_xfs() {
            succeeds("xfs_growfs", &["-d", dir])
        } else {
            let result = output("resize2fs", &[&setting.device]);
            let said = String::from_utf8_lossy(&result.stderr);
            if said.contains("Permission denied") {
                note_part("torture", "resize2fs", "needs CAP_SYS_RESOURCE");
            }
            result.status.success()
        }
}

/// Lets a copy of a file share the blocks of the file. With `reverse`, lets the file share the blocks of the copy. For an immutable file,
/// the call with `reverse` must fail.
fn dedupe(setting: &Setting, name: &str, reverse: bool) -> bool {
    let path = |name: &str| setting.dir.join(name).to_str().expect("a plain path").to_owned();
    let (original, copy) = (path(name), path("copy"));
    let len = std::fs::metadata(&original).expect("its size").len();
    // The copy fails if the disk is full.
    let copied =
        succeeds("cp", &["--reflink=never", &original, &copy]) && succeeds("sync", &[&copy]);
    let (from, to) = if reverse { (&copy, &original) } else { (&original, &copy) };
    let command = format!("dedupe {from} 0 0 {len}");
    let result = output("xfs_io", &["-r", "-c", &command, to]);
    let answer = String::from_utf8_lossy(&result.stderr) + String::from_utf8_lossy(&result.stdout);
    let _ = std::fs::remove_file(&copy);
    if !copied {
        return false;
    }
    if reverse && name == Setting::IMMUTABLE {
        assert!(answer.contains("not permitted"), "dedupe of an immutable file: {answer}");
        return true;
    }
    answer.contains(&format!("deduped {len}/{len}"))
}
