//! Lists a directory of a volume, or prints a file: `volume_reader disk.img /etc/hosts`. An image needs no root.

use std::io::Write;

use ironmap::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, image, path] = &args[..] else { return Err("usage: volume_reader VOLUME PATH".into()) };
    let volume = Volume::open(image)?;
    let mut out = std::io::stdout().lock();
    if volume.metadata(path)?.file_type == ironmap::fs::FileType::Directory {
        for entry in volume.read_dir(path)? {
            out.write_all(&entry?.name)?;
            out.write_all(b"\n")?;
        }
    } else {
        out.write_all(&volume.read(path)?)?;
    }
    Ok(())
}
