//! Functions that cut and join extents.

use smallvec::SmallVec;

use super::node::longest;
use crate::iomap::Extent;
use crate::units::{FileBlock, FsBlock};

/// The extents that replace other extents in a leaf.
pub(super) type Pieces = SmallVec<[Extent; 4]>;

impl Extent {
    /// The part of the extent before a block of the file; `None` if the part is empty.
    pub(super) fn before(self, block: FileBlock) -> Option<Self> {
        let len = block.0.saturating_sub(self.first.0).min(u64::from(self.len)) as u32;
        (len > 0).then_some(Self { len, ..self })
    }

    /// The part of the extent from a block of the file on; `None` if the part is empty.
    pub(super) fn from(self, block: FileBlock) -> Option<Self> {
        let cut = block.0.saturating_sub(self.first.0).min(u64::from(self.len)) as u32;
        (cut < self.len).then(|| self.skip(cut))
    }

    fn skip(self, cut: u32) -> Self {
        Self {
            first: FileBlock(self.first.0 + u64::from(cut)),
            start: FsBlock(self.start.0 + u64::from(cut)),
            len: self.len - cut,
            state: self.state,
        }
    }

    fn adjoins(&self, next: &Self) -> bool {
        let end = self.start.0 + u64::from(self.len);
        self.state == next.state && self.end() == next.first && end == next.start.0
    }
}

/// Joins extents: adjacent extents are merged up to the maximum length that the format permits.
pub(super) fn join(extents: impl IntoIterator<Item = Extent>) -> Pieces {
    let mut joined = Pieces::new();
    for mut rest in extents {
        let longest = longest(rest.state);
        if let Some(last) = joined.last_mut()
            && last.adjoins(&rest)
        {
            let more = rest.len.min(longest.saturating_sub(last.len));
            last.len += more;
            rest = rest.skip(more);
        }
        while rest.len > 0 {
            let len = rest.len.min(longest);
            joined.push(Extent { len, ..rest });
            rest = rest.skip(len);
        }
    }
    joined
}
