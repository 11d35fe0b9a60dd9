//! Makes the same reads as bench.py, but without Python: `native LOCATION ENGINE PATH COUNT`. Prints the nanoseconds of one `read_at` of 4
//! KiB, and of one `read_many` of 64 reads of 4 KiB.

use std::time::Instant;

use ironmap::prelude::*;
use ironmap::{Engine, ReadAt};

const PAGE: usize = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().collect();
    let [_, location, engine, path, count] = &arguments[..] else {
        return Err("native LOCATION ENGINE PATH COUNT".into());
    };
    let (engine, count): (Engine, usize) = (engine.parse()?, count.parse()?);
    let volume = VolumeOptions::new().engine(engine).open(location)?;
    let file = volume.open(path)?;
    let mut queue = volume.queue(&QueueOptions::new().depth(64))?;
    let pages = file.size() as usize / PAGE;
    let place = |index: usize| (index * 7919 % pages * PAGE) as u64;
    let mut memory = Buffer::aligned(64 * PAGE)?;
    file.read_at(&mut queue, &mut memory[..PAGE], 0)?;

    let begin = Instant::now();
    for index in 0..count {
        assert_eq!(file.read_at(&mut queue, &mut memory[..PAGE], place(index))?, PAGE);
    }
    let one = begin.elapsed().as_nanos() as f64 / count as f64;

    let batches = count / 64;
    let begin = Instant::now();
    for batch in 0..batches {
        let parts = memory.chunks_exact_mut(PAGE).enumerate();
        let mut reads: Vec<_> = parts
            .map(|(index, part)| ReadAt::new(&file, part, place(batch * 64 + index)))
            .collect();
        queue.read_many(&mut reads);
        for read in reads {
            assert_eq!(read.result?, PAGE);
        }
    }
    println!("{one} {}", begin.elapsed().as_nanos() as f64 / batches as f64);
    Ok(())
}
