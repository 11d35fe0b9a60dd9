//! The fio engine: built against the source of the installed fio, tested, and measured beside `ironmap bench`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::debian_source::{self, find, logged};
use crate::shell::{Failure, Result, command, fail, has, run, say, sh, skip, target, variable};

/// Builds the engine for use, or fails without fio's source.
pub(crate) fn build() -> Result {
    let Some(engine) = engine("release")? else { return Err(Failure::Status(1)) };
    println!("ioengine=external:{}", engine.display());
    Ok(())
}

pub(crate) fn test(ironmap: &Path) -> Result {
    say("fio engine");
    let Some(engine) = engine("dev")? else { return Ok(()) };
    run(command("crates/ironmap-fio/tests/engine.sh").args([&engine, ironmap]))
}

pub(crate) fn beside_bench(args: &[&str]) -> Result {
    let Some(engine) = engine("release")? else { return Ok(()) };
    sh("cargo build --quiet --release -p ironmap-cli")?;
    let paths = [engine, target("release/ironmap")];
    run(command("crates/ironmap-fio/tests/beside.sh").args(paths).args(args))
}

/// The engine of a profile. It is skipped without fio's source; a build that fails is a failure.
fn engine(profile: &str) -> Result<Option<PathBuf>> {
    let source = match source() {
        Ok(source) => source,
        Err(Failure::Why(why)) => {
            skip(&format!("fio engine: {why}"))?;
            return Ok(None);
        }
        Err(status) => return Err(status),
    };
    let mut build = command("cargo build --quiet -p ironmap-fio --profile");
    run(build.arg(profile).env("FIO_SRC", source))?;
    let dir = if profile == "dev" { "debug" } else { profile };
    Ok(Some(target(dir).join("libironmap_fio.so")))
}

/// The directory with the source of the installed fio, configured.
fn source() -> Result<PathBuf> {
    if let Some(source) = variable("FIO_SRC") {
        return Ok(source.into());
    }
    if !has("fio") {
        return fail("fio is not installed");
    }
    let Some(version) = debian_source::version("fio").filter(|_| has("dpkg-source")) else {
        return fail("no source packages here: name fio's source by FIO_SRC");
    };
    let cache = target("fio").join(&version);
    let source = cache.join("source");
    if !source.join("FIO-VERSION-FILE").exists() && make(&version, &cache, &source).is_err() {
        return fail(format!("apt-get source fio={version} failed: name fio's source by FIO_SRC"));
    }
    Ok(source)
}

fn make(version: &str, cache: &Path, source: &Path) -> Result {
    fs::create_dir_all(cache)?;
    let log = File::create(target("fio/log"))?;
    debian_source::download("fio", version, cache, &log)?;
    let _ = fs::remove_dir_all(source);
    let Some(package) = find(cache, "fio_", &[".dsc"]) else {
        return fail("apt-get source left no package");
    };
    logged(command("dpkg-source --no-check -x").args([&*package, source]), &log)?;
    // As Debian does it: code for the processor that builds is of no concern here.
    logged(command("./configure --disable-native").current_dir(source), &log)?;
    logged(command("make FIO-VERSION-FILE").current_dir(source), &log)
}
