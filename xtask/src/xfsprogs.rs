//! A newer xfsprogs than the system's, for the tests of features that this one does not know.

use std::path::{Path, PathBuf};

use crate::shell::{Result, command, fail, output, skip, target, variable};

/// The variable that names the directory of the programs.
pub(crate) const VARIABLE: &str = "IRONMAP_XFSPROGS";
/// The release of Debian whose programs are unpacked.
const RELEASE: &str = "forky";
const PROGRAMS: &str = "mkfs.xfs xfs_db xfs_io xfs_mdrestore xfs_repair";
/// The first version with all features that the tests make.
const FIRST: (u32, u32) = (6, 15);

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
    let dir = target("xfsprogs").join(RELEASE);
    let mut unpack = command("lab/newer.sh");
    unpack.args([RELEASE, "xfsprogs"]).arg(&dir).args(PROGRAMS.split(' '));
    let unpacked = unpack.output()?;
    if unpacked.status.success() && is_new(&dir.join("bin")) {
        return Ok(Some(dir.join("bin")));
    }
    let said = [unpacked.stderr, unpacked.stdout].concat();
    let said = String::from_utf8_lossy(&said);
    let why = said.lines().last().unwrap_or("they do not run here");
    skip(&format!("newer xfsprogs: {why}")).map(|()| None)
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
