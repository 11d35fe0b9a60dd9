//! The functions that the user of an [`Image`](super::Image) provides.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::context::Caller;
use crate::progress::Bar;

/// Prints a message.
type Print = Box<dyn Fn(&str) + Send + Sync>;

/// The callbacks. If `print` is `None`, messages are dropped. If `bar` is `None`, no progress is shown.
#[derive(Default)]
pub(crate) struct Callbacks {
    pub(crate) print: Option<Print>,
    pub(crate) bar: Option<Arc<dyn Bar>>,
}

impl Caller for Callbacks {
    fn print(&self, message: &str) {
        if let Some(print) = &self.print {
            print(message);
        }
    }

    fn say(&self, message: &str) -> io::Result<()> {
        self.print(message);
        Ok(())
    }

    fn show_progress(&self) -> Option<Arc<dyn Bar>> {
        self.bar.clone()
    }

    /// A library must not change the signal handlers of its process, so this function does nothing.
    fn catch_signals(&self) {}
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").finish_non_exhaustive()
    }
}
