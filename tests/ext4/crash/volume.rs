//! Volumes for workloads. They are small, so that thousands of them can be checked. Their free blocks are full of old data, which no file
//! may show.

use std::os::unix::fs::FileExt;

use ironmap::device::Ram;

use crate::common::command::run;
use crate::common::image::{Image, words};
use crate::crash::history::STALE;

/// Names of additional options, each with the debugfs commands that apply it. The commands enable an old version of journal checksums.
const CHECKSUMS: [(&str, &str); 2] =
    [("checksum_v1", "jo -c\njc"), ("checksum_v2", "jo -c -v 2\njc")];

/// An empty volume whose free blocks are filled with [`STALE`].
pub(crate) fn stale(size: &str, options: &str) -> Ram {
    let checksums = |word: &str| CHECKSUMS.iter().find(|(name, _)| *name == word);
    let (ours, options): (Vec<_>, Vec<_>) =
        words(options).into_iter().partition(|word| checksums(word).is_some());
    let image = Image::mke2fs(size, &options);
    for (_, commands) in ours.into_iter().filter_map(checksums) {
        image.debugfs(commands);
    }
    let described = run("dumpe2fs", &[image.path()]);
    let described = String::from_utf8_lossy(&described);
    let field = |name: &str| {
        let line = described.lines().find_map(|line| line.strip_prefix(name));
        line.expect(name).trim().parse::<u64>().expect(name)
    };
    let block_size = field("Block size:");
    let file = std::fs::OpenOptions::new().write(true).open(image.path()).expect("the image");
    // dumpe2fs prints a line ` Free blocks: 1618-8191, 9000` for each group. It also prints a line without the indent, which contains the
    // number of free blocks.
    let lists = described.lines().filter_map(|line| line.strip_prefix("  Free blocks: "));
    for range in lists.flat_map(|list| list.split(", ")).filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let [first, last] = [first, last].map(|block| block.parse::<u64>().expect("a block"));
        let stale = vec![STALE; ((last - first + 1) * block_size) as usize];
        file.write_all_at(&stale, first * block_size).expect("fill free blocks");
    }
    Ram::from_image(&std::fs::read(image.path()).expect("the image"))
}
