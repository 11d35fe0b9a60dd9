//! Tests the table of counts that lab/table.sh makes.

use std::process::Command;

/// A row contains the counts per read. They are the counts of one window: the window with the lowest sum of the program's count and the
/// kernel's count.
#[test]
fn a_row_has_the_least_of_its_windows() {
    let console = "lab: Linux 6.1\nreads psync /dev/a 0 plain 10\nreads psync /dev/a 0 plain 10\n\
                   reads io_uring /dev/a 1 fixed 10\nlab: status 0\n";
    let dir = env!("CARGO_TARGET_TMPDIR");
    let [console_file, counts_file] = ["console", "counts"].map(|name| format!("{dir}/{name}"));
    std::fs::write(&console_file, console).unwrap();
    std::fs::write(&counts_file, "500 2000\n400 1000\n30 40\n").unwrap();
    let table = concat!(env!("CARGO_MANIFEST_DIR"), "/../table.sh");
    let output = Command::new(table).args([console_file, counts_file]).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "| engine | target | depth | buffers | program | kernel | together |\n\
         |---|---|--:|---|--:|--:|--:|\n\
         | psync | /dev/a | 0 | plain | 40 | 100 | 140 |\n\
         | io_uring | /dev/a | 1 | fixed | 3 | 4 | 7 |\n"
    );
}
