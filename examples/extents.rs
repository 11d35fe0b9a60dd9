//! Prints where the data of a file are on the device of its volume: `extents disk.img /file`.

use ironmap::IomapType;
use ironmap::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, image, path] = &args[..] else { return Err("usage: extents VOLUME PATH".into()) };
    let file = Volume::open(image)?.open(path)?;
    for iomap in file.mappings() {
        let iomap = iomap?;
        let (first, last) = (iomap.pos, iomap.end().0 - 1);
        match iomap.kind {
            IomapType::Mapped => println!("{first}..={last} at byte {}", iomap.addr),
            IomapType::Unwritten => println!("{first}..={last} at byte {}, unwritten", iomap.addr),
            kind => println!("{first}..={last} {kind:?}"),
        }
    }
    Ok(())
}
