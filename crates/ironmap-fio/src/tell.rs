//! Messages for fio's user. fio's own function prints them.

use std::ffi::CString;
#[cfg(all(fio, not(test)))]
use std::ffi::c_char;
use std::sync::{Mutex, PoisonError};

#[cfg(all(fio, not(test)))]
unsafe extern "C" {
    fn ironmap_fio_tell(line: *const c_char);
}

/// Prints a line for fio's user. Each line is printed only once, because similar jobs report the same errors.
pub(crate) fn tell(line: &str) {
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.len() >= 64 || told.iter().any(|known| known == line) {
        return;
    }
    told.push(line.to_owned());
    drop(told);
    let line = CString::new(line.replace('\0', " ")).unwrap_or_default();
    #[cfg(all(fio, not(test)))]
    // SAFETY: the argument is a C string, which the function only reads.
    unsafe {
        ironmap_fio_tell(line.as_ptr());
    }
    #[cfg(not(all(fio, not(test))))]
    eprintln!("ironmap: {}", line.to_string_lossy());
}
