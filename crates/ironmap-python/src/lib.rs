//! The part of the Python package `ironmap` that is written in Rust: stores (volumes, and the files of the host), and open files. The Python
//! modules in `python/ironmap` are its only users.
//!
//! A call with I/O releases the GIL. The queue of each thread, the end of the interpreter, and forks are described in `queues` and `process`.

mod buffer;
mod errors;
mod file;
mod image;
mod job;
mod process;
mod queues;
mod store;
mod tree;

use pyo3::prelude::*;

/// Stores and open files. The locks of this module rely on the GIL.
#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    process::watch_forks()?;
    module.add_class::<store::Store>()?;
    module.add_class::<file::FileCore>()?;
    module.add_function(wrap_pyfunction!(image::build_image, module)?)?;
    module.add_function(wrap_pyfunction!(image::extract_image, module)?)?;
    module.add_function(wrap_pyfunction!(image::resize_image, module)?)?;
    module.add_function(wrap_pyfunction!(process::before_fork, module)?)?;
    module.add_function(wrap_pyfunction!(process::after_fork, module)?)?;
    module.add_function(wrap_pyfunction!(process::end, module)?)
}
