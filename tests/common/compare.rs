//! Reports all differences between an oracle's view and ironmap's view.

use std::fmt::Debug;

use super::reads::hash;
use super::view::{ReadCall, Record, Subject, View};

/// The maximum number of differences to print.
const SHOWN: usize = 20;
/// The maximum length of a printed difference, in characters.
const LENGTH: usize = 1000;

/// Fails the test if ironmap's view differs from the oracle's view in any field that the oracle reports.
pub(crate) fn assert_same(expected: &View, actual: &View, what: &str) {
    let mut differences = Vec::new();
    for (path, expected) in expected {
        match actual.get(path) {
            None => differences.push(format!("{}: not found", shown(path))),
            Some(actual) => compare(&shown(path), expected, actual, &mut differences),
        }
    }
    for path in actual.keys().filter(|path| !expected.contains_key(*path)) {
        differences.push(format!("{}: should not be there", shown(path)));
    }
    report(&differences, what);
}

/// Fails the test if ironmap and the oracle read different bytes in any of the recorded reads.
pub(crate) fn assert_contents(expected: &View, subject: &mut Subject, numbers: &View, what: &str) {
    let mut differences = Vec::new();
    let mut buf = Vec::new();
    for (path, record) in expected.iter().filter(|(_, record)| !record.reads.is_empty()) {
        let number = numbers[path].inode.expect("a number");
        let file = subject.file(number);
        for (index, read) in record.reads.iter().enumerate() {
            let way = ReadCall::ALL[(number as usize + index) % ReadCall::ALL.len()];
            let place = || format!("{}: {} bytes at {}, {way:?}", shown(path), read.len, read.pos);
            match subject.read(&file, way, read, &mut buf) {
                Err(error) => differences.push(format!("{}: {error}", place())),
                Ok(()) if buf.len() != read.count => {
                    let came = buf.len();
                    differences.push(format!("{}: {came} bytes came, not {}", place(), read.count));
                }
                Ok(()) if hash(&buf) != read.hash => {
                    differences.push(format!("{}: other bytes", place()));
                }
                Ok(()) => {}
            }
        }
    }
    report(&differences, what);
}

fn compare(path: &str, expected: &Record, actual: &Record, differences: &mut Vec<String>) {
    macro_rules! fields {
        ($($field:ident),+) => {
            // The pattern names every field of a record. If a new field is missing here, the compiler reports an error.
            let Record { reads: _, $($field),+ } = expected;
            $(field(path, stringify!($field), $field.as_ref(), actual.$field.as_ref(), differences);)+
        };
    }
    fields!(
        inode, mode, links, owner, size, blocks, device, accessed, modified, changed, created,
        flags, generation, project, target, xattrs, map
    );
}

fn field<T: Debug + PartialEq>(
    path: &str,
    name: &str,
    expected: Option<&T>,
    actual: Option<&T>,
    differences: &mut Vec<String>,
) {
    if expected.is_some() && expected != actual {
        let text = format!("{path}: {name} is {actual:?}, not {expected:?}");
        // A map can have thousands of pieces. If all pieces were printed, they would hide the other differences.
        differences.push(text.chars().take(LENGTH).collect());
    }
}

fn report(differences: &[String], what: &str) {
    let list = differences[..differences.len().min(SHOWN)].join("\n  ");
    assert!(differences.is_empty(), "{what}: {} differences:\n  {list}", differences.len());
}

fn shown(path: &[u8]) -> String {
    format!("/{}", path.escape_ascii())
}
