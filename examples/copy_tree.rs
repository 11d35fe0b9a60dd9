//! Copies a directory from this machine into a volume: `copy_tree disk.img DIRECTORY /destination`. It copies files, directories and
//! symbolic links, and no other kinds of files.

use std::path::Path;

use ironmap::prelude::*;

fn copy(volume: &Volume, from: &Path, to: &Path) -> Result<u64, Box<dyn std::error::Error>> {
    volume.create_dir_all(to)?;
    let mut files = 0;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (kind, to) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            files += copy(volume, &entry.path(), &to)?;
        } else if kind.is_symlink() {
            volume.symlink(std::fs::read_link(entry.path())?, to)?;
        } else if kind.is_file() {
            // A cursor implements the traits of std::io.
            let options = FileOptions::new().write(true).create(true).truncate(true);
            let file = volume.open_with(to, options)?;
            let mut cursor = Cursor::new(file, volume.queue(&QueueOptions::new().depth(1))?);
            std::io::copy(&mut std::fs::File::open(entry.path())?, &mut cursor)?;
            files += 1;
        }
    }
    Ok(files)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, image, from, to] = &args[..] else {
        return Err("usage: copy_tree VOLUME DIRECTORY DESTINATION".into());
    };
    let volume = VolumeOptions::new().write(true).open(image)?;
    let files = copy(&volume, from.as_ref(), to.as_ref())?;
    volume.sync()?; // after this call, the tree survives a crash
    println!("{files} files");
    volume.close()?; // the next open needs no recovery after this call
    Ok(())
}
