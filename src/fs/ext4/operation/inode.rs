//! The inodes that an operation may change.

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use super::Locked;
use crate::error::Result;
use crate::fs::ext4::{Ext4, Inode};
use crate::units::InodeNo;

/// A proof that no other thread changes an inode. It is either the inode's [lock](Locked), or a value that exists only while no other
/// thread can change the inode. Each type that implements this trait says why no other thread can change the inode. An inode number is not
/// a proof. [`Handle::update_inode`](super::super::jbd2::Handle::update_inode) does not accept a number.
pub(crate) trait MayChange {
    /// The inode number.
    fn number(&self) -> InodeNo;
}

impl MayChange for Locked<'_> {
    fn number(&self) -> InodeNo {
        self.number
    }
}

/// A snapshot of an inode that this thread may change. The snapshot borrows the proof and cannot outlive it.
pub(crate) struct InodeToChange<'p> {
    inode: Inode,
    proof: PhantomData<&'p ()>,
}

impl<'p> InodeToChange<'p> {
    /// Reads the inode, even if it has no name.
    ///
    /// # Errors
    /// The errors of reading and checking the inode.
    pub(crate) fn read(fs: &Arc<Ext4>, proof: &'p impl MayChange) -> Result<Self> {
        fs.inode_or_orphan(proof.number()).map(Self::proven)
    }

    /// Reads the inode. The inode must have a name.
    ///
    /// # Errors
    /// `NotFound` if the inode has no name; the errors of reading and checking the inode.
    pub(crate) fn read_named(fs: &Arc<Ext4>, proof: &'p impl MayChange) -> Result<Self> {
        fs.inode(proof.number()).map(Self::proven)
    }

    /// Reads the inode again. A change of the inode makes earlier snapshots outdated.
    ///
    /// # Errors
    /// The errors of reading and checking the inode.
    pub(crate) fn again(&self) -> Result<Self> {
        self.inode.fs.inode_or_orphan(self.inode.number).map(Self::proven)
    }

    fn proven(inode: Inode) -> Self {
        Self { inode, proof: PhantomData }
    }

    /// A test is the only user of its volume, and needs no lock.
    #[cfg(test)]
    pub(crate) fn in_test(inode: Inode) -> Self {
        Self::proven(inode)
    }
}

impl MayChange for InodeToChange<'_> {
    fn number(&self) -> InodeNo {
        self.inode.number
    }
}

impl Deref for InodeToChange<'_> {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        &self.inode
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::ext4::operation::{Content, Operation, Shared};

    /// Asserts at compile time that the listed types do not implement `MayChange`. If a type implements it, `At` is ambiguous and the macro
    /// does not compile.
    macro_rules! proves_nothing {
        ($($type:ty),+) => {
            $({
                trait Ambiguous<At> {
                    fn check() {}
                }
                struct Proof;
                impl<T: ?Sized> Ambiguous<()> for T {}
                impl<T: ?Sized + MayChange> Ambiguous<Proof> for T {}
                <$type as Ambiguous<_>>::check();
            })+
        };
    }

    /// These values do not permit a change of an inode, and must not implement `MayChange`: an inode number, an inode that was read without
    /// its lock, a shared lock, the lock of a file's content, an operation, the file system.
    #[test]
    fn only_a_proof_permits_a_change() {
        proves_nothing!(InodeNo, Inode, Shared<'_>, Content<'_>, Operation<'_>, Ext4);
    }
}
