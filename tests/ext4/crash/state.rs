//! The names, and the attributes of each inode. A transaction changes names and attributes together, atomically.

use std::collections::BTreeMap;

use crate::crash::op::{ACL, Renaming, Set, Special, WHITEOUT, acl};
use crate::crash::seen::{NO_DUMP, Seen};

/// The number of a file or directory, in the order of creation.
pub(crate) type Id = usize;

/// The object that a name refers to: a file, a directory, a symbolic link or a special file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    File(Id),
    Directory(Id),
    Symlink(String),
    Special(Special),
}

impl Node {
    pub(crate) fn id(&self) -> Option<Id> {
        match self {
            Self::File(id) | Self::Directory(id) => Some(*id),
            Self::Symlink(_) | Self::Special(_) => None,
        }
    }
}

/// The object to which each path refers.
pub(crate) type Names = BTreeMap<String, Node>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) names: Names,
    /// The attributes of each file and directory.
    pub(crate) about: BTreeMap<Id, About>,
}

impl State {
    /// Renames a path, and all paths below it.
    pub(crate) fn rename(&mut self, from: &str, to: &str, how: Renaming) {
        let node = self.names.remove(from).expect("a name");
        if how == Renaming::Exchange {
            let other = self.names.insert(to.to_owned(), node).expect("a name");
            self.names.insert(from.to_owned(), other);
            return;
        }
        if matches!(node, Node::Directory(_)) {
            let below = format!("{from}/");
            let inside = self.names.keys().filter(|path| path.starts_with(&below));
            for path in inside.cloned().collect::<Vec<_>>() {
                let node = self.names.remove(&path).expect("a name");
                self.names.insert(format!("{to}/{}", &path[below.len()..]), node);
            }
        }
        self.names.insert(to.to_owned(), node);
        if how == Renaming::Whiteout {
            self.names.insert(from.to_owned(), Node::Special(WHITEOUT));
        }
    }
}

/// The expected attributes of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct About {
    permissions: u32,
    uid: u32,
    /// The access time, if an operation has set it.
    accessed: Option<i64>,
    no_dump: bool,
    has_acl: bool,
    xattrs: BTreeMap<&'static str, Vec<u8>>,
}

impl About {
    /// The attributes of a new file.
    pub(crate) fn new() -> Self {
        Self {
            permissions: 0o755,
            uid: 0,
            accessed: None,
            no_dump: false,
            has_acl: false,
            xattrs: BTreeMap::new(),
        }
    }

    pub(crate) fn xattr_names(&self) -> impl Iterator<Item = &'static str> {
        self.xattrs.keys().copied()
    }

    /// Sets an attribute; `value` computes the value of an extended attribute.
    pub(crate) fn set(&mut self, what: &Set, value: impl FnOnce(usize) -> Vec<u8>) {
        match what {
            Set::Permissions(permissions) => self.permissions = *permissions,
            Set::Owner(uid) => self.uid = *uid,
            Set::Accessed(seconds) => self.accessed = Some(*seconds),
            Set::NoDump(on) => self.no_dump = *on,
            Set::Xattr { name, len } => drop(self.xattrs.insert(name, value(*len))),
            Set::RemoveXattr(name) => drop(self.xattrs.remove(name)),
            Set::Acl(permissions) => (self.permissions, self.has_acl) = (*permissions, true),
        }
    }

    /// The first difference between these attributes and the attributes that a volume shows.
    pub(crate) fn fault(&self, seen: &Seen) -> Option<String> {
        let mut xattrs: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        if self.has_acl {
            xattrs.insert(ACL.into(), acl(self.permissions));
        }
        xattrs.extend(
            self.xattrs.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.clone())),
        );
        let no_dump = seen.flags & NO_DUMP != 0;
        if seen.mode & 0o7777 != self.permissions {
            Some(format!("permissions {:o}, not {:o}", seen.mode & 0o7777, self.permissions))
        } else if seen.uid != self.uid {
            Some(format!("owner {}, not {}", seen.uid, self.uid))
        } else if self.accessed.is_some_and(|accessed| accessed != seen.accessed) {
            Some(format!("accessed at {}, not {:?}", seen.accessed, self.accessed))
        } else if no_dump != self.no_dump {
            Some(format!("flag {no_dump}, not {}", self.no_dump))
        } else if seen.xattrs != xattrs {
            let lens = |xattrs: &BTreeMap<Vec<u8>, Vec<u8>>| -> Vec<_> {
                let name = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
                xattrs.iter().map(|(key, value)| (name(key), value.len())).collect()
            };
            Some(format!("attributes {:?}, not {:?}", lens(&seen.xattrs), lens(&xattrs)))
        } else {
            None
        }
    }
}
