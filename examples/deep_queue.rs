//! Reads a file of a volume by two threads, each with 64 requests in flight: `deep_queue disk.img /file`.

use ironmap::prelude::*;

const BLOCK: u64 = 4096;
const DEPTH: usize = 64;

/// The sum of all bytes of every second block, from `first` on.
fn scan(volume: &Volume, file: &File, first: u64) -> ironmap::Result<u64> {
    let mut queue = volume.queue(&QueueOptions::new().depth(DEPTH as u32))?;
    let mut free = queue.register_buffers(DEPTH, BLOCK as usize)?;
    let (mut next, blocks, mut sum) = (first, file.size().div_ceil(BLOCK), 0);
    while next < blocks || queue.outstanding() > 0 {
        while next < blocks
            && let Some(buffer) = free.pop()
        {
            // The memory goes down with the request, and comes back with its completion.
            file.submit_read(&mut queue, buffer, next * BLOCK, DioFlags::empty(), next)?;
            next += 2;
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
    let [_, image, path] = &args[..] else { return Err("usage: deep_queue VOLUME PATH".into()) };
    let volume = Volume::open(image)?;
    let file = volume.open(path, FileOptions::new().direct(true))?;
    let sums: Vec<_> = std::thread::scope(|scope| {
        let threads = [0, 1].map(|first| {
            let (volume, file) = (&volume, &file);
            scope.spawn(move || scan(volume, file, first))
        });
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    let mut sum = 0;
    for part in sums {
        sum += part.map_err(|_| "a thread has panicked")??;
    }
    println!("sum of all bytes: {sum}");
    Ok(())
}
