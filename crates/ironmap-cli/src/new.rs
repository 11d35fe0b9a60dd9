//! New files of a volume, owned by the caller.

use ironmap::fs::{Credentials, Follow, Inode, NewFile};
use ironmap::{Error, ErrorKind};

use crate::failure::Failure;
use crate::mode::umask;
use crate::volumes::Name;

/// The credentials of the caller, which the kernel would use too.
pub(crate) fn caller() -> Credentials {
    let (uid, gid) =
        (rustix_libc::process::geteuid().as_raw(), rustix_libc::process::getegid().as_raw());
    Credentials::new(uid, gid, umask())
}

/// The file of a name. A missing file is created empty, or is `None` without `create`.
pub(crate) fn find_or_create(name: &Name, create: bool) -> Result<Option<Inode>, Failure> {
    if let Some(inode) = name.look(Follow::All)? {
        return Ok(Some(inode));
    }
    if !create {
        return Ok(None);
    }
    if name.wants_directory() {
        return Err(name.failed(&Error::new(ErrorKind::IsADirectory, "names a directory")));
    }
    // As in the kernel, the missing target of a link is created. A loop of links is another error.
    if let Some(link) = name.look(Follow::NotLast)? {
        let target = link.read_link().map_err(|error| name.failed(&error))?;
        return find_or_create(&name.beside(&target)?, create);
    }
    let number = name
        .fs()
        .writable()
        .and_then(|writer| writer.create(name.dir, &name.name, NewFile::Regular, 0o666, &caller()));
    let inode = number.and_then(|number| name.fs().inode(number));
    inode.map(Some).map_err(|error| name.failed(&error))
}
