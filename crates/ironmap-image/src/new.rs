//! Makes new files of a volume. Their owner is the user of this process.

use ironmap::fs::{Credentials, Follow, Inode, NewFile};
use ironmap::{Error, ErrorKind};

use crate::failure::Failure;
use crate::volumes::Name;

/// Returns the owner of new files: the effective user and group of this process, as in the kernel.
pub fn caller() -> Credentials {
    let (uid, gid) =
        (rustix_libc::process::geteuid().as_raw(), rustix_libc::process::getegid().as_raw());
    Credentials::new(uid, gid, umask())
}

/// Returns the file with a name. If the file does not exist, makes an empty file if `create` is set, or else returns `None`.
pub fn find_or_create(name: &Name, create: bool) -> Result<Option<Inode>, Failure> {
    if let Some(inode) = name.look(Follow::All)? {
        return Ok(Some(inode));
    }
    if !create {
        return Ok(None);
    }
    if name.wants_directory() {
        return Err(name.failed(&Error::new(ErrorKind::IsADirectory, "names a directory")));
    }
    // As in the kernel, the missing target of a symbolic link is created. If the links form a loop, the look-up above has failed.
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

/// Returns the umask: the permission bits that the process removes from new files. Linux shows the umask in /proc. Without /proc, this
/// function briefly changes the umask to read it, which can affect other threads.
pub fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let shown = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    if let Some(Ok(umask)) = shown.map(|text| u32::from_str_radix(text.trim(), 8)) {
        return umask;
    }
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    umask.as_raw_mode()
}
