//! Opens a volume whose sectors have checksums: `verified_sectors disk.img tags.img`. Lists its root directory, and then lists the sectors
//! that do not match their checksums. `ironmap integrity format disk.img,tags.img` makes the tags.

use ironmap::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, data, tags] = &args[..] else { return Err("usage: verified_sectors DATA TAGS".into()) };
    // A read of a sector that does not match its checksum fails with EILSEQ, and returns no data of this sector.
    let volume = Volume::open(format!("integrity:{data},{tags}"))?;
    for entry in volume.read_dir("/")? {
        println!("/{}", String::from_utf8_lossy(&entry?.name));
    }

    let scrubbed = volume.scrub(|finding| println!("{finding}"))?;
    let wrong = scrubbed.mismatches + scrubbed.unreadable + scrubbed.lost;
    println!("{} sectors fit their tags, {wrong} faults", scrubbed.sectors - scrubbed.mismatches);
    Ok(())
}
