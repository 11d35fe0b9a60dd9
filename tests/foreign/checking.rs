//! `check` finds a fault if and only if e2fsck finds one. `CHECKS` lists the exceptions. The test uses the original images, and copies of
//! them that e2fsck has repaired.

use ironmap::VolumeOptions;

use crate::common::image::Image;
use crate::common::skip::Need;
use crate::differences::{CHECKS, none_left, reason};
use crate::images::{Foreign, Steps, VARIABLE, each};
use crate::{fsck, require};

/// Whether ironmap's check finds no fault that e2fsck would report, and the text of the findings.
fn check(image: &Image) -> (bool, String) {
    let checked = || {
        let volume = crate::common::beneath::open(&image.location(), &VolumeOptions::default())?;
        let report = volume.ext4().map(|fs| fs.check(&mut |_| {})).transpose()?;
        let Some(report) = report else {
            return Ok((false, "a volume of XFS".into()));
        };
        let lines = report.findings.iter().take(8).map(ToString::to_string);
        Ok((report.is_clean(), lines.collect::<Vec<_>>().join("\n")))
    };
    checked().unwrap_or_else(|error: ironmap::Error| (false, error.to_string()))
}

fn beside(image: &Image, name: &str, steps: &mut Steps<'_>) {
    let (theirs, (clean, ours)) = (fsck::look(image), check(image));
    match (theirs.clean == clean, reason(CHECKS, name)) {
        (true, Some(_)) => none_left(steps),
        (false, None) => steps.wrong(&format!("e2fsck: {}\nironmap: {ours}", theirs.text)),
        _ => {}
    }
}

fn image(foreign: &Foreign, steps: &mut Steps<'_>) {
    steps.begin("check");
    let image = foreign.copy();
    beside(&image, &foreign.name, steps);
    steps.begin("check, repaired by e2fsck");
    if fsck::repair(&image).clean {
        beside(&image, &format!("{}, repaired", foreign.name), steps);
    }
}

#[test]
fn check_finds_something_where_e2fsck_does() {
    require!([Need::Variable(VARIABLE)]);
    each("check_finds_something_where_e2fsck_does", image);
}
