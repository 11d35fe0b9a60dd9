//! The package is installed into an empty root, used there, and removed without a rest.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::shell::{self, Result, command, fail, has, is_root, output, skip, succeeds, target};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// In bytes: the goal.
const MAX_PROGRAM: u64 = 10_000_000;
const DOC: &str = "usr/share/doc/ironmap";
/// mount(8) looks for these names below /sbin.
const HELPERS: [&str; 2] = ["mount.ironmap", "mount.fuse.ironmap"];
const FILES: [&str; 5] = [
    "usr/share/man/man1/ironmap.1.gz",
    "usr/share/man/man1/ironmap-mount.1.gz",
    "usr/share/bash-completion/completions/ironmap",
    "usr/share/zsh/vendor-completions/_ironmap",
    "usr/share/fish/vendor_completions.d/ironmap.fish",
];
const NEEDS: [&str; 10] = [
    "dpkg",
    "dpkg-shlibdeps",
    "strip",
    "gzip",
    "xz",
    "chroot",
    "ldd",
    "mount",
    "umount",
    "unshare",
];
/// The character devices there: a name, and its numbers.
const DEVICES: [(&str, &str, &str); 3] =
    [("null", "1", "3"), ("urandom", "1", "9"), ("fuse", "10", "229")];

/// By both names that mount(8) looks for, written to and read back; umount(8) once, and once the program, which waits for the server's
/// end. A mount namespace takes everything with it, also after a failure.
const MOUNTS: &str = "
    mount -t proc proc proc
    chroot . /usr/bin/mount -t fuse.ironmap /first.img /mnt -o noatime
    grep ' fuse.ironmap ' proc/mounts
    chroot . /usr/bin/umount /mnt
    chroot . /usr/bin/mount -t ironmap /second.img /mnt
    echo written > mnt/file
    chroot . /usr/bin/ironmap umount /mnt
    if grep ' fuse.ironmap ' proc/mounts; then exit 1; fi
";

/// Builds the package and tries it. Where the system lacks a program or a device, this is said.
pub(crate) fn test() -> Result {
    if !is_root()? || !NEEDS.iter().all(|name| has(name)) || !succeeds("cargo deb --version") {
        return skip(&format!("debian package: needs root, cargo-deb, {}", NEEDS.join(", ")));
    }
    let out = target("tmp").join(format!("debian-{}", std::process::id()));
    fs::create_dir_all(&out)?;
    let package = out.join("ironmap.deb");
    let dir = out.join("chroot");
    let result = super::run(&["--fast", "--output", &package.to_string_lossy()]).and_then(|()| {
        let root = Root(&dir);
        root.install(&package)?;
        root.use_program()?;
        root.mount()?;
        root.remove()
    });
    fs::remove_dir_all(&out)?;
    result
}

/// A root that contains only dpkg's database, the package, the libraries that the program loads, mount(8), and a few devices.
struct Root<'a>(&'a Path);

impl Root<'_> {
    fn install(&self, package: &Path) -> Result {
        let root = self.0;
        for dir in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "dev", "proc", "mnt", "tmp"] {
            fs::create_dir_all(root.join(dir))?;
        }
        for dir in ["bin", "sbin", "lib", "lib64"] {
            fs::create_dir_all(root.join("usr").join(dir))?;
            symlink(format!("usr/{dir}"), root.join(dir))?;
        }
        fs::write(root.join("var/lib/dpkg/status"), "")?;
        for (name, major, minor) in DEVICES {
            shell::run(
                command("mknod").arg(root.join("dev").join(name)).args(["c", major, minor]),
            )?;
        }
        shell::run(self.dpkg("--install").arg(package))?;
        for file in FILES {
            if fs::metadata(root.join(file)).map_or(0, |file| file.len()) == 0 {
                return fail(format!("the package lacks {file}"));
            }
        }
        let size = fs::metadata(root.join("usr/bin/ironmap"))?.len();
        if size > MAX_PROGRAM {
            return fail(format!(
                "the installed program has {size} bytes, more than {MAX_PROGRAM}"
            ));
        }
        for program in ["mount", "umount"] {
            let program = Path::new("usr/bin").join(program);
            fs::copy(Path::new("/").join(&program), root.join(&program))?;
            self.copy_libraries(&program)?;
        }
        self.copy_libraries(Path::new("usr/bin/ironmap"))
    }

    /// dpkg for this root. The libraries belong to no package there.
    fn dpkg(&self, action: &str) -> std::process::Command {
        let mut dpkg = command("dpkg --force-depends --log=/dev/null --root");
        dpkg.arg(self.0).arg(action);
        dpkg
    }

    /// Copies the libraries that a program there loads, at their paths.
    fn copy_libraries(&self, program: &Path) -> Result {
        let list = output(command("ldd").arg(self.0.join(program)))?;
        for library in list.split_whitespace().filter(|word| word.starts_with('/')) {
            let path = self.0.join(library.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap_or(self.0))?;
            fs::copy(library, path)?;
        }
        Ok(())
    }

    /// The output of a command there.
    fn within(&self, args: &str) -> Result<String> {
        output(command("chroot").arg(self.0).args(args.split(' ')))
    }

    fn use_program(&self) -> Result {
        if self.within("/usr/bin/ironmap --version")? != format!("ironmap {VERSION}\n") {
            return fail("the installed program has another version");
        }
        for image in ["first", "second"] {
            self.within(&format!("/usr/bin/ironmap mkfs -q /{image}.img 16M"))?;
        }
        if !self.within("/usr/bin/ironmap ls first.img:/")?.contains("lost+found") {
            return fail("the installed program does not list its own volume");
        }
        // As mount(8) calls it with -f: it only reads the options.
        for helper in HELPERS {
            self.within(&format!("/usr/sbin/{helper} /first.img /usr -f -o ro"))?;
        }
        Ok(())
    }

    fn mount(&self) -> Result {
        if !Path::new("/dev/fuse").exists() {
            return skip("mounts of the debian package: need /dev/fuse");
        }
        let mut mounts = command("unshare --mount sh -exc");
        shell::run(mounts.arg(MOUNTS).current_dir(self.0))?;
        if self.within("/usr/bin/ironmap cat second.img:/file")? != "written\n" {
            return fail("a file that was written through the mount is not there");
        }
        Ok(())
    }

    fn remove(&self) -> Result {
        let files: Vec<_> = output(self.dpkg("--listfiles").arg("ironmap"))?
            .lines()
            .map(|file| self.0.join(file.trim_start_matches('/')))
            .filter(|file| !file.is_dir())
            .collect();
        shell::run(self.dpkg("--purge").arg("ironmap"))?;
        let doc = self.0.join(DOC);
        match files.iter().chain([&doc]).find(|file| file.symlink_metadata().is_ok()) {
            Some(file) => fail(format!("{} stays after the package is removed", file.display())),
            None if files.len() < 10 => fail(format!("the package has {} files", files.len())),
            None => {
                println!(
                    "debian package: installed, used, mounted and removed, {} files",
                    files.len()
                );
                Ok(())
            }
        }
    }
}
