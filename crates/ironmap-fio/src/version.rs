//! The version of fio that this engine was built for, and the version of the running fio.

use std::ffi::CStr;

/// The version, such as fio-3.33. The text is empty if the engine was built without fio's source.
pub(crate) const BUILT_FOR: &str = env!("FIO_VERSION");

/// Compares the version of the running fio with the version of the header, because fio's structures differ between versions.
///
/// # Errors
/// The error is the message for the user.
pub(crate) fn check() -> Result<(), String> {
    compare(BUILT_FOR, running().as_deref())
}

fn compare(built_for: &str, running: Option<&str>) -> Result<(), String> {
    let built_for = Some(built_for).filter(|version| !version.is_empty());
    match (built_for, running) {
        (None, _) => {
            Err("this engine was built without fio's source (FIO_SRC): ./x fio build".to_owned())
        }
        (Some(_), None) => {
            Err("the program that loads this engine does not report a version of fio".to_owned())
        }
        (Some(built), Some(running)) if built != running => Err(format!(
            "this engine was built for {built}, but {running} loads it: build the engine with the source of {running}"
        )),
        _ => Ok(()),
    }
}

/// The version that the running program reports.
fn running() -> Option<String> {
    // SAFETY: the name is a C string, and the pseudo handle is always valid.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"fio_version_string".as_ptr()) };
    if symbol.is_null() {
        return None;
    }
    // SAFETY: the symbol is a constant array that ends with a zero byte (init.c), in every version of fio that loads engines.
    let text = unsafe { CStr::from_ptr(symbol.cast()) };
    Some(text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_fio_that_it_was_built_for_gets_the_engine() {
        assert_eq!(compare("fio-3.33", Some("fio-3.33")), Ok(()));
        assert!(compare("fio-3.33", Some("fio-3.36")).is_err_and(|line| line.contains("fio-3.36")));
        assert!(compare("fio-3.33", None).is_err());
        assert!(compare("", Some("fio-3.33")).is_err_and(|line| line.contains("FIO_SRC")));
    }

    #[test]
    fn a_program_that_is_not_fio_tells_no_version() {
        assert_eq!(running(), None);
    }
}
