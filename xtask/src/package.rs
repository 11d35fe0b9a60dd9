//! Packages for the registry: the files that they contain, and a build from them alone.

use std::fs;
use std::path::PathBuf;

use crate::shell::{Result, command, fail, output, say, sh, target, variable};

/// Each crate that is published, in the order of publication (not the fio engine, which is under the GPL): the files that its package must contain, the files and folders that it
/// may contain, and the greatest size of its compressed package in KiB.
struct Package {
    name: &'static str,
    needs: &'static [&'static str],
    may: &'static [&'static str],
    max_kib: u64,
}

const PACKAGES: [Package; 3] = [
    Package {
        name: "ironmap",
        needs: &["src/lib.rs", "README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"],
        may: &["src/", "README.md", "CHANGELOG.md", "LICENSE-"],
        max_kib: 1024,
    },
    Package {
        name: "ironmap-load",
        needs: &["src/lib.rs", "LICENSE-MIT", "LICENSE-APACHE"],
        may: &["src/", "LICENSE-"],
        max_kib: 64,
    },
    Package {
        name: "ironmap-cli",
        needs: &["src/main.rs", "README.md", "LICENSE-MIT", "LICENSE-APACHE"],
        may: &["src/", "README.md", "LICENSE-"],
        max_kib: 512,
    },
];

/// Cargo adds these to each package.
const OF_CARGO: [&str; 4] = ["Cargo.toml", "Cargo.toml.orig", "Cargo.lock", ".cargo_vcs_info.json"];

/// Checks the list of files of each package, and that no other crate is one. It builds nothing.
pub(crate) fn lists() -> Result {
    let metadata = output(&mut command("cargo metadata --no-deps --format-version 1"))?;
    let published = metadata.matches("\"publish\":null").count();
    if published != PACKAGES.len() {
        return fail(format!(
            "{published} crates lack `publish = false`, of {} packages",
            PACKAGES.len()
        ));
    }
    for package in &PACKAGES {
        let list = output(command("cargo package --allow-dirty --list -p").arg(package.name))?;
        package.check(&list).or_else(fail)?;
        package.check_licences()?;
    }
    Ok(())
}

/// Packs all crates, builds each from its package, and checks its size. The program is built with the packed library, so this needs no
/// registry that has the library; only the upload itself remains untried.
pub(crate) fn run() -> Result {
    say("lists of files");
    lists()?;
    say("cargo package");
    forget_unpacked()?;
    let names: String = PACKAGES.iter().map(|package| format!(" -p {}", package.name)).collect();
    sh(&format!("cargo package --locked --allow-dirty{names}"))?;
    for Package { name, max_kib, .. } in &PACKAGES {
        let version = env!("CARGO_PKG_VERSION");
        let path = target(&format!("package/{name}-{version}.crate"));
        let kib = fs::metadata(&path)?.len().div_ceil(1024);
        println!("{}: {kib} KiB", path.display());
        if kib > *max_kib {
            return fail(format!("the package of {name} is larger than {max_kib} KiB"));
        }
    }
    Ok(())
}

/// Removes the library that cargo unpacked in an earlier run. cargo takes it again as long as its version is the same, and builds the program with
/// an old library.
fn forget_unpacked() -> Result {
    let home = variable("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cargo")));
    let Some(Ok(registries)) = home.map(|home| fs::read_dir(home.join("registry/src"))) else {
        return Ok(());
    };
    for registry in registries {
        let registry = registry?.path();
        for Package { name, .. } in &PACKAGES {
            let unpacked = registry.join(format!("{name}-{}", env!("CARGO_PKG_VERSION")));
            if unpacked.exists() {
                fs::remove_dir_all(unpacked)?;
            }
        }
    }
    Ok(())
}

impl Package {
    /// The licences that are packed are those of the repository: a link to them need not survive a copy of the tree.
    fn check_licences(&self) -> Result {
        let folder =
            if self.name == "ironmap" { ".".into() } else { format!("crates/{}", self.name) };
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            if fs::read(format!("{folder}/{licence}"))? != fs::read(licence)? {
                return fail(format!("{folder}/{licence} is not the licence"));
            }
        }
        Ok(())
    }

    fn check(&self, list: &str) -> std::result::Result<(), String> {
        let files: Vec<_> = list.lines().collect();
        if let Some(missing) = self.needs.iter().find(|needed| !files.contains(needed)) {
            return Err(format!("the package of {} lacks {missing}", self.name));
        }
        let permitted = |file: &&str| {
            OF_CARGO.contains(file) || self.may.iter().any(|prefix| file.starts_with(prefix))
        };
        match files.iter().find(|file| !permitted(file)) {
            Some(file) => Err(format!("the package of {} contains {file}", self.name)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A package has its licences, and no tests or images.
    #[test]
    fn a_list_is_checked_in_both_directions() {
        let good = "Cargo.toml\nLICENSE-APACHE\nLICENSE-MIT\nREADME.md\nsrc/main.rs\nsrc/cli.rs\n";
        assert_eq!(PACKAGES[2].check(good), Ok(()));
        let lacks = good.replace("LICENSE-MIT\n", "");
        assert_eq!(
            PACKAGES[2].check(&lacks),
            Err("the package of ironmap-cli lacks LICENSE-MIT".into())
        );
        let more = format!("{good}tests/cli/main.rs\n");
        assert_eq!(
            PACKAGES[2].check(&more),
            Err("the package of ironmap-cli contains tests/cli/main.rs".into())
        );
    }
}
