//! Volumes that others made and broke: the images of e2fsprogs' own tests, for tests/foreign.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::debian_source::{self, find, logged};
use crate::shell::{Result, command, fail, run, skip, spawn, target, variable, wait};

/// The variable that names the directory of the images.
pub(crate) const VARIABLE: &str = "IRONMAP_FOREIGN_IMAGES";

/// The tests of all images, or of those whose names contain this.
pub(crate) fn tests(name: &str) -> Result {
    let Some(images) = images()? else { return Ok(()) };
    let mut tests = command("cargo test --test foreign -- --nocapture");
    run(tests.env(VARIABLE, images).env("IRONMAP_FOREIGN", name))
}

/// The directory of the images. Without them a message says so, and their tests are skipped.
pub(crate) fn images() -> Result<Option<PathBuf>> {
    if let Some(images) = variable(VARIABLE) {
        return Ok(Some(images.into()));
    }
    let Some(version) = debian_source::version("e2fsprogs") else {
        skip("foreign images: no source packages here")?;
        return Ok(None);
    };
    let cache = target("e2fsprogs").join(&version);
    let images = cache.join("images");
    if !images.is_dir() && make(&version, &cache).is_err() {
        skip(&format!("foreign images: apt-get source e2fsprogs={version} failed"))?;
        return Ok(None);
    }
    Ok(Some(images))
}

/// Makes each image under the name of the test that it belongs to: all or nothing.
fn make(version: &str, cache: &Path) -> Result {
    fs::create_dir_all(cache)?;
    let log = File::create(target("e2fsprogs/log"))?;
    debian_source::download("e2fsprogs", version, cache, &log)?;
    let [source, unpacked] = ["source", "unpacked"].map(|name| cache.join(name));
    for dir in [&source, &unpacked] {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir(dir)?;
    }
    let Some(archive) = find(cache, "e2fsprogs_", &[".orig.tar.gz", ".orig.tar.xz"]) else {
        return fail("apt-get source left no archive");
    };
    let mut tar = command("tar --strip-components 2 --wildcards");
    tar.arg("-C").arg(&source).arg("-xf").arg(archive);
    logged(tar.args(["*/tests/*/image.gz", "*/tests/*/image.bz2"]), &log)?;
    for test in fs::read_dir(&source)? {
        let test = test?;
        for (name, program) in [("image.gz", "gzip"), ("image.bz2", "bzip2")] {
            let image = test.path().join(name);
            if image.exists() {
                unpack(program, &image, &unpacked.join(test.file_name()))?;
            }
        }
    }
    fs::remove_dir_all(&source)?;
    Ok(fs::rename(unpacked, cache.join("images"))?)
}

/// Unpacks an image into a file with holes.
fn unpack(program: &str, packed: &Path, image: &Path) -> Result {
    let mut unpacked = spawn(command(program).arg("-dc").arg(packed).stdout(Stdio::piped()))?;
    let mut dd = command("dd bs=64K iflag=fullblock conv=sparse status=none");
    dd.arg(format!("of={}", image.display()));
    if let Some(stdout) = unpacked.stdout.take() {
        run(dd.stdin(stdout))?;
    }
    wait(unpacked)
}
