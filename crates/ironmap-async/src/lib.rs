//! Access to files of volumes and of mounted file systems for async programs.
//!
//! A [`Queue`](ironmap::Queue) belongs to one thread, so a task that moves between threads cannot have a queue. A [`Pool`] has a few
//! threads, each with a queue. The handles of a pool are `Send`, `Sync` and `Clone`. The futures of a pool work with any executor.
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
//! A request owns its memory, so the future of a request can be dropped at any time: the pool still carries out the request, and then frees
//! the memory. When a pool is dropped, it first carries out all accepted requests.
//!
//! With the feature `tokio`, a [`Stream`] implements tokio's `AsyncRead`, `AsyncSeek` and `AsyncWrite`.

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
