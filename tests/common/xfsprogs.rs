//! A newer xfsprogs than the system's, which `./x test` builds.

use std::path::Path;

/// Names the directory of its programs.
pub(crate) const VARIABLE: &str = "IRONMAP_XFSPROGS";

/// The path of one of the programs, if the variable is set.
pub(crate) fn newer(program: &str) -> String {
    let dir = std::env::var(VARIABLE).expect("the test needs the variable");
    Path::new(&dir).join(program).to_str().expect("a plain path").to_owned()
}
