//! The program can be called as `tune2fs` or `e2label`. Some options of tune2fs are refused.

use ironmap_image::Failure;

use std::ffi::OsString;
use std::path::Path;

/// If the program was called as `tune2fs` or `e2label`, returns the equivalent command line of `ironmap tune`. Otherwise, returns `None`.
pub(crate) fn as_e2fsprogs(args: &[OsString]) -> Option<Vec<OsString>> {
    let (program, rest) = args.split_first()?;
    let own = ["ironmap", "tune", "--cut"].map(OsString::from);
    let tune = |words: Vec<OsString>| [own.to_vec(), words].concat();
    match (Path::new(program).file_name()?.to_str()?, rest) {
        ("tune2fs", _) => Some(tune(rest.to_vec())),
        ("e2label", [volume, label]) => {
            let mut set = OsString::from("--label=");
            set.push(label);
            Some(tune(vec![set, "--".into(), volume.clone()]))
        }
        ("e2label", _) => Some(tune([&["--show-label".into()], rest].concat())),
        _ => None,
    }
}

/// Options of tune2fs that change more than the superblock.
#[derive(Debug, clap::Args)]
pub(super) struct Refused {
    #[arg(short = 'j', hide = true)]
    makes_journal: bool,
    #[arg(short = 'J', hide = true)]
    journal_options: Option<OsString>,
    #[arg(short = 'I', hide = true)]
    inode_size: Option<OsString>,
    #[arg(short = 'Q', hide = true)]
    quota: Option<OsString>,
    #[arg(short = 'z', hide = true)]
    undo_file: Option<OsString>,
    #[arg(short = 'f', hide = true)]
    force: bool,
}

impl Refused {
    /// Fails if one of the refused options is given. The error names the option.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let Self { makes_journal, journal_options, inode_size, quota, undo_file, force } = self;
        let refused = [
            (
                *makes_journal,
                "-j",
                "this option makes a journal: use tune2fs of e2fsprogs, or mkfs",
            ),
            (
                journal_options.is_some(),
                "-J",
                "this option makes a journal: use tune2fs of e2fsprogs, or mkfs",
            ),
            (inode_size.is_some(), "-I", "this option moves all inodes: use tune2fs of e2fsprogs"),
            (quota.is_some(), "-Q", "this option makes quota files: use tune2fs of e2fsprogs"),
            (
                undo_file.is_some(),
                "-z",
                "undo files are not supported: copy the image first, or use tune2fs of e2fsprogs",
            ),
            (*force, "-f", "ironmap cannot force a change that it refuses: leave out -f"),
        ];
        match refused.iter().find(|(given, ..)| *given) {
            Some((_, option, why)) => Err(Failure::usage(format_args!("{option}: {why}"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_e2fsprogs_are_words_of_tune() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (called, own) in [
            ("/sbin/tune2fs -m 1 -l a.img", "ironmap tune --cut -m 1 -l a.img"),
            ("e2label a.img -new", "ironmap tune --cut --label=-new -- a.img"),
            ("e2label a.img", "ironmap tune --cut --show-label a.img"),
        ] {
            assert_eq!(as_e2fsprogs(&words(called)), Some(words(own)), "{called}");
        }
        assert_eq!(as_e2fsprogs(&words("ironmap tune -l a.img")), None);
    }
}
