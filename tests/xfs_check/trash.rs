//! Flips bits in blocks of each type, with the command `blocktrash` of xfs_db.

use crate::common::command::run;
use crate::common::skip::Need;
use crate::{damage, require};

/// The types of blocks, as xfs_db names them.
const TYPES: &str = "agf,agfl,agi,attr,bmapbta,bmapbtd,bnobt,cntbt,finobt,inobt,inode,refcntbt,rmapbt,sb,symlink,dir";

#[test]
fn trashed_blocks() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_repair"), Need::Tool("xfs_db")]);
    let types: Vec<_> = TYPES.split(',').collect();
    damage("trashed_blocks", |base, path, rng| {
        let kind = types[rng.below(types.len() as u64) as usize];
        let (seed, how) = (rng.below(1 << 30), rng.below(4));
        let trash = format!("blocktrash -n 1 -x 1 -y 32 -s {seed} -{how} -t {kind}");
        let path = path.to_str().expect("a plain path");
        let said =
            run(&base.tools.program("xfs_db"), &["-x", "-c", "blockget", "-c", &trash, path]);
        let said = String::from_utf8_lossy(&said);
        said.contains("flipped").then(|| said.trim().to_owned())
    });
}
