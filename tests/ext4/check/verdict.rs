//! The verdicts of e2fsck and of ironmap about a volume.

use std::path::Path;

use ironmap::VolumeOptions;

use crate::check::exceptions::{E2FSCK_ALONE, IRONMAP_ALONE};
use crate::common::command::output;

/// The result of a checker.
pub(crate) struct Verdict {
    pub(crate) clean: bool,
    pub(crate) text: String,
}

/// The verdict of `e2fsck -fn`. Exit code 4 means that the volume has errors. Exit code 8 means that e2fsck could not start its checks,
/// because the superblock is wrong.
pub(crate) fn e2fsck(image: &Path) -> Verdict {
    let output = output("e2fsck", &["-fn".as_ref(), image.as_os_str()]);
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let code = output.status.code().unwrap_or(-1);
    let lines = text.lines().filter(|line| !line.starts_with("Pass") && !line.is_empty());
    let text = lines.take(12).collect::<Vec<_>>().join("\n");
    Verdict { clean: code == 0, text: format!("code {code}\n{text}") }
}

/// The verdict of ironmap, which opens the volume and checks it.
pub(crate) fn ironmap(image: &Path) -> Verdict {
    let location = image.to_str().expect("a plain path").parse().expect("a location");
    let report = crate::common::beneath::open(&location, &VolumeOptions::default())
        .and_then(|volume| volume.ext4().unwrap().check(&mut |_| {}));
    match report {
        Err(error) => Verdict { clean: false, text: error.to_string() },
        Ok(report) => {
            let lines = report.findings.iter().take(12).map(ToString::to_string);
            Verdict { clean: report.is_clean(), text: lines.collect::<Vec<_>>().join("\n") }
        }
    }
}

/// Asserts that both programs return the same verdict. If `clean` is set, neither program may find a fault.
pub(crate) fn agree(name: &str, image: &Path, clean: bool) {
    let (theirs, ours) = (e2fsck(image), ironmap(image));
    let same = theirs.clean == ours.clean && (theirs.clean || !clean);
    assert!(same, "{name}\ne2fsck: {}\nironmap: {}", theirs.text, ours.text);
}

/// Counts how many times the verdicts of e2fsck and ironmap agree.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    both: u32,
    neither: u32,
    excepted: u32,
    differ: u32,
}

impl Tally {
    /// Compares the verdicts about a damaged volume, and counts the volume. If the verdicts differ and no intended difference explains
    /// this, prints the verdicts.
    pub(crate) fn compare(&mut self, what: &str, theirs: &Verdict, ours: &Verdict) {
        let list = match (theirs.clean, ours.clean) {
            (true, true) => return self.neither += 1,
            (false, false) => return self.both += 1,
            (false, true) => E2FSCK_ALONE,
            (true, false) => IRONMAP_ALONE,
        };
        let says = |text: &str| theirs.text.contains(text) || ours.text.contains(text);
        if let Some(exception) = list.iter().find(|exception| says(exception.text)) {
            println!("{what}: {}", exception.reason);
            return self.excepted += 1;
        }
        self.differ += 1;
        println!("--- {what}\ne2fsck: {}\nironmap: {}", theirs.text, ours.text);
    }

    /// Asserts that there was no unexplained difference. Asserts that the test covered clean volumes and faulty volumes.
    pub(crate) fn end(&self, seed: u64) {
        println!("seed {seed}: {self:?}");
        assert_eq!(self.differ, 0, "differences from e2fsck with seed {seed}");
        assert!(self.both > 0 && self.neither > 0);
    }
}
