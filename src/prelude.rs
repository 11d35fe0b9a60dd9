//! The names that nearly every program needs: `use ironmap::prelude::*`.

pub use crate::bio::{Buffer, Memory};
pub use crate::dio::{Completion, DioFlags};
pub use crate::units::{FilePos, InodeNo};
pub use crate::{
    Cursor, ErrorKind, File, FileOptions, Files, Host, HostOptions, Queue, QueueOptions, Volume,
    VolumeOptions,
};
