//! The programs of an xfsprogs version that is newer than the installed one. `./x test` builds it.

use std::path::Path;

/// The environment variable that names the directory of the newer xfsprogs.
pub(crate) const VARIABLE: &str = "IRONMAP_XFSPROGS";

/// The path of a program of the newer xfsprogs. The variable must be set.
pub(crate) fn newer(program: &str) -> String {
    let dir = std::env::var(VARIABLE).expect("the test needs the variable");
    Path::new(&dir).join(program).to_str().expect("a plain path").to_owned()
}
