//! Small files whose content lies in the inode: the first 60 bytes in `i_block`, the rest in the attribute `system.data`.

use super::inode::Inode;
use crate::error::{Error, Result};
use crate::units::FilePos;

impl Inode {
    /// Copies inline data from `pos` to `buf`; the range lies within the file.
    pub(super) fn read_inline_data(&self, _buf: &mut [u8], _pos: FilePos) -> Result<()> {
        Err(Error::unsupported("inline data"))
    }
}
