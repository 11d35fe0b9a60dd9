//! Runs other programs on a mounted volume, each for a short time. `./x mount` runs them longer.

use std::path::Path;
use std::process::Command;

use crate::sides::{Ours, check, require_mounts};
use crate::support::{Bench, succeed, text, tool};

/// The script succeeds on volumes with blocks of 4 KiB and of 1 KiB. e2fsck and the kernel then find the volumes sound.
#[test]
fn programs_work_on_a_mounted_volume() {
    require_mounts!("programs_work_on_a_mounted_volume");
    for block in ["4096", "1024"] {
        let bench = Bench::empty();
        let (image, dir) = (bench.image(), bench.path("mounted"));
        succeed(tool("mke2fs").args(["-qF", "-t", "ext4", "-b", block]).arg(&image).arg("256M"));
        let ours = Ours::mount(&image, &dir, "rw");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/programs.sh");
        let out =
            Command::new("bash").arg(script).args([dir.as_os_str(), "short".as_ref()]).output();
        let out = out.unwrap();
        for line in text(&out.stdout).lines().filter(|line| line.starts_with("SKIP ")) {
            crate::sides::skip("programs", &line["SKIP ".len()..]);
        }
        assert!(
            out.status.success(),
            "blocks of {block}: {}{}",
            text(&out.stdout),
            text(&out.stderr)
        );
        ours.unmount();
        check(&image);
    }
}
