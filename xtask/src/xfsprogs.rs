//! A newer xfsprogs than the system's, for the tests of features that this one does not know.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::debian_source::{self, logged};
use crate::shell::{Failure, Result, command, fail, output, skip, variable};

/// The variable that names the directory of the programs.
pub(crate) const VARIABLE: &str = "IRONMAP_XFSPROGS";
/// The release of Debian whose source is built.
const RELEASE: &str = "trixie";
/// The first version with all features that the tests make.
const FIRST: (u32, u32) = (6, 12);

/// Prints the directory of the programs.
pub(crate) fn print() -> Result {
    let Some(dir) = programs()? else { return fail("no newer xfsprogs") };
    println!("{}", dir.display());
    Ok(())
}

/// The directory of the programs. Without them a message says so, and their tests are skipped.
pub(crate) fn programs() -> Result<Option<PathBuf>> {
    if let Some(dir) = variable(VARIABLE) {
        return Ok(Some(dir.into()));
    }
    let system = Path::new("/usr/sbin");
    if is_new(system) {
        return Ok(Some(system.to_owned()));
    }
    let built = debian_source::source_of("xfsprogs", RELEASE, build);
    match built.map(|source| source.join("bin")) {
        Ok(dir) if is_new(&dir) => Ok(Some(dir)),
        Ok(_) => skip("newer xfsprogs: the source is too old").map(|()| None),
        Err(Failure::Why(why)) => skip(&format!("newer xfsprogs: {why}")).map(|()| None),
        Err(status) => Err(status),
    }
}

fn is_new(dir: &Path) -> bool {
    let version = output(std::process::Command::new(dir.join("mkfs.xfs")).arg("-V"));
    number(&version.unwrap_or_default()).is_some_and(|version| version >= FIRST)
}

/// The first two numbers of `mkfs.xfs version 6.13.0`.
fn number(said: &str) -> Option<(u32, u32)> {
    let mut numbers = said.split_whitespace().last()?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Builds the programs that the tests use, and the libraries in them.
fn build(source: &Path, log: &File) -> Result {
    const EACH: &str = "set -e
        ./configure --disable-shared --enable-gettext=no --enable-scrub=no --enable-libicu=no
        make headers
        make -j\"$(nproc)\" mkfs db repair io mdrestore
        mkdir bin
        cp mkfs/mkfs.xfs db/xfs_db repair/xfs_repair io/xfs_io mdrestore/xfs_mdrestore bin";
    logged(command("sh -c").arg(EACH).current_dir(source), log)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        assert_eq!(number("mkfs.xfs version 6.13.0\n"), Some((6, 13)));
        assert_eq!(number("mkfs.xfs version 7.1\n"), Some((7, 1)));
        assert_eq!(number(""), None);
    }
}
