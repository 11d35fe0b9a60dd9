//! A file system format that exists only in tests. The tests show that the program uses only features that every format supports.

#[path = "../../../../tests/mem_fs/format/mod.rs"]
#[allow(dead_code, reason = "these tests use only a part of the module")]
pub(crate) mod format;

mod commands;

use std::io;
use std::sync::Arc;

use ironmap::{Location, Volume, VolumeOptions};
use ironmap_image::context::Caller;
use ironmap_image::progress::Bar;

use self::format::MemFs;
use crate::console::Console;

/// The name of the volume on command lines. No file has this name.
const NAME: &str = "memory";

/// A volume in memory, with the functions that every job of the program needs.
struct WithMemory {
    console: Console,
    fs: MemFs,
}

impl Caller for WithMemory {
    fn print(&self, message: &str) {
        self.console.print(message);
    }

    fn say(&self, message: &str) -> io::Result<()> {
        self.console.say(message)
    }

    fn show_progress(&self) -> Option<Arc<dyn Bar>> {
        self.console.show_progress()
    }

    fn catch_signals(&self) {
        self.console.catch_signals();
    }

    fn open(&self, location: &Location, options: &VolumeOptions) -> ironmap::Result<Volume> {
        if location.to_string() == NAME {
            return Ok(self.fs.opened_again());
        }
        self.console.open(location, options)
    }
}
