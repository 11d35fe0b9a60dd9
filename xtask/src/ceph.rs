//! A volume on a Ceph cluster of this machine, while its parts are killed (tests/ceph).

use std::path::Path;

use crate::shell::{Result, command, has, is_root, run, say, skip};

/// Programs that it needs, beside those of other tests.
const PROGRAMS: [&str; 4] = ["ceph-mon", "ceph-osd", "rbd", "qemu-nbd"];

/// So many rounds of kills. Skipped where Ceph is not installed.
pub(crate) fn test(ironmap: &Path, rounds: &str) -> Result {
    say("ceph");
    if !is_root()? {
        return skip("ceph: needs root");
    }
    if let Some(missing) = PROGRAMS.into_iter().find(|program| !has(program)) {
        return skip(&format!("ceph: needs the program {missing}"));
    }
    run(command("tests/ceph/run.sh").arg(ironmap).arg(rounds))
}
