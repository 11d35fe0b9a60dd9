//! Files of volumes and mounted file systems for async programs.
//!
//! A [`Queue`](ironmap::Queue) belongs to one thread, so a task that moves between threads cannot have one. A [`Pool`] has a few threads
//! with a queue each, and its handles are `Send`, `Sync` and `Clone`. Its futures need no particular executor.
//!
//! ```
//! # async fn read() -> Result<(), Box<dyn std::error::Error>> {
//! use ironmap::{Buffer, FileOptions, Volume};
//! use ironmap_async::{Pool, PoolOptions};
//!
//! let pool = Pool::new(Volume::open("disk.img")?, PoolOptions::new())?;
//! let file = pool.open("/srv/index").await?;
//! let (count, buffer) = file.read_at(Buffer::aligned(4096)?, 0).await?;
//! println!("{:?}", &buffer[..count]);
//! # Ok(())
//! # }
//! ```
//!
//! A request owns its memory, so a future can be dropped at any time: the request is carried out, and its memory is freed after it. A
//! dropped write may have been carried out or not. A pool that is dropped carries out all requests that it has accepted.
//!
//! With the feature `tokio`, a [`Stream`] is an `AsyncRead`, `AsyncSeek` and `AsyncWrite`.

mod file;
mod pool;
mod promise;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
#[cfg(feature = "tokio")]
mod stream;
mod sync;
mod threads;
mod worker;

pub use file::{AsyncFile, Failed};
pub use pool::{Pool, PoolOptions, PoolReport};
pub use promise::Answer;
#[cfg(feature = "tokio")]
pub use stream::Stream;
