//! Whole disks, and hash trees of dm-verity.
//!
//! A disk has a GPT and partitions with their content. A hash tree verifies each block of read-only data. A location names an image file, a
//! device or a partition, as for `ironmap_volume_open`.

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::{ptr, slice};

use ::ironmap_image::Stop;
use ::ironmap_image::disk::{Disk, DiskPart, MadePart};
use ::ironmap_image::verity::{Hash, MadeTree, Tree};
use ironmap::Error;

use crate::failure::call;
use crate::image::{error, progress};
use crate::memory::{Out, bytes, copy_text, options, path, text};
use crate::process::in_quiet_thread;

/// The largest number of partitions of a GPT.
const MOST_PARTS: usize = 128;

/// The options of `ironmap_disk_build`. The caller zeroes the structure first; 0 stands for the default.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_disk_options {
    /// The size of the disk in bytes; 0 stands for the needs of the partitions, or the size of the device.
    pub size: u64,
    /// The sector size of an image: 512 or 4096; 0 stands for 512. A device has its own sector size.
    pub sector_size: u32,
    /// 1 overwrites known content.
    pub force: u32,
    /// The GUID of the disk, 16 bytes; NULL for a random or derived GUID.
    pub guid: *const u8,
    /// All GUIDs, UUIDs and salts that are not given are derived from this text; NULL for random ones.
    pub seed: *const c_char,
    /// 1 makes a reproducible disk: no time on the disk is later than `source_date_epoch`, and without `seed`, values are derived from it.
    pub has_source_date_epoch: u32,
    /// Must be 0.
    pub reserved: u32,
    /// A time in seconds since 1970.
    pub source_date_epoch: i64,
}

impl Default for ironmap_disk_options {
    fn default() -> Self {
        Self {
            size: 0,
            sector_size: 0,
            force: 0,
            guid: ptr::null(),
            seed: ptr::null(),
            has_source_date_epoch: 0,
            reserved: 0,
            source_date_epoch: 0,
        }
    }
}

impl ironmap_disk_options {
    /// # Safety
    /// `guid` is NULL or can be read for 16 bytes, and `seed` is NULL or ends with a zero byte.
    unsafe fn disk(&self) -> Result<Disk, Error> {
        if self.force > 1 || self.has_source_date_epoch > 1 || self.reserved != 0 {
            return Err(Error::invalid("each flag of the disk must be 0 or 1"));
        }
        let mut disk = Disk::new().force(self.force == 1);
        if self.size > 0 {
            disk = disk.size(self.size);
        }
        if self.sector_size > 0 {
            disk = disk.sector_size(self.sector_size);
        }
        // SAFETY: the caller guarantees that `guid` is NULL or can be read for 16 bytes.
        if let Some(guid) = unsafe { identity(self.guid) }? {
            disk = disk.guid(guid);
        }
        if !self.seed.is_null() {
            // SAFETY: the caller guarantees that `seed` ends with a zero byte.
            let seed = unsafe { text(self.seed, "the seed") }?;
            disk = disk.seed(String::from_utf8_lossy(seed));
        }
        if self.has_source_date_epoch == 1 {
            disk = disk.source_date_epoch(self.source_date_epoch);
        }
        Ok(disk)
    }
}

/// Returns the 16 bytes of a GUID or UUID, or `None` for NULL.
///
/// # Safety
/// `id` is NULL or can be read for 16 bytes.
unsafe fn identity(id: *const u8) -> Result<Option<[u8; 16]>, Error> {
    if id.is_null() {
        return Ok(None);
    }
    let mut copy = [0; 16];
    // SAFETY: the caller guarantees that `id` can be read for 16 bytes.
    copy.copy_from_slice(unsafe { bytes(id.cast(), 16) }?);
    Ok(Some(copy))
}

/// A partition that was made.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_disk_part {
    /// The GUID of the type.
    pub kind: [u8; 16],
    /// The GUID of the partition.
    pub guid: [u8; 16],
    /// The first byte on the disk.
    pub start: u64,
    /// The length in bytes.
    pub length: u64,
    /// The content: "ext4", "FAT", "swap", "verity" or "".
    pub content: [c_char; 16],
    /// 1 if the partition has a hash tree of dm-verity in another partition.
    pub has_root_hash: u32,
    /// The root hash of this tree.
    pub root_hash: [u8; 32],
}

fn part(made: &MadePart) -> ironmap_disk_part {
    let mut content = [0; 16];
    copy_text(made.content.as_bytes(), &mut content);
    ironmap_disk_part {
        kind: made.kind,
        guid: made.guid,
        start: made.start,
        length: made.len,
        content,
        has_root_hash: made.root_hash.is_some().into(),
        root_hash: made.root_hash.unwrap_or_default(),
    }
}

/// Parses the descriptions of the partitions.
///
/// # Safety
/// `parts` points to `count` texts that end with a zero byte.
unsafe fn parsed(parts: *const *const c_char, count: usize) -> Result<Vec<DiskPart>, Error> {
    if parts.is_null() || !parts.is_aligned() || count == 0 || count > MOST_PARTS {
        return Err(Error::invalid("a disk needs from 1 to 128 partitions"));
    }
    // SAFETY: the caller guarantees that `parts` points to `count` texts, and the count was checked.
    let texts = unsafe { slice::from_raw_parts(parts, count) };
    let parse = |one: &*const c_char| {
        // SAFETY: the caller guarantees that each text ends with a zero byte.
        let text = String::from_utf8_lossy(unsafe { text(*one, "the partition") }?);
        DiskPart::parse(&text).map_err(|failure| Error::invalid(format!("{text}: {failure}")))
    };
    texts.iter().map(parse).collect()
}

/// Makes a disk: a GPT, partitions, and their content, in an image file or on a device. An image file is made under a temporary name.
///
/// Each of the `count` partitions is a text TYPE:SIZE[:KEY=VALUE,...], as for the command `ironmap disk`, such as "esp:256M:files=efi" or
/// "root:rest:files=tree,label=root". `options` may be NULL; `size` is `sizeof(struct ironmap_disk_options)`. `made` may be NULL; otherwise
/// the call stores the properties of the partitions in this array of `count` structures, and `made_size` is
/// `sizeof(struct ironmap_disk_part)`. `progress` and `arg` are used as in `ironmap_image_build`.
///
/// Returns 0; -EEXIST if the location has known content and `force` is 0; -EBUSY if the location is in use, or is a member of an MD array or
/// of an LVM volume group; -ENOSPC if the content does not fit; -EINTR if `progress` has ended the call; -EAGAIN if no thread can be
/// started; -E2BIG for an option that this version does not know; -EINVAL for a wrong description; -ENOENT, -EACCES, -EIO.
///
/// # Safety
/// The texts end with a zero byte, `parts` points to `count` texts, `options` can be read for `size` bytes, `made` is NULL or can be written
/// to for `count` structures, and `progress` can be called with `arg`.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "C has no other way to name arguments")]
pub unsafe extern "C" fn ironmap_disk_build(
    location: *const c_char,
    parts: *const *const c_char,
    count: usize,
    options: *const ironmap_disk_options,
    size: usize,
    made: *mut ironmap_disk_part,
    made_size: usize,
    progress: Option<unsafe extern "C" fn(arg: *mut c_void, files: u64, bytes: u64) -> c_int>,
    arg: *mut c_void,
) -> c_int {
    call(None, || {
        // SAFETY: the caller guarantees that `location` is NULL or ends with a zero byte.
        let location = unsafe { path(location) }?;
        // SAFETY: the caller guarantees that `options` is NULL or can be read for `size` bytes. Its pointers are checked before they are used.
        let options = unsafe { self::options(options, size) }?;
        // SAFETY: the caller guarantees the pointers in `options`.
        let mut disk = unsafe { options.disk() }?;
        // SAFETY: the caller guarantees that `parts` points to `count` texts.
        for part in unsafe { parsed(parts, count) }? {
            disk = disk.part(part);
        }
        let place = |index: usize| {
            let to = made.cast::<u8>().wrapping_add(index * made_size);
            // SAFETY: the caller guarantees that `made` can be written to for `count` structures of `made_size` bytes.
            unsafe { Out::new(to.cast::<ironmap_disk_part>(), made_size) }
        };
        if !made.is_null() {
            place(0)?;
        }
        let stop = Stop::default();
        disk = disk.stop(&stop);
        if let Some(bar) = self::progress(progress, arg, &stop) {
            disk = disk.progress(bar);
        }
        let built = in_quiet_thread(|| disk.build(location))?.map_err(|failure| error(&failure))?;
        if !made.is_null() {
            for (index, one) in built.parts.iter().take(count).enumerate() {
                place(index)?.set(part(one));
            }
        }
        Ok(())
    }) as c_int
}

/// The options of `ironmap_verity_make`. The caller zeroes the structure first; 0 stands for the default.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_verity_options {
    /// The size of a data block: a power of two from 512 to 524288; 0 stands for 4096.
    pub data_block_size: u32,
    /// The size of a hash block: a power of two from 512 to 524288; 0 stands for 4096.
    pub hash_block_size: u32,
    /// The salt; NULL for a random salt of 32 bytes.
    pub salt: *const u8,
    /// The length of the salt in bytes, at most 256.
    pub salt_size: u64,
    /// The UUID, 16 bytes; NULL for a random UUID.
    pub uuid: *const u8,
    /// 1 overwrites known content in the place of the tree.
    pub force: u32,
    /// Must be 0.
    pub reserved: u32,
}

impl Default for ironmap_verity_options {
    fn default() -> Self {
        Self {
            data_block_size: 0,
            hash_block_size: 0,
            salt: ptr::null(),
            salt_size: 0,
            uuid: ptr::null(),
            force: 0,
            reserved: 0,
        }
    }
}

impl ironmap_verity_options {
    /// # Safety
    /// `salt` is NULL or can be read for `salt_size` bytes, and `uuid` is NULL or can be read for 16 bytes.
    unsafe fn tree(&self) -> Result<Tree, Error> {
        if self.force > 1 || self.reserved != 0 {
            return Err(Error::invalid("the option force must be 0 or 1"));
        }
        let mut tree = Tree::new().force(self.force == 1);
        if self.data_block_size > 0 {
            tree = tree.data_block_size(self.data_block_size);
        }
        if self.hash_block_size > 0 {
            tree = tree.hash_block_size(self.hash_block_size);
        }
        if !self.salt.is_null() {
            let len = usize::try_from(self.salt_size).unwrap_or(usize::MAX);
            // SAFETY: the caller guarantees that `salt` can be read for `salt_size` bytes.
            tree = tree.salt(unsafe { bytes(self.salt.cast(), len) }?);
        }
        // SAFETY: the caller guarantees that `uuid` is NULL or can be read for 16 bytes.
        if let Some(uuid) = unsafe { identity(self.uuid) }? {
            tree = tree.uuid(uuid);
        }
        Ok(tree)
    }
}

/// A hash tree that was made.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_verity_info {
    /// The root hash.
    pub root_hash: [u8; 32],
    /// The UUID.
    pub uuid: [u8; 16],
    /// The position of the superblock on the device of the tree, in bytes.
    pub offset: u64,
    /// The length of the superblock and the tree in bytes.
    pub length: u64,
    /// The number of data blocks.
    pub data_blocks: u64,
}

/// Returns the location of a hash tree. Returns `None` for NULL: the tree is then at the end of the data.
///
/// # Safety
/// `hash` is NULL or ends with a zero byte.
unsafe fn place_of_tree<'a>(hash: *const c_char) -> Result<Option<&'a OsStr>, Error> {
    if hash.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller guarantees that `hash` ends with a zero byte.
    Ok(Some(OsStr::from_bytes(unsafe { text(hash, "the place of the tree") }?)))
}

/// Makes the hash tree of the data at a location. The format is that of veritysetup. The tree is written to the location `hash`: a device, a
/// partition, or an image file, which is made if it does not exist. If `hash` is NULL, the tree is appended to the data, which must be an image
/// file. The data must not change afterwards.
///
/// `options` may be NULL; `size` is `sizeof(struct ironmap_verity_options)`. The call stores the root hash and other properties of the tree in
/// `info`; `info_size` is `sizeof(struct ironmap_verity_info)`.
///
/// Returns 0; -EEXIST if the place of the tree has known content and `force` is 0; -EBUSY if the data or the place are in use; -EAGAIN if no
/// thread can be started; -E2BIG for an option that this version does not know; -EINVAL for wrong options, and for data whose size is not a
/// multiple of a data block; -ENOENT, -EACCES, -EIO.
///
/// # Safety
/// The texts end with a zero byte, `options` can be read for `size` bytes, and `info` can be written to for `info_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_verity_make(
    data: *const c_char,
    hash: *const c_char,
    options: *const ironmap_verity_options,
    size: usize,
    info: *mut ironmap_verity_info,
    info_size: usize,
) -> c_int {
    call(None, || {
        // SAFETY: the caller guarantees that `info` is NULL or can be written to for `info_size` bytes.
        let out = unsafe { Out::new(info, info_size) }?;
        // SAFETY: the caller guarantees that `data` is NULL or ends with a zero byte.
        let data = unsafe { path(data) }?;
        // SAFETY: the caller guarantees that `hash` is NULL or ends with a zero byte.
        let hash = unsafe { place_of_tree(hash) }?;
        // SAFETY: the caller guarantees that `options` is NULL or can be read for `size` bytes. Its pointers are checked before they are used.
        let options = unsafe { self::options(options, size) }?;
        // SAFETY: the caller guarantees the pointers in `options`.
        let tree = unsafe { options.tree() }?;
        let made = in_quiet_thread(|| tree.make(data, hash))?.map_err(|failure| error(&failure))?;
        let MadeTree { root, offset, parameters, .. } = made;
        out.set(ironmap_verity_info {
            root_hash: root,
            uuid: parameters.uuid,
            offset,
            length: parameters.tree_size(),
            data_blocks: parameters.data_blocks,
        });
        Ok(())
    }) as c_int
}

/// Verifies each block of the data at a location with the hash tree at the location `hash` and a root hash of 32 bytes. If `hash` is NULL, the
/// tree is at the end of the data.
///
/// Returns 0; -EUCLEAN if a block does not match: `ironmap_failure` names it; -EINVAL if there is no tree; -EBUSY if the data or the tree are
/// being written; -EAGAIN if no thread can be started; -ENOENT, -EACCES, -EIO.
///
/// # Safety
/// The texts end with a zero byte, and `root_hash` can be read for 32 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_verity_check(
    data: *const c_char,
    hash: *const c_char,
    root_hash: *const u8,
) -> c_int {
    call(None, || {
        // SAFETY: the caller guarantees that `data` is NULL or ends with a zero byte.
        let data = unsafe { path(data) }?;
        // SAFETY: the caller guarantees that `hash` is NULL or ends with a zero byte.
        let hash = unsafe { place_of_tree(hash) }?;
        let mut root = Hash::default();
        // SAFETY: the caller guarantees that `root_hash` can be read for 32 bytes.
        root.copy_from_slice(unsafe { bytes(root_hash.cast(), 32) }?);
        let checked = in_quiet_thread(|| Tree::verify(data, hash, &root))?;
        checked.map_err(|failure| error(&failure)).map(drop)
    }) as c_int
}
