//! Shrinks each volume to its minimum size. Afterwards e2fsck finds no fault in it.

use std::sync::Arc;

use ironmap::fs::Clock;
use ironmap::fs::ext4::{NewSize, ResizeOptions};
use ironmap::location::LocationOptions;
use ironmap::{Error, ErrorKind};

use crate::common::image::Image;
use crate::common::skip::Need;
use crate::images::{Foreign, Steps, VARIABLE, each};
use crate::{fsck, require};

/// The names of images with multiple mount protection contain this text. An open of such an image waits for other nodes.
const HELD: &str = "mmp";

/// Shrinks the volume. Returns the predicted minimum size and the actual size.
fn shrink(image: &Image) -> Result<(u64, u64), Error> {
    let opened = image.location().open(&LocationOptions::new().write(true))?;
    let said = ironmap::tools::smallest_size(&opened.device)?;
    let how = ResizeOptions::new().size(NewSize::Minimum);
    let resized = ironmap::tools::resize(&Arc::clone(&opened.device), &how, Clock::System)?;
    Ok((said.blocks, resized.blocks))
}

fn image(foreign: &Foreign, steps: &mut Steps<'_>) {
    let image = foreign.copy();
    if foreign.name.contains(HELD) || !fsck::look(&image).clean {
        return;
    }
    steps.begin("resize -M");
    match shrink(&image) {
        Ok((said, blocks)) if said != blocks => {
            steps.wrong(&format!("{said} blocks were printed, {blocks} made"));
        }
        Err(error) if error.kind() == ErrorKind::NoSpace => steps.wrong(&error.to_string()),
        _ => {}
    }
    let after = fsck::look(&image);
    if !after.clean {
        steps.wrong(&after.text);
    }
}

#[test]
fn a_shrink_leaves_nothing_to_e2fsck() {
    require!([Need::Variable(VARIABLE)]);
    each("a_shrink_leaves_nothing_to_e2fsck", image);
}
