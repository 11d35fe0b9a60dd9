//! A Debian package of the program, made with `dpkg-deb` alone.

mod clean_root;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

pub(crate) use clean_root::test;

use crate::shell::{self, Failure, Result, command, fail, output, say, sh, succeeds, target};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const DOC: &str = "usr/share/doc/ironmap";
/// mount(8) looks for these names below /sbin.
const HELPERS: [&str; 2] = ["mount.ironmap", "mount.fuse.ironmap"];
/// The shells whose completions are installed, and where.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/ironmap"),
    ("zsh", "usr/share/zsh/vendor-completions/_ironmap"),
    ("fish", "usr/share/fish/vendor_completions.d/ironmap.fish"),
];
const PAGES: [&str; 5] = ["FEATURES", "CLI", "MOUNT", "INTEGRITY", "SAFETY"];
/// No stripped program has more bytes.
const MAX_PROGRAM: u64 = 10 << 20;

/// Builds the program for distribution, and the package from it.
pub(crate) fn run() -> Result {
    say("cargo build --profile dist");
    sh("cargo build --locked --profile dist -p ironmap-cli")?;
    let out = target("debian");
    build(&target("dist/ironmap"), &out)?;
    Ok(fs::remove_dir_all(out.join("root"))?)
}

/// Builds the package of a program in a directory, from files in `root` there, and gives its path.
fn build(program: &Path, out: &Path) -> Result<PathBuf> {
    let (root, arch) = (out.join("root"), architecture()?);
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    let tree = Tree(root.clone());

    let installed = tree.copy(program, "usr/bin/ironmap", 0o755)?;
    shell::run(command("strip --strip-unneeded").arg(&installed))?;
    let size = fs::metadata(&installed)?.len();
    if size > MAX_PROGRAM {
        return fail(format!("the stripped program has {size} bytes, more than {MAX_PROGRAM}"));
    }
    for helper in HELPERS {
        symlink("../bin/ironmap", tree.place(&format!("usr/sbin/{helper}"))?)?;
    }

    let manuals = tree.place("usr/share/man/man1/ironmap.1")?;
    let manuals = manuals.parent().unwrap_or(&root);
    shell::run(command_of(program).arg("man").arg(manuals))?;
    for manual in fs::read_dir(manuals)? {
        shell::run(command("gzip -9n").arg(manual?.path()))?;
    }
    for (shell, path) in COMPLETIONS {
        tree.write(path, &output(command_of(program).args(["completions", shell]))?)?;
    }
    for page in PAGES {
        tree.copy(Path::new(&format!("docs/{page}.md")), &format!("{DOC}/docs/{page}.md"), 0o644)?;
    }
    tree.copy(Path::new("README.md"), &format!("{DOC}/README.md"), 0o644)?;
    let changes = tree.copy(Path::new("CHANGELOG.md"), &format!("{DOC}/changelog"), 0o644)?;
    shell::run(command("gzip -9n").arg(changes))?;
    tree.write(&format!("{DOC}/copyright"), &copyright(&fs::read_to_string("LICENSE-MIT")?))?;

    let libc = newest_glibc(&fs::read(&installed)?);
    tree.write("DEBIAN/control", &control(&arch, size.div_ceil(1024), libc))?;
    tree.open_to_all(&root)?;

    let package = out.join(format!("ironmap_{VERSION}_{arch}.deb"));
    shell::run(command("dpkg-deb --root-owner-group --build").arg(&root).arg(&package))?;
    Ok(package)
}

/// The files of a package.
struct Tree(PathBuf);

impl Tree {
    /// A path in the package, in a directory that exists.
    fn place(&self, path: &str) -> Result<PathBuf> {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&self.0))?;
        Ok(path)
    }

    fn copy(&self, from: &Path, to: &str, mode: u32) -> Result<PathBuf> {
        let to = self.place(to)?;
        if let Err(error) = fs::copy(from, &to) {
            return fail(format!("{}: {error}", from.display()));
        }
        fs::set_permissions(&to, Permissions::from_mode(mode))?;
        Ok(to)
    }

    fn write(&self, to: &str, text: &str) -> Result {
        Ok(fs::write(self.place(to)?, text)?)
    }

    /// Directories and files get the modes of a package, independent of the umask.
    fn open_to_all(&self, dir: &Path) -> Result {
        fs::set_permissions(dir, Permissions::from_mode(0o755))?;
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                self.open_to_all(&entry.path())?;
            } else if entry.file_type()?.is_file() {
                let program = entry.metadata()?.permissions().mode() & 0o100 != 0;
                let mode = if program { 0o755 } else { 0o644 };
                fs::set_permissions(entry.path(), Permissions::from_mode(mode))?;
            }
        }
        Ok(())
    }
}

fn command_of(program: &Path) -> std::process::Command {
    std::process::Command::new(program)
}

/// Debian's name of this machine's architecture.
fn architecture() -> Result<String> {
    if !succeeds("dpkg-deb --version") {
        return Err(Failure::Why("a Debian package needs dpkg-deb".into()));
    }
    Ok(output(&mut command("dpkg --print-architecture"))?.trim().to_owned())
}

/// The newest version of symbols of glibc that a program names: it needs that version or a later one.
fn newest_glibc(program: &[u8]) -> u32 {
    let text = String::from_utf8_lossy(program);
    let minors = text.match_indices("GLIBC_2.").filter_map(|(at, name)| {
        let digits: String =
            text[at + name.len()..].chars().take_while(char::is_ascii_digit).take(3).collect();
        digits.parse().ok()
    });
    minors.max().unwrap_or(0)
}

fn control(arch: &str, kib: u64, glibc: u32) -> String {
    let name = std::env::var("DEBFULLNAME").unwrap_or("The ironmap authors".into());
    let address = std::env::var("DEBEMAIL").unwrap_or("root@localhost".into());
    format!(
        "Package: ironmap
Version: {VERSION}
Architecture: {arch}
Maintainer: {name} <{address}>
Installed-Size: {kib}
Depends: libc6 (>= 2.{glibc}), libgcc-s1
Recommends: fuse3
Section: admin
Priority: optional
Description: ext4 volumes in user space, and fast direct reads of mounted files
 ironmap reads, changes, makes, checks and mounts ext2, ext3 and ext4 volumes
 without the kernel's file system and without root. It also reads files of
 mounted ext4 and XFS file systems directly from the block device, while a
 lease keeps writers out, at the speed of the raw device.
"
    )
}

/// The licences in Debian's format. The text of the Apache License is part of every Debian system.
fn copyright(mit: &str) -> String {
    let mut text = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: ironmap

Files: *
Copyright: 2026 The ironmap authors
License: Expat or Apache-2.0

License: Apache-2.0
 See /usr/share/common-licenses/Apache-2.0.

License: Expat
"
    .to_owned();
    // The licence's name and the copyright stand above.
    for line in mit.lines().skip_while(|line| !line.starts_with("Permission")) {
        let line = if line.is_empty() { "." } else { line };
        text.push_str(&format!(" {line}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dependency on libc is that of the newest symbol.
    #[test]
    fn the_newest_symbol_counts() {
        assert_eq!(newest_glibc(b"GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0GLIBC_PRIVATE"), 34);
        assert_eq!(newest_glibc(b"static"), 0);
    }

    /// Each paragraph of a licence is indented, and an empty line is a dot.
    #[test]
    fn licences_have_debians_form() {
        let text = copyright("MIT License\n\nPermission is granted\n\nAS IS\n");
        assert!(text.ends_with("License: Expat\n Permission is granted\n .\n AS IS\n"), "{text}");
    }
}
