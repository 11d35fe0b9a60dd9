//! Checks the metadata directories. They are a separate tree of directories. In this tree, the name of an internal file determines the use
//! of the file.

use super::super::disk::inode::{flags, flags2, metatype};
use super::Checker;
use super::found::Found;
use crate::error::Place;
use crate::fs::FileType;
use crate::fs::check::{Kind, Severity};
use crate::sorting::Sorting;
use crate::units::InodeNo;

const PLACE: Place = Place::new("metadata directory");
/// The permission bits of a mode, without the file type.
const PERMISSIONS: u32 = 0o7777;
/// The names of quota files in their directory, and the kind of each file.
const QUOTA: [(&[u8], u16); 3] = [
    (b"user", metatype::USER_QUOTA),
    (b"group", metatype::GROUP_QUOTA),
    (b"project", metatype::PROJECT_QUOTA),
];
/// The maximum number of missing files of realtime groups that are reported. The search then stops.
const TOLD: usize = 8;

/// The content of the metadata directories that could be read.
#[derive(Default)]
pub(super) struct MetadataTree {
    /// For each name: the directory that contains the name, the name itself, and the inode to which the name refers.
    names: Vec<(InodeNo, Vec<u8>, InodeNo)>,
    /// The quota files, in the order users, groups, projects.
    pub(super) quota: [Option<InodeNo>; 3],
}

impl MetadataTree {
    /// Records a name in a metadata directory.
    pub(super) fn add(&mut self, directory: InodeNo, name: &[u8], target: InodeNo) {
        self.names.push((directory, name.to_vec(), target));
    }

    fn find(&self, directory: InodeNo, name: &[u8]) -> Option<InodeNo> {
        let key = (directory, name);
        let at = self.names.partition_point(|(number, name, _)| (*number, &name[..]) < key);
        let found = self.names.get(at).filter(|(number, found, _)| (*number, &found[..]) == key);
        found.map(|(_, _, target)| *target)
    }
}

impl Checker<'_> {
    /// Checks fields that have special values in inodes of metadata directories.
    pub(super) fn check_metadata_core(&mut self, found: &Found, file_type: FileType) {
        let is_directory = file_type == FileType::Directory;
        let kind = found.raw.di_onlink.get();
        let fits = match file_type {
            FileType::Directory => kind == metatype::DIRECTORY,
            FileType::Regular => {
                (metatype::USER_QUOTA..=metatype::REALTIME_REFCOUNTS).contains(&kind)
            }
            _ => false,
        };
        if !fits {
            let (stored, rule) = (kind.into(), "the type is not valid for this metadata file");
            self.findings.add(found.place("di_metatype"), Kind::Invalid { stored, rule });
        }
        let required = if is_directory { flags::METADATA_DIRECTORY } else { flags::METADATA };
        let bits = found.raw.di_flags.get();
        if bits & required != required {
            let (stored, rule) = (bits.into(), "flags of a metadata file are missing");
            self.findings.add(found.place("di_flags"), Kind::Invalid { stored, rule });
        }
        // Metadata files have no permission bits, and their owner and group are 0.
        let raw = &found.raw;
        self.findings.expect(found.place("di_mode"), found.mode() & PERMISSIONS, 0_u32);
        self.findings.expect(found.place("di_uid"), raw.di_uid.get(), 0_u32);
        self.findings.expect(found.place("di_gid"), raw.di_gid.get(), 0_u32);
        self.findings.expect(found.place("di_dmevmask"), raw.di_dmevmask.get(), 0_u32);
        self.findings.expect(found.place("di_dmstate"), raw.di_dmstate.get(), 0_u32);
        if found.flags2() & flags2::DAX != 0 {
            let (stored, rule) =
                (found.flags2(), "flags are set that are not valid for this inode");
            self.findings.add(found.place("di_flags2"), Kind::Invalid { stored, rule });
        }
    }

    /// Checks that the tree has a valid root and the required files.
    pub(super) fn check_metadata_tree(&mut self) {
        let Some(root) = self.fs.superblock.metadata_root else { return };
        let field = Place::new("superblock").field("sb_metadirino");
        self.findings.expect(field, root.0, self.fs.superblock.root.0.saturating_add(1));
        if !self.is_metadata(root, FileType::Directory) {
            let what = Kind::Damaged { what: "the root is not a metadata directory".into() };
            self.findings.add_as(Severity::Fatal, PLACE.inode(root), what);
        }
        self.tree.names.order();
        self.check_quota_names(root);
        self.check_realtime_names(root);
    }

    fn is_metadata(&self, number: InodeNo, file_type: FileType) -> bool {
        let state = self.inodes.get(number);
        state.is_some_and(|state| state.metadata && state.file_type == Some(file_type))
    }

    /// The metadata directory with this name in the root directory, if there is one.
    fn metadata_directory(&mut self, root: InodeNo, name: &[u8]) -> Option<InodeNo> {
        let directory = self.tree.find(root, name)?;
        if self.is_metadata(directory, FileType::Directory) {
            return Some(directory);
        }
        let what = format!("{} is not a metadata directory", String::from_utf8_lossy(name));
        self.wrong(PLACE.inode(directory), what);
        None
    }

    fn check_quota_names(&mut self, root: InodeNo) {
        let Some(directory) = self.metadata_directory(root, b"quota") else { return };
        for (at, (name, kind)) in QUOTA.into_iter().enumerate() {
            let Some(number) = self.tree.find(directory, name) else { continue };
            if self.check_kind(number, (kind, None)) {
                self.tree.quota[at] = Some(number);
            }
        }
    }

    fn check_realtime_names(&mut self, root: InodeNo) {
        let groups = self.superblock.sb_rgcount.get();
        let directory = self.metadata_directory(root, b"rtgroups");
        let mut missing = 0_usize;
        for group in 0..groups {
            for (name, kind) in self.realtime_files() {
                let name = format!("{group}.{name}");
                let number =
                    directory.and_then(|directory| self.tree.find(directory, name.as_bytes()));
                if let Some(number) = number {
                    if self.check_kind(number, (kind, Some(group))) {
                        self.realtime.entry(group).or_default().files.push((kind, number));
                    }
                    continue;
                }
                missing += 1;
                let what = format!("the directory lacks the file {name} of a realtime group");
                let place = PLACE.inode(directory.unwrap_or(root));
                self.findings.add(place, Kind::Damaged { what });
            }
            // The recorded number of groups may also be wrong, so the search stops after `TOLD` missing files.
            if directory.is_none() || missing >= TOLD {
                break;
            }
        }
    }

    /// Whether a name refers to a file of the right kind. The project id of a realtime group's file must be the number of the group.
    fn check_kind(&mut self, number: InodeNo, (kind, group): (u16, Option<u32>)) -> bool {
        let Some(found) = self.again(number).filter(Found::is_metadata) else {
            // If the name refers to a wrong inode, the check of the directory has reported it.
            return false;
        };
        let stored = found.raw.di_onlink.get();
        self.findings.expect(found.place("di_metatype"), stored, kind);
        let of_group = group.is_none_or(|group| {
            self.findings.expect(found.place("di_projid"), found.project(), group)
        });
        stored == kind && of_group
    }
}
