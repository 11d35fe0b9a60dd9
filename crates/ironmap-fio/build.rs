//! Builds the shim against the header in fio's source, which `FIO_SRC` names.

use std::path::{Path, PathBuf};

/// The files from which the shim is built. `./configure` and `make FIO-VERSION-FILE` create the last two.
const NEEDED: [&str; 4] = ["ioengines.h", "fio.h", "config-host.h", "FIO-VERSION-FILE"];

fn main() {
    println!("cargo::rerun-if-env-changed=FIO_SRC");
    println!("cargo::rerun-if-changed=shim");
    match source().and_then(|fio| version(&fio).map(|version| (fio, version))) {
        Ok((fio, version)) => build(&fio, &version),
        Err(missing) => {
            println!(
                "cargo::warning=libironmap_fio.so will not be an engine, because fio's source is missing: {missing}. `./x fio build` downloads the source and builds the engine. By hand, for the version that `fio --version` prints: apt-get source fio; in the source directory run ./configure and make FIO-VERSION-FILE; then build with FIO_SRC=DIRECTORY."
            );
            println!("cargo::rustc-env=FIO_VERSION=");
        }
    }
}

fn source() -> Result<PathBuf, String> {
    let fio = std::env::var_os("FIO_SRC").ok_or("FIO_SRC is not set")?;
    let fio = PathBuf::from(fio);
    for name in NEEDED {
        println!("cargo::rerun-if-changed={}", fio.join(name).display());
    }
    match NEEDED.iter().find(|name| !fio.join(name).is_file()) {
        Some(name) => Err(format!("{} has no {name}", fio.display())),
        None => Ok(fio),
    }
}

/// The version in the form in which the running fio reports its version, for example fio-3.33.
fn version(fio: &Path) -> Result<String, String> {
    let path = fio.join("FIO-VERSION-FILE");
    let text =
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let version = text.trim().strip_prefix("FIO_VERSION = ").filter(|version| !version.is_empty());
    version.map(str::to_owned).ok_or_else(|| format!("{} names no version", path.display()))
}

fn build(fio: &Path, version: &str) {
    println!("cargo::rustc-env=FIO_VERSION={version}");
    println!("cargo::rustc-cfg=fio");
    // fio closes the library of an engine when a job ends. The library must stay loaded, because threads of Rust and of ironmap may still
    // run.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    cc::Build::new()
        .file("shim/shim.c")
        .include(fio)
        .flag("-include")
        .flag(fio.join("config-host.h"))
        .define("_GNU_SOURCE", None)
        .std("gnu99")
        .flag_if_supported("-Wno-unused-parameter")
        .flag_if_supported("-Wno-sign-compare")
        .flag_if_supported("-Wno-missing-field-initializers")
        .compile("ironmap_fio_shim");
}
