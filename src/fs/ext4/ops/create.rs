//! Creates files of every type, and new names for existing files.

use super::{MAX_LINKS, check_not_internal, check_project, refuse};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::ext4::Inode;
use crate::fs::ext4::alloc::{Freed, FreshInode};
use crate::fs::ext4::attr::{Attributes, Body, Inherited, NewInode, Times};
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::names::Directory;
use crate::fs::ext4::operation::{InodeToChange, MayChange, Operation};
use crate::fs::{Credentials, FileType, InodeFlags, NewFile};
use crate::iomap::{Extent, ExtentState};
use crate::units::{FileBlock, InodeNo};

/// `S_ISGID`. If a directory has this bit, new files inherit the directory's group.
const SET_GROUP: u32 = 0o2000;
/// A symbolic link's target is stored in the inode if it is shorter than this number of bytes.
const FAST_SYMLINK: usize = 60;

impl NewFile<'_> {
    fn file_type(self) -> FileType {
        match self {
            Self::Regular => FileType::Regular,
            Self::Directory => FileType::Directory,
            Self::Symlink(_) => FileType::Symlink,
            Self::CharDevice(..) => FileType::CharDevice,
            Self::BlockDevice(..) => FileType::BlockDevice,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
        }
    }
}

impl<'a> NewFile<'a> {
    fn body(self) -> Body<'a> {
        match self {
            Self::CharDevice(major, minor) | Self::BlockDevice(major, minor) => {
                Body::Device(major, minor)
            }
            Self::Symlink(target) if target.len() < FAST_SYMLINK => Body::Target(target),
            Self::Regular | Self::Directory | Self::Symlink(_) => Body::Mapped,
            Self::Fifo | Self::Socket => Body::Nothing,
        }
    }
}

/// The initial state of a new inode, and the access control lists that it inherits.
pub(super) struct Plan<'a> {
    new: NewInode<'a>,
    acl: Option<Inherited>,
}

impl Plan<'_> {
    /// The ids whose quotas are charged for the inode: the owner, the group and the project.
    pub(super) fn owners(&self) -> [u32; 3] {
        [self.new.uid, self.new.gid, self.new.project]
    }
}

impl<'a> Operation<'a> {
    /// Creates a file in a directory. `permissions` are the lower twelve bits of the file's mode. The returned inode is locked. No other
    /// thread can change or remove the file.
    pub(in crate::fs::ext4) fn create(
        &self,
        dir: InodeNo,
        name: &[u8],
        file: NewFile<'_>,
        permissions: u32,
        who: &Credentials,
    ) -> Result<FreshInode<'a>> {
        let locked = self.lock(dir);
        let dir = self.directory(&locked)?;
        if self.entry(&dir, name)?.is_some() {
            return Err(refuse(ErrorKind::Exists, "the name exists already"));
        }
        let directory = file == NewFile::Directory;
        if directory {
            self.check_room_for_link(&dir)?;
        }
        let plan = self.plan(&dir, file, permissions, who)?;
        self.admit_inode(plan.owners())?;
        let credits = self.name_credits(&dir) + CREATE_CREDITS;
        self.transact_for_space(credits, |handle| {
            let fresh = self.make(handle, &dir, file, &plan)?;
            let number = fresh.number();
            let named = Directory::of(&dir).add_entry(handle, name, number, file.file_type());
            if let Err(error) = named {
                self.take_back(handle, &fresh, directory)?;
                return Err(error);
            }
            self.touch_directory(handle, &dir, i16::from(directory))?;
            Ok(fresh)
        })
    }
}

impl Operation<'_> {
    /// Adds a name to a file.
    pub(in crate::fs::ext4) fn link(
        &self,
        inode: InodeNo,
        dir: InodeNo,
        name: &[u8],
    ) -> Result<()> {
        let locked = self.lock(dir);
        let dir = self.directory(&locked)?;
        if self.entry(&dir, name)?.is_some() {
            return Err(refuse(ErrorKind::Exists, "the name exists already"));
        }
        let check = |inode: &Inode| match inode.file_type() {
            FileType::Directory => {
                Err(refuse(ErrorKind::NotPermitted, "a directory can have only one name"))
            }
            _ => check_not_internal(inode),
        };
        // A directory must be refused before `inode` is locked, because `inode` may be an ancestor of `dir`. Another thread may have locked
        // this ancestor and wait for `dir`. If this thread waited for `inode`, both threads would wait forever.
        check(&self.inode(inode)?)?;
        let locked = self.lock(inode);
        let inode = locked.named()?;
        check(&inode)?;
        if inode.flags().intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
            return Err(refuse(ErrorKind::NotPermitted, "the file is immutable or append-only"));
        }
        check_project(&dir, &inode)?;
        if inode.stat().links >= MAX_LINKS {
            return Err(refuse(ErrorKind::TooManyLinks, "the file has too many names"));
        }
        self.transact_for_space(self.name_credits(&dir) + 4, |handle| {
            Directory::of(&dir).add_entry(handle, name, inode.number(), inode.file_type())?;
            self.touch_directory(handle, &dir, 0)?;
            let now = handle.now();
            handle.update_inode(&inode, |inode| {
                inode.set_times(&Times::changed(now))?;
                let links = inode.links()?;
                inode.set_links(links + 1)
            })
        })
    }

    pub(super) fn plan<'a>(
        &self,
        dir: &Inode,
        file: NewFile<'a>,
        permissions: u32,
        who: &Credentials,
    ) -> Result<Plan<'a>> {
        let writing = self.writing;
        let (parent, file_type) = (dir.stat(), file.file_type());
        let directory = file_type == FileType::Directory;
        let inherits_group = parent.mode & SET_GROUP != 0;
        let mut mode = file_type.to_mode() | permissions & 0o7777;
        if directory && inherits_group {
            mode |= SET_GROUP;
        }
        let acl = match file {
            NewFile::Symlink(_) => None,
            _ => Some(dir.inherited_acl(mode, who.umask)?),
        };
        let mode = acl.as_ref().map_or(mode, |acl| acl.mode);
        let inherited = dir.flags() & InodeFlags::inherited_by(file_type);
        let project = parent
            .project
            .filter(|_| dir.flags().contains(InodeFlags::PROJECT_INHERIT))
            .unwrap_or(0);
        let new = NewInode {
            mode,
            uid: who.uid,
            gid: if inherits_group { parent.gid } else { who.gid },
            links: if directory { 2 } else { 1 },
            flags: inherited,
            project,
            time: writing.clock.now(),
            generation: writing.generation(),
            body: file.body(),
        };
        Ok(Plan { new, acl })
    }

    /// Creates an inode without a name.
    pub(super) fn make<'h>(
        &self,
        handle: &mut Handle<'h>,
        dir: &Inode,
        file: NewFile<'_>,
        plan: &Plan<'_>,
    ) -> Result<FreshInode<'h>> {
        let directory = file == NewFile::Directory;
        let fresh = handle.allocate_inode(dir.number(), directory)?;
        let made = handle
            .init_inode(&fresh, &plan.new)
            .and_then(|()| self.fill(handle, dir, &fresh, file, plan.acl.as_ref()));
        match made {
            Ok(()) => Ok(fresh),
            Err(error) => {
                self.take_back(handle, &fresh, directory)?;
                Err(error)
            }
        }
    }

    /// Writes the initial content of a new inode.
    fn fill(
        &self,
        handle: &mut Handle<'_>,
        dir: &Inode,
        fresh: &FreshInode<'_>,
        file: NewFile<'_>,
        acl: Option<&Inherited>,
    ) -> Result<()> {
        match file {
            NewFile::Directory => {
                let inode = InodeToChange::read(self, fresh)?;
                Directory::of(&inode).init(handle, dir.number())?;
            }
            NewFile::Symlink(target) if target.len() >= FAST_SYMLINK => {
                self.store_target(handle, fresh, target)?;
            }
            _ => {}
        }
        match acl {
            Some(acl) => {
                let inode = InodeToChange::read_named(self, fresh)?;
                Attributes::of(&inode).set_inherited(handle, acl)
            }
            None => Ok(()),
        }
    }

    /// Stores the target of a new symbolic link in a separate block.
    fn store_target(
        &self,
        handle: &mut Handle<'_>,
        fresh: &FreshInode<'_>,
        target: &[u8],
    ) -> Result<()> {
        handle.update_inode(fresh, |inode| inode.set_size(target.len() as u64))?;
        InodeToChange::read_named(self, fresh)?.check_quota(1, 0)?;
        let (block, count) = handle.allocate_blocks(self.superblock.goal_of(fresh.number()), 1)?;
        handle.create(block, |bytes| bytes[..target.len()].copy_from_slice(target))?;
        let extent =
            Extent { first: FileBlock(0), start: block, len: 1, state: ExtentState::Written };
        let mapped = InodeToChange::read_named(self, fresh)?.map_extent(handle, extent);
        if mapped.is_err() {
            handle.free_blocks(block, count.into(), Freed::Metadata)?;
        }
        mapped
    }

    /// Frees an inode that was created but did not get a name.
    pub(super) fn take_back(
        &self,
        handle: &mut Handle<'_>,
        fresh: &FreshInode<'_>,
        directory: bool,
    ) -> Result<()> {
        if let Ok(inode) = InodeToChange::read(self, fresh) {
            self.release_content(handle, &inode)?;
        }
        self.end_inode(handle, fresh, directory)
    }
}

/// The number of blocks that the creation of a file changes: two bitmaps, two group descriptors, the inode, a block of content, a block of
/// the map, attributes, and the superblock. The blocks of the directory are not included.
pub(super) const CREATE_CREDITS: u32 = 16;

/// The numbers of bits in Linux's major and minor device numbers.
const MAJOR_BITS: u32 = 12;
const MINOR_BITS: u32 = 20;

/// Checks the properties of a new file. This check does not need the directory.
pub(in crate::fs::ext4) fn check_file(file: NewFile<'_>, block_size: usize) -> Result<()> {
    if let NewFile::Symlink(target) = file {
        if target.is_empty() {
            return Err(refuse(ErrorKind::NotFound, "the target of the symbolic link is empty"));
        }
        if target.len() >= block_size {
            return Err(refuse(
                ErrorKind::NameTooLong,
                "the target of the symbolic link does not fit into a block",
            ));
        }
        // The kernel reads a target only up to its first NUL.
        if target.contains(&0) {
            return Err(Error::invalid("the target of the symbolic link contains a NUL"));
        }
    }
    if let NewFile::CharDevice(major, minor) | NewFile::BlockDevice(major, minor) = file
        && (major >> MAJOR_BITS != 0 || minor >> MINOR_BITS != 0)
    {
        return Err(Error::invalid(format!("the device number {major}:{minor} is too large")));
    }
    Ok(())
}
