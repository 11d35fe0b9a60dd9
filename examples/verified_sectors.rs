//! Reads a volume whose every sector is verified against its checksum, and lists the sectors that do not match:
//! `verified_sectors disk.img tags.img`. `ironmap integrity format disk.img,tags.img` makes the tags.

use ironmap::location::{Location, LocationOptions};
use ironmap::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, data, tags] = &args[..] else { return Err("usage: verified_sectors DATA TAGS".into()) };
    let location: Location = format!("integrity:{data},{tags}").parse()?;

    // A read of a sector that does not match is an error with EILSEQ; no wrong byte is given.
    let volume = Volume::open(&location)?;
    for entry in volume.read_dir("/")? {
        println!("/{}", String::from_utf8_lossy(&entry?.name));
    }
    drop(volume);

    let opened = location.open(&LocationOptions::default())?;
    let device = opened.integrity.ok_or("no integrity device")?.device;
    let mut wrong = 0;
    let scrubbed = device.scrub(
        &mut |finding| {
            wrong += 1;
            println!("{finding:?}");
        },
        &mut |_, _| {},
    )?;
    println!("{wrong} findings in {scrubbed:?}");
    Ok(())
}
