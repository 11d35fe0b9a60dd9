//! Reads a file of a volume in tokio, with 64 requests in flight, and prints the rate: `tokio_reader disk.img /file`. A queue must stay in
//! one thread, so the runtime is a current-thread runtime. For a runtime of several threads, see the documentation of `Queue`.

use std::time::Instant;

use ironmap::prelude::*;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

const BLOCK: u64 = 4096;
const DEPTH: usize = 64;

/// The sum of all bytes.
async fn scan(file: &File, queue: &mut Queue) -> Result<u64, Box<dyn std::error::Error>> {
    let ready = queue.readiness()?;
    // SAFETY: a `Readiness` owns its descriptor, which stays the same until the drop; this function does not remove the `Readiness` from
    // the `AsyncFd`.
    #[allow(unsafe_code, reason = "tokio requires this unsafe trait")]
    let ready = unsafe { AsyncFd::register_with_interest(ready, Interest::READABLE) };
    let ready = ready.map_err(std::io::Error::from)?;
    let mut free = queue.register_buffers(DEPTH, BLOCK as usize)?;
    let (mut next, blocks, mut sum) = (0, file.size().div_ceil(BLOCK), 0);
    while next < blocks || queue.outstanding() > 0 {
        while next < blocks
            && let Some(buffer) = free.pop()
        {
            file.submit_read(queue, buffer, next * BLOCK, DioFlags::empty(), next)?;
            next += 1;
        }
        // `clear` is called before `poll`, because a completion after `clear` makes the descriptor readable again.
        ready.get_ref().clear();
        queue.poll()?; // passes submitted requests to the kernel, and collects completions
        let mut waits = true;
        while let Some(completion) = queue.pop() {
            let (count, buffer) = completion.into_buffer()?;
            sum += buffer[..count].iter().map(|byte| u64::from(*byte)).sum::<u64>();
            free.push(buffer);
            waits = false;
        }
        if waits && queue.outstanding() > 0 {
            ready.readable().await?.clear_ready();
        }
    }
    Ok(sum)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, image, path] = &args[..] else { return Err("usage: tokio_reader VOLUME PATH".into()) };
    let volume = Volume::open(image)?;
    let file = volume.open_with(path, FileOptions::new().direct(true))?;
    let mut queue = volume.queue(&QueueOptions::new().depth(DEPTH as u32))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let start = Instant::now();
    let sum = runtime.block_on(scan(&file, &mut queue))?;
    let (reads, seconds) = (file.size().div_ceil(BLOCK), start.elapsed().as_secs_f64());
    println!("sum of all bytes: {sum}");
    println!("{reads} reads of {BLOCK} bytes, {:.0} IOPS", reads as f64 / seconds);
    Ok(())
}
