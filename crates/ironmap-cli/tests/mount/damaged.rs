//! Mounts of damaged volumes.

use std::fs::{self, File};

use crate::sides::{Ours, check, require_mounts};
use crate::support::{Bench, succeed, tool};

const EUCLEAN: i32 = 117;

fn volume(requests: &[&str]) -> Bench {
    let bench = Bench::empty();
    succeed(tool("mke2fs").args(["-qF", "-t", "ext4"]).arg(bench.image()).arg("64M"));
    for request in requests {
        bench.debugfs(request);
    }
    bench
}

/// A name that leads to the journal is no door to it: what a listing tells of it is no more than what a lookup does.
#[test]
fn the_journal_cannot_be_opened_by_a_name() {
    require_mounts!("the_journal_cannot_be_opened_by_a_name");
    let bench = volume(&["link <8> journal"]);
    let dir = bench.path("mounted");
    let ours = Ours::mount(&bench.image(), &dir, "rw");
    // The kernel takes what a listing tells of an entry for a lookup of it.
    let _ = fs::read_dir(&dir).unwrap().count();
    let opened = File::options().write(true).truncate(true).open(dir.join("journal"));
    assert_eq!(opened.unwrap_err().raw_os_error(), Some(EUCLEAN));
    ours.unmount();
    bench.debugfs("unlink journal");
    check(&bench.image());
}
