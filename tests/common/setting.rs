//! Settings of the whole system, changed by a test and restored after it, even if the test is killed.

use tempfile::TempDir;

use super::image::scratch;

/// A changed setting below `/proc/sys`, restored by the drop. A program may change one only if no other test runs beside it.
pub(crate) struct Setting {
    path: &'static str,
    before: String,
    /// The record by which `./x clean-up` restores the setting if the drop never happens.
    _record: TempDir,
}

impl Setting {
    pub(crate) fn change(path: &'static str, value: &str) -> Self {
        let before = std::fs::read_to_string(path).unwrap().trim().to_owned();
        let record = scratch();
        std::fs::write(record.path().join("setting"), format!("{path} {before}\n")).unwrap();
        std::fs::write(path, value).unwrap();
        Self { path, before, _record: record }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = std::fs::write(self.path, &self.before);
    }
}
