//! A test that cannot run here is skipped: it prints its name and the reason.
//!
//! A test begins with a macro call such as `require!([Need::Root])`. If a need is not met, the macro returns from the test. The line `SKIP
//! name: reason` is written to the file that `IRONMAP_SKIP_LOG` names. The line is also written directly to standard error, so that the
//! test runner does not capture it. `./x test` summarises the file.

use std::io::Write;
use std::path::Path;

use ironmap::integrity::Mode;

/// A requirement of a test.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Need {
    /// Permission to mount, to attach loop devices, to change owners, and to make device nodes.
    Root,
    /// The test needs an installed program.
    Tool(&'static str),
    /// The test needs an environment variable.
    Variable(&'static str),
    /// A feature of the kernel's ext4, by its file name in `/sys/fs/ext4/features`.
    KernelExt4(&'static str),
    /// No layer (integrity device or NBD server) is configured below the volume: see [`super::beneath`].
    Bare(&'static str),
    /// No integrity layer with a journal is configured below the volume.
    NoJournalBeneath(&'static str),
    /// A kernel with pages of at least this size.
    PageSize(u64),
}

impl Need {
    /// The reason why the need is not met on this machine, or `None` if it is met.
    pub(crate) fn missing(self) -> Option<String> {
        match self {
            Self::Root => (!rustix::process::geteuid().is_root()).then(|| "needs root".to_owned()),
            Self::Tool(name) => {
                super::command::find(name).is_none().then(|| format!("needs the program {name}"))
            }
            Self::Variable(name) => std::env::var_os(name)
                .is_none()
                .then(|| format!("needs {name} in the environment, as ./x test-all sets it")),
            Self::KernelExt4(feature) => {
                let there = Path::new("/sys/fs/ext4/features").join(feature).exists();
                (!there).then(|| format!("this kernel's ext4 lacks {feature}"))
            }
            Self::Bare(why) => {
                super::beneath::chosen().map(|layer| format!("beneath is {layer:?}: {why}"))
            }
            Self::NoJournalBeneath(why) => (super::beneath::integrity() == Some(Mode::Journal))
                .then(|| format!("beneath is integrity with a journal: {why}")),
            Self::PageSize(size) => {
                let page = rustix::param::page_size() as u64;
                (page < size).then(|| {
                    format!("this kernel's pages of {page} bytes are smaller than a block")
                })
            }
        }
    }
}

/// Records that a test is skipped.
pub(crate) fn note(test: &str, reason: &str) {
    let line = format!("SKIP {test}: {reason}\n");
    // The line is written directly to standard error, because the test runner captures the output of `eprintln!` and discards it when the
    // test passes. A failed write is ignored.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(log) = std::env::var_os("IRONMAP_SKIP_LOG") {
        let log = std::fs::OpenOptions::new().append(true).create(true).open(log);
        log.and_then(|mut log| log.write_all(line.as_bytes())).expect("the log of skips");
    }
}

/// Records that a part of a test is skipped.
pub(crate) fn note_part(test: &str, part: &str, reason: &str) {
    note(&format!("{test}, {part}"), &reason.replace('\n', " "));
}

/// Returns from the test if a need is not met, and records the test's name and the reason.
#[macro_export]
macro_rules! require {
    ($($need:expr),+ $(,)?) => {
        fn here() {}
        let test = std::any::type_name_of_val(&here).trim_end_matches("::here");
        $(for need in $need {
            if let Some(reason) = $crate::common::skip::Need::missing(need) {
                return $crate::common::skip::note(test, &reason);
            }
        })+
    };
}
