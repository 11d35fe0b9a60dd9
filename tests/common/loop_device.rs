//! Loop devices. When the guard of a loop device is dropped, the device is detached.

use std::ffi::OsStr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::command::{output, run};
use super::process::until;

/// A loop device over a file. When the value is dropped, the device is detached, and the drop waits until the device is closed by its last
/// user. Only then does the kernel release the file. Without the wait, another test that searches for its own loop device could find this
/// device.
pub(crate) struct LoopDevice {
    node: String,
    attachment: Attachment,
}

impl LoopDevice {
    /// A loop device that can be read and written.
    pub(crate) fn new(file: impl AsRef<OsStr>) -> Self {
        Self::with(&[], file)
    }

    /// A loop device with these options of losetup(8).
    pub(crate) fn with(options: &[&str], file: impl AsRef<OsStr>) -> Self {
        let mut args: Vec<&OsStr> = options.iter().map(AsRef::as_ref).collect();
        args.extend(["--find".as_ref(), "--show".as_ref(), file.as_ref()]);
        let node = String::from_utf8(run("losetup", &args)).expect("a device's name");
        let node = node.trim().to_owned();
        Self { attachment: Attachment::of(&node), node }
    }

    /// The path in `/dev`.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// Adds a partition to the device by a system call, so no partition table is needed. The start and the length are in MiB. Returns the
    /// path of the partition. If the device was attached with `--partscan`, the kernel removes the partition when the device is detached.
    pub(crate) fn partition(&self, number: u64, start: u64, len: u64) -> String {
        let sectors = |mib: u64| (mib * 2048).to_string();
        run("addpart", &[&self.node, &number.to_string(), &sectors(start), &sectors(len)]);
        let node = format!("{}p{number}", self.node);
        // A program that writes to a missing device leaves a file with the device's name, and the kernel does not replace this file.
        let is_device =
            std::fs::metadata(&node).is_ok_and(|node| node.file_type().is_block_device());
        assert!(is_device, "{node} is not a block device: remove the file with this name");
        node
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        output("losetup", &["--detach", &self.node]);
        self.attachment.wait_ended();
    }
}

/// The use of a loop device for one file, from its attachment to its detachment. After the detachment, the kernel may use the number of the
/// device for another file.
pub(crate) struct Attachment {
    dir: PathBuf,
    sequence: String,
}

impl Attachment {
    /// The file to which the loop device of this device node is attached now.
    pub(crate) fn of(node: &str) -> Self {
        let name = node.strip_prefix("/dev/").expect("a node below /dev");
        let dir = Path::new("/sys/block").join(name);
        Self { sequence: sequence(&dir).expect("a loop device"), dir }
    }

    /// Waits until the device is detached and closed.
    pub(crate) fn wait_ended(&self) {
        let has_ended = || {
            !self.dir.join("loop").exists() || sequence(&self.dir).as_ref() != Some(&self.sequence)
        };
        // After a failure, the test may still have the device open, and a wait could last forever. So a failed test does not wait.
        if !std::thread::panicking() {
            until(&format!("{} is let go", self.dir.display()), has_ended);
        }
    }
}

/// The number that the kernel gives to the medium of the device, and increments when the medium changes (sysfs-block, `diskseq`).
fn sequence(dir: &Path) -> Option<String> {
    std::fs::read_to_string(dir.join("diskseq")).ok()
}
