//! The fio engine: built against the source of the installed fio, tested, and measured beside `ironmap bench`.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::debian_source::{self, logged};
use crate::shell::{
    Failure, Result, command, fail, has, ironmap, run, say, skip, target, variable,
};

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
    let paths = [engine, ironmap()?];
    run(command("crates/ironmap-fio/tests/beside.sh").args(paths).args(args))
}

/// The engine of a profile. It is skipped without fio's source; a build that fails is a failure.
fn engine(profile: &str) -> Result<Option<PathBuf>> {
    let source = match variable("FIO_SRC") {
        Some(source) => Ok(source.into()),
        None if has("fio") => debian_source::source("fio", configure),
        None => fail("fio is not installed"),
    };
    let source = match source {
        Ok(source) => source,
        Err(Failure::Why(why)) => {
            skip(&format!("fio engine: {why}: name fio's source by FIO_SRC"))?;
            return Ok(None);
        }
        Err(status) => return Err(status),
    };
    let mut build = command("cargo build --quiet -p ironmap-fio --profile");
    run(build.arg(profile).env("FIO_SRC", source))?;
    let dir = if profile == "dev" { "debug" } else { profile };
    Ok(Some(target(dir).join("libironmap_fio.so")))
}

/// As Debian does it, except for code that only the processor of this machine runs.
fn configure(source: &Path, log: &File) -> Result {
    logged(command("./configure --disable-native").current_dir(source), log)?;
    logged(command("make FIO-VERSION-FILE").current_dir(source), log)
}
