//! Writes a log of records that survives SIGKILL and a power cut: `log_writer disk.img /log COUNT` appends COUNT records. A record is
//! durable when its number is printed. The next run continues at the end of the log.

use std::io::Write;

use ironmap::prelude::*;

/// A record is one sector. It contains its number, and the same number with all bits inverted.
const RECORD: u64 = 512;

fn record(number: u64) -> [u8; RECORD as usize] {
    let mut bytes = [0; RECORD as usize];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&(!number).to_le_bytes());
    bytes
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, image, path, count] = &args[..] else {
        return Err("usage: log_writer VOLUME PATH COUNT".into());
    };
    let volume = VolumeOptions::new().write(true).open(image)?;
    let log = volume.open_with(path, FileOptions::new().append(true).create(true))?;
    let mut queue = volume.queue(&QueueOptions::new().depth(1))?;

    // Every record whose number was printed must exist and be complete.
    let written = log.size() / RECORD;
    let mut bytes = [0; RECORD as usize];
    for number in 0..written {
        log.read_exact_at(&mut queue, &mut bytes, number * RECORD)?;
        if bytes != record(number) {
            return Err(format!("record {number} is damaged").into());
        }
    }
    println!("found {written} records");

    let count: u64 = count.parse()?;
    for number in written..written + count {
        log.append(&mut queue, &record(number), DioFlags::DSYNC)?;
        println!("{number}");
        std::io::stdout().flush()?;
    }
    volume.close()?;
    Ok(())
}
