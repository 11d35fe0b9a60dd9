//! Packages for the registry: a build from them alone. tests/house checks their files.

use std::fs;
use std::path::PathBuf;

use crate::shell::{Result, fail, say, sh, target, variable};

/// The crates that are published, in the order of publication, each with the greatest size of its compressed package in KiB.
const PACKAGES: [(&str, u64); 3] = [("ironmap", 1024), ("ironmap-load", 64), ("ironmap-cli", 512)];

/// Packs all crates, builds each from its package, and checks its size. The program is built with the packed library, so this needs no
/// registry that has the library; only the upload itself remains untried.
pub(crate) fn run() -> Result {
    say("house rules, the lists of files among them");
    sh("cargo run --quiet -p house")?;
    say("cargo package");
    forget_unpacked()?;
    let names: String = PACKAGES.iter().map(|(name, _)| format!(" -p {name}")).collect();
    sh(&format!("cargo package --locked --allow-dirty{names}"))?;
    for (name, max_kib) in &PACKAGES {
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
        for (name, _) in &PACKAGES {
            let unpacked = registry.join(format!("{name}-{}", env!("CARGO_PKG_VERSION")));
            if unpacked.exists() {
                fs::remove_dir_all(unpacked)?;
            }
        }
    }
    Ok(())
}
