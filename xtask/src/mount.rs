//! Mounted volumes, for long (docs/TESTING.md), and their speed.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::shell::{
    Result, command, fail, ironmap, or_install, output, run, say, spawn, target, wait,
};

pub(crate) fn all() -> Result {
    programs()?;
    databases()?;
    random()
}

/// Programs that nobody here wrote, on volumes of every kind.
pub(crate) fn programs() -> Result {
    let ironmap = ironmap()?;
    let fsx = fsx();
    let scratch = std::env::temp_dir().join(format!("ironmap-test-{}-mount", std::process::id()));
    let image = scratch.join("image");
    let mounted = scratch.join("mounted");
    fs::create_dir_all(&mounted)?;
    // A copy of /usr is the most that there is at a time.
    let usr = output(&mut command("du -smx /usr"))?;
    let usr: u64 = usr.split_whitespace().next().and_then(|size| size.parse().ok()).unwrap_or(0);
    for block in ["4096", "1024"] {
        for options in ["rw", "writeback_cache"] {
            say(format!("programs on blocks of {block}, -o {options}"));
            File::create(&image)?.set_len((usr * 5 / 4 + 4096) << 20)?;
            run(command("mke2fs -qF -t ext4 -N 400000 -b").arg(block).arg(&image))?;
            let mut mount = Command::new(&ironmap);
            mount.args(["mount", "-f", "--tell", "-o", options]).args([&image, &mounted]);
            run_programs(&mut mount, &mounted, &fsx)?;
            let e2fsck = command("e2fsck -fn").arg(&image).stdout(Stdio::null()).status()?;
            if !e2fsck.success() {
                return fail("e2fsck finds errors");
            }
            run(command("mount -o loop,ro").args([&image, &mounted]))?;
            run(command("umount").arg(&mounted))?;
        }
    }
    Ok(fs::remove_dir_all(scratch)?)
}

/// Runs the programs on a mount, and waits until the volume is closed.
fn run_programs(mount: &mut Command, mounted: &Path, fsx: &Path) -> Result {
    let mut daemon = spawn(mount.stdout(Stdio::piped()))?;
    // It tells that it is mounted, and then nothing more.
    let told = daemon.stdout.as_mut().map(|stdout| stdout.read_exact(&mut [0]));
    if !matches!(told, Some(Ok(()))) {
        return fail("it is not mounted");
    }
    let mut programs = command("crates/ironmap-cli/tests/mount/programs.sh");
    run(programs.arg(mounted).arg("long").arg(fsx))?;
    run(command("umount").arg(mounted))?;
    wait(daemon)
}

/// fsx, installed into a directory of its own, or an empty path.
fn fsx() -> PathBuf {
    let (root, fsx) = (target("tools"), target("tools/bin/fsx"));
    let install = format!(
        "cargo install --quiet --locked --debug fsx --root {0} --target-dir {0}",
        root.display()
    );
    let ready = format!("test -x {}", fsx.display());
    if or_install(&ready, "fsx, with cargo", &install) { fsx } else { PathBuf::new() }
}

/// Databases whose daemon is killed.
pub(crate) fn databases() -> Result {
    let ironmap = ironmap()?;
    say("databases whose daemon is killed");
    run(command("crates/ironmap-cli/tests/mount/killed.sh").arg(ironmap).arg("long"))
}

/// Random operations with fsx and faults.
pub(crate) fn random() -> Result {
    let ironmap = ironmap()?;
    say("random operations, fsx, faults");
    let mut tests = command("cargo test -p ironmap-cli --test mount --");
    tests.args(["--nocapture", "--test-threads=2", "random", "fsx", "faults"]);
    run(tests.env("IRONMAP_BIN", ironmap).env("IRONMAP_MOUNT_LONG", "1"))
}

/// A mounted volume beside fuse2fs and the kernel's ext4.
pub(crate) fn speed(args: &[&str]) -> Result {
    run(command("crates/ironmap-cli/tests/mount/speed.sh").arg(ironmap()?).args(args))
}
