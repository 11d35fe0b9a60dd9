//! Reads a file of a mounted file system, and prints how the file was read: `host_reader FILE`. If it is safe, the reads bypass the
//! kernel's file system.

use ironmap::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: host_reader FILE")?;
    let host = Host::new(&HostOptions::new())?; // one `Host` for all files
    let file = host.open(&path)?;
    let mut queue = host.queue(&QueueOptions::new())?; // one queue for each thread
    let (mut block, mut pos, mut sum) = (vec![0; 1 << 20], FilePos(0), 0_u64);
    loop {
        let count = file.read_at(&mut queue, &mut block, pos)?;
        if count == 0 {
            break;
        }
        sum += block[..count].iter().map(|byte| u64::from(*byte)).sum::<u64>();
        pos += count as u64;
    }
    match file.host().and_then(|report| report.refusal) {
        Some(refusal) => println!("{pos} bytes, read through the kernel: {refusal}"),
        None => println!("{pos} bytes, read from the device"),
    }
    println!("sum of all bytes: {sum}");
    Ok(())
}
