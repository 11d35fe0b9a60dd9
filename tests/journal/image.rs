//! Images in a directory of their own, and files as ironmap reads them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ironmap::fs::ext4::{Inode, Journal};
use ironmap::iomap::{IomapType, MapFile};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{Location, OpenOptions, Result, Volume};

/// An image, removed with its directory.
pub(crate) struct Image {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

/// Runs a program; its failure is the test's, unless it is one of these exit codes.
pub(crate) fn run(program: &str, args: &[&str], accepted: &[i32]) -> Output {
    let output = Command::new(program)
        .args(args)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let code = output.status.code().unwrap_or(-1);
    assert!(
        accepted.contains(&code),
        "{program} {args:?} gave {code}:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

impl Image {
    /// An image made by mke2fs with these options.
    pub(crate) fn make(size: &str, options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let mut args = vec!["-q", "-F"];
        args.extend(options);
        args.extend([path.to_str().unwrap(), size]);
        run("mke2fs", &args, &[0]);
        Self { dir, path }
    }

    /// A copy beside it.
    pub(crate) fn copy(&self, name: &str) -> PathBuf {
        let copy = self.dir.path().join(name);
        run("cp", &["--sparse=always", self.path.to_str().unwrap(), copy.to_str().unwrap()], &[0]);
        copy
    }

    /// Runs a script of debugfs commands on it.
    pub(crate) fn debugfs(&self, script: &str) -> String {
        let file = self.dir.path().join("script");
        std::fs::write(&file, script).unwrap();
        let args = ["-w", "-f", file.to_str().unwrap(), self.path.to_str().unwrap()];
        String::from_utf8(run("debugfs", &args, &[0]).stdout).unwrap()
    }
}

pub(crate) fn open(path: &Path) -> Result<Volume> {
    Volume::open(&path.to_str().unwrap().parse::<Location>()?, &OpenOptions::default())
}

pub(crate) fn journal(path: &Path) -> Result<Journal> {
    Ok(open(path)?.fs().journal().clone())
}

pub(crate) fn inode(volume: &Volume, number: u64) -> Result<Inode> {
    volume.fs().inode(InodeNo(number))
}

/// A file's content, read where its map says.
pub(crate) fn content(inode: &Inode, image: &Path) -> Result<Vec<u8>> {
    let device = File::open(image).unwrap();
    let size = inode.size();
    let mut content = vec![0; size as usize];
    let mut pos = 0;
    while pos < size {
        let iomap = inode.map(FilePos(pos), size - pos)?;
        let end = iomap.end().0.min(size);
        assert!(end > pos, "no progress at {pos}: {iomap:?}");
        let part = &mut content[pos as usize..end as usize];
        match iomap.kind {
            IomapType::Hole | IomapType::Unwritten => {}
            IomapType::Mapped => device.read_exact_at(part, iomap.addr_of(FilePos(pos)).0).unwrap(),
            IomapType::Inline => inode.read_inline(part, FilePos(pos))?,
        }
        pos = end;
    }
    Ok(content)
}
