//! The stripe fields of a volume. If a volume is mounted with stripe options, the kernel writes them only to the first superblock. The
//! check accepts this.

use crate::base::Tools;
use crate::common::command::run;
use crate::common::image::Image;
use crate::common::skip::Need;
use crate::require;
use crate::verdict::{ironmap, repair};

const MKFS: &str = "-d agsize=100m,su=16k,sw=2";

fn made() -> Image {
    Image::mkfs_xfs("600M", &MKFS.split(' ').collect::<Vec<_>>()).unwrap()
}

#[test]
fn a_mount_may_change_the_stripes() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_repair")]);
    let image = made();
    drop(image.mount("sunit=64,swidth=256"));
    for verdict in [repair(&image.path(), Tools::SYSTEM), ironmap(&image.path())] {
        assert!(verdict.clean, "{}", verdict.text);
    }
}

#[test]
fn stripes_that_contradict_the_superblock_are_found() {
    require!([Need::Tool("mkfs.xfs"), Need::Tool("xfs_repair"), Need::Tool("xfs_db")]);
    for (copy, unit, width) in [(2, 4, 7), (2, 0, 8), (2, 4, 0), (2, 24, 24), (0, 24, 24)] {
        let what = format!("copy {copy}: stripes of {unit}, {width}");
        let image = made();
        let (path, sector) = (image.path(), format!("sb {copy}"));
        let fields = [format!("write -d unit {unit}"), format!("write -d width {width}")];
        let path_text = path.to_str().expect("a plain path");
        run("xfs_db", &["-x", "-c", &sector, "-c", &fields[0], "-c", &fields[1], path_text]);
        for verdict in [repair(&path, Tools::SYSTEM), ironmap(&path)] {
            assert!(!verdict.clean, "{what}: {}", verdict.text);
        }
    }
}
