//! The check of a volume's metadata.

use std::ffi::{CString, c_char, c_int, c_void};

use ironmap::fs::check::{Finding, Severity};

use crate::failure::call;
use crate::handle::Handle;
use crate::memory::Out;
use crate::tables::{VOLUMES, ironmap_volume};

/// A fault that a check has found. The texts are valid until the callback returns.
#[repr(C)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_finding {
    /// 0: a note, no fault. 1: a fault that can be repaired without loss. 2: content or names are lost. 3: the volume cannot be used.
    pub severity: u32,
    /// Not used: 0.
    pub unused: u32,
    /// The inode, or UINT64_MAX if it is unknown.
    pub inode: u64,
    /// The block, or UINT64_MAX if it is unknown.
    pub block: u64,
    /// The name of the kind of fault.
    pub kind: *const c_char,
    /// One line with the place and the fault.
    pub message: *const c_char,
}

/// The result of a check.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_check_report {
    /// The number of findings of each severity.
    pub counts: [u64; 4],
    /// The number of inodes in use.
    pub inodes: u64,
    /// The number of directories in use.
    pub directories: u64,
    /// The number of blocks in use.
    pub blocks: u64,
}

fn number(severity: Severity) -> u32 {
    match severity {
        Severity::Note => 0,
        Severity::Repairable => 1,
        Severity::DataLoss => 2,
        Severity::Fatal => 3,
    }
}

fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

/// Calls a function of the caller with a finding.
///
/// # Safety
/// The function can be called with `arg` and a finding.
unsafe fn tell(
    found: unsafe extern "C" fn(*mut c_void, *const ironmap_finding) -> c_int,
    arg: *mut c_void,
    finding: &Finding,
) -> bool {
    let place = &finding.site.place;
    let (kind, message) = (c_text(finding.what.name()), c_text(&finding.to_string()));
    let shown = ironmap_finding {
        severity: number(finding.severity),
        unused: 0,
        inode: place.inode.map_or(u64::MAX, |inode| inode.0),
        block: place.block.map_or(u64::MAX, |block| block.0),
        kind: kind.as_ptr(),
        message: message.as_ptr(),
    };
    // SAFETY: the caller guarantees that `found` can be called with `arg` and a finding.
    unsafe { found(arg, &raw const shown) == 0 }
}

/// Checks all metadata of a volume, and changes nothing. Then calls `found` with `arg` for each finding, in the calling thread. The calls
/// end if `found` returns a value other than 0. At most 100,000 findings are passed.
///
/// `found` and `report` may be NULL. `size` is `sizeof(struct ironmap_check_report)`. In a volume that is open for
/// writing, changes since the last `ironmap_volume_sync` may be reported as faults.
///
/// Returns 0 if there are no faults; 1 if there are faults; -EIO; -EBADF.
///
/// # Safety
/// `found` can be called with `arg` and a finding, and `report` is NULL or can be written to for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_check(
    volume: *mut ironmap_volume,
    found: Option<unsafe extern "C" fn(*mut c_void, *const ironmap_finding) -> c_int>,
    arg: *mut c_void,
    report: *mut ironmap_check_report,
    size: usize,
) -> c_int {
    let handle = Handle::of(volume);
    call(Some(handle), || {
        let open = VOLUMES.get(handle)?;
        let checked = open.volume.fs().check(&mut |_| ())?;
        if !report.is_null() {
            // SAFETY: the caller guarantees that `report` is NULL or can be written to for `size` bytes.
            let out = unsafe { Out::new(report, size) }?;
            out.set(ironmap_check_report {
                counts: checked.counts,
                inodes: checked.inodes,
                directories: checked.directories,
                blocks: checked.blocks,
            });
        }
        if let Some(found) = found {
            for finding in &checked.findings {
                // SAFETY: the caller guarantees that `found` can be called with `arg` and a finding.
                if !unsafe { tell(found, arg, finding) } {
                    break;
                }
            }
        }
        Ok(usize::from(!checked.is_clean()))
    }) as c_int
}
