//! Reads a file of a volume and prints the rate: `deep_queue disk.img /file [THREADS]`. By default, two threads read. Each thread has 64
//! requests in flight.

use std::time::Instant;

use ironmap::prelude::*;

const BLOCK: u64 = 4096;
const DEPTH: usize = 64;

/// The sum of all bytes of the blocks `first`, `first + step` and so on.
fn scan(volume: &Volume, file: &File, first: u64, step: u64) -> ironmap::Result<u64> {
    let mut queue = volume.queue(&QueueOptions::new().depth(DEPTH as u32))?;
    let mut free = queue.register_buffers(DEPTH, BLOCK as usize)?;
    let (mut next, blocks, mut sum) = (first, file.size().div_ceil(BLOCK), 0);
    while next < blocks || queue.outstanding() > 0 {
        while next < blocks
            && let Some(buffer) = free.pop()
        {
            // The request owns the memory. The completion returns it.
            file.submit_read(&mut queue, buffer, next * BLOCK, DioFlags::empty(), next)?;
            next += step;
        }
        queue.wait(1)?;
        while let Some(completion) = queue.pop() {
            let (count, buffer) = completion.into_buffer()?;
            sum += buffer[..count].iter().map(|byte| u64::from(*byte)).sum::<u64>();
            free.push(buffer);
        }
    }
    Ok(sum)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let (image, path, threads) = match &args[..] {
        [_, image, path] => (image, path, 2),
        [_, image, path, threads] => (image, path, threads.parse::<u64>()?.max(1)),
        _ => return Err("usage: deep_queue VOLUME PATH [THREADS]".into()),
    };
    let volume = Volume::open(image)?;
    let file = volume.open_with(path, FileOptions::new().direct(true))?;
    let start = Instant::now();
    let sums: Vec<_> = std::thread::scope(|scope| {
        let (volume, file) = (&volume, &file);
        let start = |first| scope.spawn(move || scan(volume, file, first, threads));
        let started: Vec<_> = (0..threads).map(start).collect();
        started.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    let (reads, seconds) = (file.size().div_ceil(BLOCK), start.elapsed().as_secs_f64());
    let mut sum = 0;
    for part in sums {
        sum += part.map_err(|_| "a thread has panicked")??;
    }
    println!("sum of all bytes: {sum}");
    println!("{reads} reads of {BLOCK} bytes, {:.0} IOPS", reads as f64 / seconds);
    Ok(())
}
