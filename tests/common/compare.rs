//! Every difference between what an oracle says and what ironmap says.

use std::fmt::Debug;

use super::reads::hash;
use super::view::{Record, Subject, View};

/// More differences than this say no more.
const SHOWN: usize = 20;
/// How much of a difference is shown.
const LENGTH: usize = 1000;

/// Fails the test unless ironmap sees what the oracle saw, in every field that the oracle knows.
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

/// Fails the test unless every read that the oracle did gives the same bytes.
pub(crate) fn assert_contents(expected: &View, subject: &mut Subject, numbers: &View, what: &str) {
    let mut differences = Vec::new();
    let mut buf = Vec::new();
    for (path, record) in expected.iter().filter(|(_, record)| !record.reads.is_empty()) {
        let file = subject.file(numbers[path].inode.expect("a number"));
        for (index, read) in record.reads.iter().enumerate() {
            // Every other buffer begins at an odd address.
            let skew = index % 2;
            buf.clear();
            buf.resize(read.len + skew, 0xa5);
            let result = subject.read(&file, &mut buf[skew..], read.pos);
            let place = || format!("{}: {} bytes at {}", shown(path), read.len, read.pos);
            match result {
                Err(error) => differences.push(format!("{}: {error}", place())),
                Ok(count) if count != read.count => {
                    differences.push(format!(
                        "{}: {count} bytes came, not {}",
                        place(),
                        read.count
                    ));
                }
                Ok(count) if hash(&buf[skew..skew + count]) != read.hash => {
                    differences.push(format!("{}: other bytes", place()));
                }
                Ok(_) => {}
            }
        }
    }
    report(&differences, what);
}

fn compare(path: &str, expected: &Record, actual: &Record, differences: &mut Vec<String>) {
    macro_rules! fields {
        ($($field:ident),+) => {
            // Names every field, so that a new one cannot be forgotten here.
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
        // A map of thousands of pieces would bury the rest.
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
