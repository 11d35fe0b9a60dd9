//! Volumes that others made and broke: the images of e2fsprogs' own tests, for tests/foreign.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::debian_source::{self, logged};
use crate::shell::{Failure, Result, command, run, skip, variable};

/// The variable that names the directory of the images.
pub(crate) const VARIABLE: &str = "IRONMAP_FOREIGN_IMAGES";

/// The tests of all images, or of those whose names contain this.
pub(crate) fn tests(name: &str) -> Result {
    let Some(images) = images()? else { return Ok(()) };
    let mut tests = command("cargo test --test foreign -- --nocapture");
    run(tests.env(VARIABLE, images).env("IRONMAP_FOREIGN", name))
}

/// The directory of the images, each under the name of the test that it belongs to. Without them a message says so, and their tests are skipped.
pub(crate) fn images() -> Result<Option<PathBuf>> {
    if let Some(images) = variable(VARIABLE) {
        return Ok(Some(images.into()));
    }
    match debian_source::source("e2fsprogs", unpack) {
        Ok(source) => Ok(Some(source.join("images"))),
        Err(Failure::Why(why)) => skip(&format!("foreign images: {why}")).map(|()| None),
        Err(status) => Err(status),
    }
}

/// Unpacks the images into files with holes.
fn unpack(source: &Path, log: &File) -> Result {
    fs::create_dir(source.join("images"))?;
    const EACH: &str = "set -e; for packed in tests/*/image.gz tests/*/image.bz2; do
        case $packed in *.gz) program=gzip;; *) program=bzip2;; esac
        name=$(basename \"$(dirname $packed)\")
        $program -dc $packed > packed
        dd bs=64K conv=sparse if=packed of=images/$name; done";
    logged(command("sh -c").arg(EACH).current_dir(source), log)
}
