//! Implements the Rust part of the Python package `ironmap`: stores (volumes, and the files of the host), and open files. Only the Python
//! modules in `python/ironmap` use this part.
//!
//! A call with I/O releases the GIL. The module `queues` describes the queue of each thread. The module `process` describes forks and the
//! end of the interpreter.

mod buffer;
mod disk;
mod errors;
mod file;
mod image;
mod job;
mod process;
mod queues;
mod store;
mod tree;

use pyo3::prelude::*;

/// The module of stores and open files. Its locks rely on the GIL.
#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    process::watch_forks()?;
    module.add_class::<store::Store>()?;
    module.add_class::<file::FileCore>()?;
    module.add_function(wrap_pyfunction!(image::build_image, module)?)?;
    module.add_function(wrap_pyfunction!(disk::build_disk, module)?)?;
    module.add_function(wrap_pyfunction!(disk::check_verity, module)?)?;
    module.add_function(wrap_pyfunction!(disk::make_verity, module)?)?;
    module.add_function(wrap_pyfunction!(image::extract_image, module)?)?;
    module.add_function(wrap_pyfunction!(image::resize_image, module)?)?;
    module.add_function(wrap_pyfunction!(process::require_main_interpreter, module)?)?;
    module.add_function(wrap_pyfunction!(process::before_fork, module)?)?;
    module.add_function(wrap_pyfunction!(process::after_fork, module)?)?;
    module.add_function(wrap_pyfunction!(process::end, module)?)
}
