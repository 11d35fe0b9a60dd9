//! Counts how many more instructions a read needs in C than in Rust, with the engine null:
//!
//! `IRONMAP_C_PREFIX=/usr/local cargo bench -p ironmap-capi --bench cost`
//!
//! The variable names the directory to which `install.sh` has installed the library. callgrind counts two runs of each program. The second
//! run makes twice as many requests, so the difference contains only the costs of requests. `cost.c` is the program in C. The bench fails
//! if a goal is missed.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use ironmap::Engine;
use ironmap::fs::ext4::MkfsOptions;
use ironmap::prelude::*;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const BLOCK: usize = 4096;
const DEPTH: usize = 32;
const FILE_BYTES: u64 = 64 << 20;
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;
const COUNTED: u64 = 20_000;
/// The ways of reading. Each has a limit: the number of instructions by which a read in C may exceed a read in Rust.
const GOALS: [(&str, f64); 2] = [("pread", 15.0), ("queue", 20.0)];

fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [run, image, way, requests] = &args[..]
        && run == "run"
    {
        return read(image, way, requests.parse()?);
    }
    let dir = tempfile::Builder::new().prefix("ironmap-test-").tempdir()?;
    let image = dir.path().join("image");
    fill(&image)?;
    let program = compile(dir.path())?;
    let this = std::env::current_exe()?;
    let mut missed = false;
    for (way, goal) in GOALS {
        let rust = count(&this, &["run", &image.to_string_lossy(), way])?;
        let c = count(&program, &[&image.to_string_lossy(), way])?;
        println!(
            "{way}: {rust:.1} instructions in Rust, {c:.1} in C: {:+.1}, goal {goal}",
            c - rust
        );
        missed |= c - rust > goal;
    }
    if missed { Err("a goal is missed".into()) } else { Ok(()) }
}

fn compile(dir: &Path) -> Result<PathBuf> {
    let prefix = std::env::var("IRONMAP_C_PREFIX").map_err(|_| "IRONMAP_C_PREFIX is not set")?;
    let program = dir.join("cost");
    let compiled = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/cost.c"))
        .args([
            format!("-I{prefix}/include"),
            format!("-L{prefix}/lib"),
            format!("-Wl,-rpath,{prefix}/lib"),
        ])
        .arg("-lironmap")
        .status()?;
    if compiled.success() { Ok(program) } else { Err("cost.c does not compile".into()) }
}

/// Returns the number of instructions of a request.
fn count(program: &Path, args: &[&str]) -> Result<f64> {
    let run = |requests: u64| -> Result<u64> {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(program)
            .args(args)
            .arg(requests.to_string())
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        let counted = said.lines().find_map(|line| line.split("Collected : ").nth(1));
        match (output.status.success(), counted) {
            (true, Some(count)) => Ok(count.trim().parse()?),
            _ => Err(format!("{}: {said}", program.display()).into()),
        }
    };
    Ok((run(2 * COUNTED)? - run(COUNTED)?) as f64 / COUNTED as f64)
}

fn fill(image: &Path) -> Result<()> {
    std::fs::File::create(image)?.set_len(2 * FILE_BYTES)?;
    let location: ironmap::Location = image.display().to_string().parse()?;
    let options = ironmap::location::LocationOptions::new().write(true);
    let opened = location.open(&options)?;
    // A read on the simple path is at most one file-system block long. With smaller blocks, a read of 4 KiB would take the slower generic
    // path.
    ironmap::tools::make(&*opened.device, &MkfsOptions::new().block_size(4096))?;
    drop(opened);
    let volume = VolumeOptions::new().write(true).open(image)?;
    volume.write("/data", vec![1; FILE_BYTES as usize])?;
    Ok(volume.close()?)
}

/// Returns the position of the next read, from a pseudorandom generator (xorshift).
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % (FILE_BYTES / BLOCK as u64) * BLOCK as u64
}

/// This read is not inlined into its caller, because a call of a C library is not inlined either.
#[inline(never)]
fn called(file: &File, queue: &mut Queue, memory: &mut [u8], pos: u64) -> ironmap::Result<usize> {
    file.read_at(queue, memory, pos)
}

fn read(image: &str, way: &str, requests: u64) -> Result<()> {
    let volume = VolumeOptions::new().engine(Engine::Null).open(image)?;
    let file = volume.open_with("/data", FileOptions::new().direct(true))?;
    let mut queue = volume.queue(&QueueOptions::new().depth(DEPTH as u32))?;
    let mut state = SEED;
    let mut buffer = Buffer::aligned(BLOCK)?;
    match way {
        "inlined" => {
            for _ in 0..requests {
                assert_eq!(file.read_at(&mut queue, &mut buffer, next(&mut state))?, BLOCK);
            }
            return Ok(());
        }
        "pread" => {
            for _ in 0..requests {
                assert_eq!(called(&file, &mut queue, &mut buffer, next(&mut state))?, BLOCK);
            }
            return Ok(());
        }
        _ => {}
    }
    let free = (0..DEPTH).map(|_| Buffer::aligned(BLOCK));
    let mut free = free.collect::<ironmap::Result<Vec<_>>>()?;
    let mut left = requests;
    while left > 0 || free.len() < DEPTH {
        while left > 0
            && let Some(buffer) = free.pop()
        {
            file.submit_read(&mut queue, buffer, next(&mut state), DioFlags::empty(), 0)?;
            left -= 1;
        }
        queue.wait(1)?;
        while let Some(completion) = queue.pop() {
            let (count, buffer) = completion.into_buffer()?;
            assert_eq!(count, BLOCK);
            free.push(buffer);
        }
    }
    Ok(())
}
