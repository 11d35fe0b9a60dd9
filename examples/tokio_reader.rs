//! Reads a file of a volume in tokio, with 32 requests in flight: `tokio_reader disk.img /file`. A queue belongs to its thread, so it lives in a
//! current-thread runtime; a runtime of several threads starts one such thread and talks to it by channels.

use ironmap::prelude::*;
use tokio::io::unix::AsyncFd;

const BLOCK: u64 = 64 << 10;
const DEPTH: usize = 32;

async fn scan(file: &File, queue: &mut Queue) -> Result<u64, Box<dyn std::error::Error>> {
    let ready = queue.readiness()?;
    // SAFETY: a `Readiness` owns its descriptor until it is dropped, and gives no other one.
    #[allow(unsafe_code, reason = "tokio asks for this promise")]
    let ready = unsafe { AsyncFd::register(ready) }.map_err(std::io::Error::from)?;
    let mut free = queue.register_buffers(DEPTH, BLOCK as usize)?;
    let (mut next, blocks, mut sum) = (0, file.size().div_ceil(BLOCK), 0);
    while next < blocks || queue.outstanding() > 0 {
        while next < blocks
            && let Some(buffer) = free.pop()
        {
            file.submit_read(queue, buffer, next * BLOCK, DioFlags::empty(), next)?;
            next += 1;
        }
        ready.get_ref().clear();
        queue.poll()?; // hands over submitted requests, and takes completed ones
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
    let file = volume.open(path, FileOptions::new())?;
    let mut queue = volume.queue(&QueueOptions::new().depth(DEPTH as u32))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let sum = runtime.block_on(scan(&file, &mut queue))?;
    println!("sum of all bytes: {sum}");
    Ok(())
}
