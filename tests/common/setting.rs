//! System-wide settings that a test changes. They are restored after the test, even if the test is killed.

use tempfile::TempDir;

use super::image::scratch;

/// A changed setting below `/proc/sys`. When the value is dropped, the setting is restored. While a setting is changed, no other test of
/// the program may run.
pub(crate) struct Setting {
    path: &'static str,
    before: String,
    /// The file that contains the previous value. If the process ends without the drop, `./x clean-up` restores the setting from this file.
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
