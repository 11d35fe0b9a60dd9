//! Runs e2fsck on images. On some images e2fsck runs endlessly.

use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::command::find;
use crate::common::image::Image;

/// The maximum number of bytes of output. Every valid run prints less. On some volumes `e2fsck -n` restarts endlessly, and its output
/// exceeds this limit.
const MOST: u64 = 4 << 20;
/// The position of the superblock, the offset of a feature word in it, and the feature bit that means that the journal needs recovery.
const SUPERBLOCK: u64 = 1024;
const FEATURE_INCOMPAT: u64 = 0x60;
const LAST_ORPHAN: u64 = 0xE8;
const RECOVER: u32 = 4;

/// The version of e2fsck.
pub(crate) fn version() -> String {
    let program = find("e2fsck").expect("e2fsck is installed");
    let out = Command::new(program).arg("-V").output().expect("e2fsck runs");
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// The output of e2fsck.
pub(crate) struct Verdict {
    pub(crate) clean: bool,
    pub(crate) text: String,
}

fn run(args: &[&str], path: &Path) -> (i32, String) {
    let program = find("e2fsck").expect("e2fsck is installed");
    let mut command = Command::new(program);
    command.args(args).arg(path).env("LC_ALL", "C").env("TZ", "UTC");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("e2fsck runs");
    let mut said = Vec::new();
    let mut output = child.stdout.take().unwrap().take(MOST);
    output.read_to_end(&mut said).expect("the output of e2fsck");
    if said.len() as u64 == MOST {
        // The output has reached the limit, so e2fsck restarts endlessly.
        child.kill().expect("end e2fsck");
    }
    drop(output);
    let code = child.wait().expect("e2fsck ends").code().unwrap_or(-1);
    (code, String::from_utf8_lossy(&said).into_owned())
}

/// Whether the journal needs recovery or the volume has orphans.
fn is_unsettled(image: &Image) -> bool {
    let file = std::fs::File::open(image.path()).expect("the image");
    let word = |at: u64| {
        let mut word = [0; 4];
        file.read_exact_at(&mut word, SUPERBLOCK + at).map_or(0, |()| u32::from_le_bytes(word))
    };
    word(FEATURE_INCOMPAT) & RECOVER != 0 || word(LAST_ORPHAN) != 0
}

/// Lines that e2fsck prints when it recovers a journal and finds no fault.
const RECOVERED: [&str; 5] = [
    "recovering journal",
    "Clearing orphaned",
    "Truncating orphaned",
    "Backing up journal",
    "Moving journal",
];

/// Checks the volume with `e2fsck -fn`. If the journal needs recovery, e2fsck first recovers a copy of the volume, and then checks this
/// copy.
pub(crate) fn look(image: &Image) -> Verdict {
    if !is_unsettled(image) {
        return verdict(run(&["-fn"], &image.path()));
    }
    let copy = image.copy();
    let (code, said) = run(&["-y", "-E", "journal_only"], &copy.path());
    let expected =
        |line: &str| line.is_empty() || RECOVERED.iter().any(|known| line.contains(known));
    let sound = code & !1 == 0 && said.lines().all(expected);
    let mut found = verdict(run(&["-fn"], &copy.path()));
    found.clean &= sound;
    if !sound {
        found.text = format!("the journal, code {code}: {}\n{}", head(&said), found.text);
    }
    found
}

/// Lets e2fsck repair the volume. Returns the faults that remain.
pub(crate) fn repair(image: &Image) -> Verdict {
    // A repair may reveal more faults, so e2fsck runs several times.
    for _ in 0..3 {
        run(&["-fy"], &image.path());
    }
    verdict(run(&["-fn"], &image.path()))
}

fn verdict((code, text): (i32, String)) -> Verdict {
    Verdict { clean: code == 0, text: format!("code {code}\n{}", head(&text)) }
}

fn head(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("Pass") && !line.is_empty());
    lines.take(8).collect::<Vec<_>>().join("\n")
}
