//! Reads a file of a volume with 64 tokio tasks, and prints the rate: `tokio_reader disk.img /file`. The tasks move between the threads of
//! the runtime. They share one handle of the file.

use std::time::Instant;

use ironmap::{Buffer, FileOptions, Result, Volume};
use ironmap_async::{AsyncFile, Pool, PoolOptions};

const BLOCK: u64 = 4096;
const TASKS: u64 = 64;

/// Returns the sum of all bytes of the blocks `first`, `first + TASKS` and so on.
async fn scan(file: AsyncFile, first: u64) -> Result<u64> {
    let (mut buffer, mut sum) = (Buffer::aligned(BLOCK as usize)?, 0);
    for block in (first..file.file().size().div_ceil(BLOCK)).step_by(TASKS as usize) {
        // The request owns the buffer. It returns the buffer and the number of bytes.
        let (count, read) = file.read_at(buffer, block * BLOCK).await?;
        sum += read[..count].iter().map(|byte| u64::from(*byte)).sum::<u64>();
        buffer = read;
    }
    Ok(sum)
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, image, path] = &args[..] else { return Err("usage: tokio_reader VOLUME PATH".into()) };
    let pool = Pool::new(Volume::open(image)?, PoolOptions::new())?;
    let file = pool.open_with(path, FileOptions::new().direct(true)).await?;
    let start = Instant::now();
    let tasks: Vec<_> = (0..TASKS).map(|first| tokio::spawn(scan(file.clone(), first))).collect();
    let mut sum = 0;
    for task in tasks {
        sum += task.await??;
    }
    let (reads, seconds) = (file.file().size().div_ceil(BLOCK), start.elapsed().as_secs_f64());
    println!("sum of all bytes: {sum}");
    println!("{reads} reads of {BLOCK} bytes, {:.0} IOPS", reads as f64 / seconds);
    println!("{}", pool.report());
    Ok(())
}
