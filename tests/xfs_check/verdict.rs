//! The verdicts of xfs_repair and of ironmap about a volume.

use std::path::Path;

use ironmap::VolumeOptions;

use crate::base::Tools;
use crate::common::command::output;
use crate::differences::{REPAIR_ALONE, reason};

/// The maximum number of printed lines of a verdict.
const SHOWN: usize = 12;

pub(crate) struct Verdict {
    pub(crate) clean: bool,
    pub(crate) text: String,
}

/// The verdict of `xfs_repair -n`. Exit code 1 means that a fault was found.
pub(crate) fn repair(image: &Path, tools: Tools) -> Verdict {
    // Without `force_geometry`, xfs_repair refuses to check a volume with a single group.
    let how = ["-n", "-o", "force_geometry"].map(AsRef::as_ref);
    let output = output(&tools.program("xfs_repair"), &[&how[..], &[image.as_os_str()]].concat());
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let code = output.status.code().unwrap_or(-1);
    let dull = |line: &&str| {
        [
            "Phase",
            "        - ",
            "No modify",
            "- ",
            "Cannot get host",
            "Repair may fail",
            "the image and",
        ]
        .iter()
        .any(|start| line.starts_with(start))
    };
    let lines = text.lines().filter(|line| !dull(line) && !line.is_empty());
    let text = lines.take(SHOWN).collect::<Vec<_>>().join("\n");
    Verdict { clean: code == 0, text: format!("code {code}\n{text}") }
}

/// The verdict of ironmap, which opens the volume and checks it.
pub(crate) fn ironmap(image: &Path) -> Verdict {
    let location = image.to_str().expect("a plain path").parse().expect("a location");
    let report = crate::common::beneath::open(&location, &VolumeOptions::default())
        .and_then(|volume| volume.fs().check(&mut |_| {}));
    match report {
        Err(error) => Verdict { clean: false, text: format!("not opened: {error}") },
        Ok(report) => {
            let lines = report.findings.iter().take(SHOWN).map(ToString::to_string);
            Verdict { clean: report.is_clean(), text: lines.collect::<Vec<_>>().join("\n") }
        }
    }
}

/// Counters: how many damaged volumes had a fault that both tools found, that only one of the tools found, or that no tool found.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    both: u32,
    neither: u32,
    ironmap_alone: u32,
    excepted: u32,
    repair_alone: u32,
}

impl Tally {
    /// Checks a damaged volume with both tools and counts the result. Prints the result unless both tools find a fault.
    pub(crate) fn compare(&mut self, what: &str, image: &Path, tools: Tools) {
        let (theirs, ours) = (repair(image, tools), ironmap(image));
        match (theirs.clean, ours.clean) {
            (true, true) => {
                self.neither += 1;
                println!("=== {what}");
            }
            (false, false) => self.both += 1,
            // The check of ironmap may find more than xfs_repair.
            (true, false) => {
                self.ironmap_alone += 1;
                println!("+++ {what}\nironmap: {}", ours.text);
            }
            (false, true) => match reason(REPAIR_ALONE, &theirs.text) {
                Some(reason) => {
                    self.excepted += 1;
                    println!("{what}: {reason}");
                }
                None => {
                    self.repair_alone += 1;
                    println!("--- {what}\nxfs_repair: {}\nironmap: {}", theirs.text, ours.text);
                }
            },
        }
    }

    /// Asserts that xfs_repair found no fault that ironmap missed. With `many`, also asserts that both tools together found some faults.
    pub(crate) fn end(&self, kind: &str, many: bool) {
        println!("{kind}: {self:?}");
        assert_eq!(self.repair_alone, 0, "{kind}: found by xfs_repair alone");
        assert!(self.both > 0 || !many, "{kind}: nothing was found by both");
    }
}
