//! A Debian package of the program, by cargo-deb: crates/ironmap-cli/Cargo.toml lists its files.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::shell::{
    self, Result, command, fail, has, ironmap, is_root, output, say, skip, succeeds, target,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// A release build of more bytes is not stripped.
const MAX_PROGRAM: u64 = 10 << 20;

/// Builds the program for release, and the package from it: target/debian, or the path after `--output`.
pub(crate) fn run(output_args: &[&str]) -> Result {
    say("debian package");
    let program = ironmap()?;
    let made = target("release/deb");
    let _ = fs::remove_dir_all(&made);
    fs::create_dir_all(made.join("man"))?;
    shell::run(Command::new(&program).arg("man").arg(made.join("man")))?;
    for shell in ["bash", "zsh", "fish"] {
        let completions = output(Command::new(&program).args(["completions", shell]))?;
        fs::write(made.join(shell), completions)?;
    }
    let mut deb = command("cargo deb --quiet --locked --no-build --strip -p ironmap-cli");
    shell::run(deb.args(output_args))
}

/// The package is installed into an empty root, the program is used there, and the removal leaves no file.
pub(crate) fn test() -> Result {
    let programs = ["dpkg", "dpkg-shlibdeps", "strip", "chroot", "ldd"];
    if !is_root()? || !programs.iter().all(|name| has(name)) || !succeeds("cargo deb --version") {
        return skip("debian package: needs root, cargo-deb, dpkg-dev, strip, chroot and ldd");
    }
    let dir = target("tmp").join(format!("debian-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let package = dir.join("ironmap.deb");
    let result = run(&["--output", &package.to_string_lossy()])
        .and_then(|()| try_in(&dir.join("chroot"), &package));
    fs::remove_dir_all(&dir)?;
    result
}

/// The root contains only dpkg's database, the package, the libraries that the program loads, and a source of random numbers.
fn try_in(root: &Path, package: &Path) -> Result {
    for dir in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "usr/lib", "dev"] {
        fs::create_dir_all(root.join(dir))?;
    }
    fs::write(root.join("var/lib/dpkg/status"), "")?;
    // The libraries belong to no package there.
    let dpkg = |action: &str| {
        let mut dpkg = command("dpkg --force-depends --log=/dev/null --root");
        dpkg.arg(root).arg(action);
        dpkg
    };
    shell::run(dpkg("--install").arg(package))?;
    let program = root.join("usr/bin/ironmap");
    // The libraries that the program loads, at their paths.
    let libraries = output(command("ldd").arg(&program))?;
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        let path = root.join(library.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        fs::copy(library, path)?;
    }
    shell::run(command("mknod").arg(root.join("dev/urandom")).args(["c", "1", "9"]))?;

    let size = fs::metadata(program)?.len();
    if size > MAX_PROGRAM {
        return fail(format!("the installed program has {size} bytes, more than {MAX_PROGRAM}"));
    }
    let within = |args: &str| output(command("chroot").arg(root).args(args.split(' ')));
    if within("/usr/bin/ironmap --version")? != format!("ironmap {VERSION}\n") {
        return fail("the installed program has another version");
    }
    within("/usr/bin/ironmap mkfs -q /disk.img 16M")?;
    if !within("/usr/bin/ironmap ls disk.img:/")?.contains("lost+found") {
        return fail("the installed program does not list its own volume");
    }
    // As mount(8) calls it with -f: it only reads the options.
    within("/usr/sbin/mount.fuse.ironmap /disk.img /usr -f -o ro")?;

    let files = output(dpkg("--listfiles").arg("ironmap"))?;
    let files = files.lines().map(|file| root.join(file.trim_start_matches('/')));
    let files: Vec<_> = files.filter(|file| !file.is_dir()).collect();
    shell::run(dpkg("--purge").arg("ironmap"))?;
    match files.iter().find(|file| file.symlink_metadata().is_ok()) {
        Some(file) => fail(format!("{} stays after the package is removed", file.display())),
        None if files.len() < 10 => fail(format!("the package has {} files", files.len())),
        None => {
            println!("debian package: installed, used and removed, {} files", files.len());
            Ok(())
        }
    }
}
