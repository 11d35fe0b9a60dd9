//! The options of `-o`, in the syntax of `mount(8)`.

use std::ffi::OsString;
use std::time::Duration;

use fuser::{MountOption, SessionACL};
use ironmap::fs::{FileType, InodeFlags, InodeOps, OnError};

use rustix::fs::StatVfsMountFlags;
use rustix::mount::MountFlags;

use super::ext4_options;
use super::nodes::Manner;

/// The largest value of `commit`.
const MOST_SECONDS: u32 = i32::MAX as u32 / 1000;

/// `ST_NOSYMFOLLOW` of `linux/statfs.h`, which rustix does not define.
const FOLLOWS_NO_LINKS: StatVfsMountFlags = StatVfsMountFlags::from_bits_retain(0x2000);

/// When a read updates the access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Atime {
    /// A read never updates the access time.
    Never,
    /// A read updates an access time that is not newer than the last change, or that is a day old.
    #[default]
    Relative,
    /// Every read updates the access time.
    Strict,
}

/// The properties of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// Whether an existing mount is changed.
    pub(super) remount: bool,
    /// Whether unknown options are ignored.
    pub(super) sloppy: bool,
    /// Whether changes are refused. `None` if no option specifies this.
    pub(super) read_only: Option<bool>,
    /// Whether the journal is not read.
    pub(super) no_load: bool,
    /// Whether every change is durable when it returns.
    pub(super) sync: bool,
    /// Whether every change of a directory's names is durable when it returns.
    pub(super) sync_names: bool,
    pub(super) allow_other: bool,
    /// The owner to show for every file.
    pub(super) uid: Option<u32>,
    /// The group to show for every file.
    pub(super) gid: Option<u32>,
    /// The source in `/proc/mounts`, by default the volume.
    pub(super) name: Option<String>,
    pub(super) atime: Atime,
    /// Whether a read of a directory leaves its access time unchanged.
    pub(super) no_directory_atime: bool,
    /// Whether the kernel collects written data, and sends the data later.
    pub(super) writeback: bool,
    /// The interval of commits without a sync. Zero means that there are no such commits.
    pub(super) commit: Option<Duration>,
    /// Whether blocks are discarded on the device after they are freed.
    pub(super) discard: bool,
    /// The reaction to an error of the volume. It must match the volume's own setting.
    pub(super) errors: Option<OnError>,
    /// Whether the kernel refuses to follow symbolic links. `None` if no option specifies this. fuser has no flag for this option.
    no_links: Option<bool>,
    /// The number of threads that wait for the device.
    pub(super) threads: Option<usize>,
    /// Flags of the mount itself, which the kernel applies.
    flags: Vec<MountOption>,
}

impl Options {
    /// Parses comma-separated options. If two options contradict each other, the later option counts.
    pub(super) fn parse(&mut self, text: &str) -> Result<(), String> {
        text.split(',').filter(|option| !option.is_empty()).try_for_each(|option| self.take(option))
    }

    fn take(&mut self, option: &str) -> Result<(), String> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let known = match value {
            None => self.switch(name) || self.mount_flag(name),
            Some(value) => self.set(name, value)?,
        };
        if known || is_for_others(name) {
            return Ok(());
        }
        match ext4_options::judge(name, value) {
            Some(judged) => judged.map_err(|hint| format!("-o {option}: {hint}")),
            None if self.sloppy => Ok(()),
            None => Err(format!("-o {option}: no such option")),
        }
    }

    /// Applies an option without a value. Returns false for an unknown name.
    fn switch(&mut self, name: &str) -> bool {
        match name {
            "remount" => self.remount = true,
            "ro" => self.read_only = Some(true),
            "rw" => self.read_only = Some(false),
            "noload" | "norecovery" => self.no_load = true,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "dirsync" => self.sync_names = true,
            "noatime" => self.atime = Atime::Never,
            "atime" | "relatime" => self.atime = Atime::Relative,
            "strictatime" => self.atime = Atime::Strict,
            // Without strictatime, the mount uses relatime, the default of Linux.
            "nostrictatime" if self.atime == Atime::Strict => self.atime = Atime::Relative,
            "nostrictatime" | "norelatime" => {}
            "diratime" => self.no_directory_atime = false,
            "nodiratime" => self.no_directory_atime = true,
            "symfollow" => self.no_links = Some(false),
            "nosymfollow" => self.no_links = Some(true),
            "allow_other" => self.allow_other = true,
            "writeback_cache" => self.writeback = true,
            "discard" => self.discard = true,
            "nodiscard" => self.discard = false,
            _ => return false,
        }
        true
    }

    /// Applies an option that the kernel implements as a flag of the mount. Returns false for an unknown name.
    fn mount_flag(&mut self, name: &str) -> bool {
        match name {
            "dev" => self.flag(MountOption::Dev, &MountOption::NoDev),
            "nodev" => self.flag(MountOption::NoDev, &MountOption::Dev),
            "suid" => self.flag(MountOption::Suid, &MountOption::NoSuid),
            "nosuid" => self.flag(MountOption::NoSuid, &MountOption::Suid),
            "exec" => self.flag(MountOption::Exec, &MountOption::NoExec),
            "noexec" => self.flag(MountOption::NoExec, &MountOption::Exec),
            _ => return self.permission_to_mount(name),
        }
        true
    }

    /// Applies an option that permits users to mount. Like mount(8), this sets further flags (for example noexec). Later options can
    /// override these flags.
    fn permission_to_mount(&mut self, name: &str) -> bool {
        let by_users = matches!(name, "user" | "users");
        if !by_users && !matches!(name, "owner" | "group") {
            return false;
        }
        self.flag(MountOption::NoSuid, &MountOption::Suid);
        self.flag(MountOption::NoDev, &MountOption::Dev);
        if by_users {
            self.flag(MountOption::NoExec, &MountOption::Exec);
        }
        true
    }

    /// Applies an option with a value. Returns false for an unknown name.
    fn set(&mut self, name: &str, value: &str) -> Result<bool, String> {
        let number = || value.parse().map_err(|_| format!("-o {name}: {value:?} is not a number"));
        match name {
            "uid" => self.uid = Some(number()?),
            "gid" => self.gid = Some(number()?),
            "threads" => self.threads = Some(number()?.clamp(1, 64) as usize),
            "fsname" => self.name = Some(value.to_owned()),
            "commit" => {
                // The kernel stores the interval in milliseconds. This limits the interval.
                let seconds = ext4_options::number(value);
                let seconds = seconds.filter(|seconds| *seconds <= MOST_SECONDS);
                let what = || {
                    format!("-o {name}={value}: the value must be from 0 to {MOST_SECONDS} seconds")
                };
                self.commit = Some(Duration::from_secs(seconds.ok_or_else(what)?.into()));
            }
            "errors" => {
                let policy = value.parse();
                let policy = policy.map_err(|_| format!("-o {name}={value}: no such option"))?;
                self.errors = Some(policy);
            }
            // These options are ignored. The kernel shows them for every FUSE mount, and mount(8) passes them to a remount.
            "user_id" | "group_id" | "max_read" => {}
            _ => return Ok(self.permission_to_mount(name)),
        }
        Ok(true)
    }

    fn flag(&mut self, on: MountOption, off: &MountOption) {
        self.flags.retain(|flag| flag != off && *flag != on);
        self.flags.push(on);
    }

    /// The configuration for the kernel. If root makes the mount, devices and set-id programs work as on every mount. If another user makes
    /// the mount, the kernel does not allow devices and set-id programs.
    pub(super) fn for_kernel(&self, volume: &str, root: bool) -> fuser::Config {
        let name = self.name.clone().unwrap_or_else(|| volume.to_owned());
        let mut all = self.flags.clone();
        for (on, off) in
            [(MountOption::Dev, MountOption::NoDev), (MountOption::Suid, MountOption::NoSuid)]
        {
            if root && !all.contains(&off) && !all.contains(&on) {
                all.push(on);
            }
        }
        // A comma in the name of the mount's source would begin another option. Therefore commas are replaced.
        all.push(MountOption::FSName(name.replace(',', "_")));
        all.push(MountOption::CUSTOM("subtype=ironmap".to_owned()));
        all.push(MountOption::DefaultPermissions);
        if self.is_read_only() {
            all.push(MountOption::RO);
        }
        if self.sync {
            all.push(MountOption::Sync);
        }
        if self.sync_names {
            all.push(MountOption::DirSync);
        }
        if self.atime == Atime::Never {
            all.push(MountOption::NoAtime);
        }
        let mut config = fuser::Config::default();
        config.mount_options = all;
        config.acl = if self.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(1);
        config
    }

    /// Returns the flags for which fuser has no option. They must be added after fuser has made the mount with `config`.
    pub(super) fn beyond_fuser(&self, config: &fuser::Config) -> Option<MountFlags> {
        self.no_links.filter(|asked| *asked)?;
        let has = |option| config.mount_options.contains(&option);
        let mut flags = MountFlags::NOSYMFOLLOW;
        flags.set(MountFlags::RDONLY, has(MountOption::RO));
        flags.set(MountFlags::NODEV, !has(MountOption::Dev));
        flags.set(MountFlags::NOSUID, !has(MountOption::Suid));
        flags.set(MountFlags::NOEXEC, has(MountOption::NoExec));
        Some(flags)
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.read_only == Some(true)
    }

    /// The flags of a remount: the current flags of the mount with the requested changes. The flags for access times are not changed: the
    /// server updates access times.
    pub(super) fn for_remount(&self, now: StatVfsMountFlags) -> MountFlags {
        let mut flags = MountFlags::empty();
        let was_read_only = now.contains(StatVfsMountFlags::RDONLY);
        flags.set(MountFlags::RDONLY, self.read_only.unwrap_or(was_read_only));
        flags.set(MountFlags::SYNCHRONOUS, now.contains(StatVfsMountFlags::SYNCHRONOUS));
        let followed_none = now.contains(FOLLOWS_NO_LINKS);
        flags.set(MountFlags::NOSYMFOLLOW, self.no_links.unwrap_or(followed_none));
        for (was, flag, on, off) in [
            (StatVfsMountFlags::NODEV, MountFlags::NODEV, MountOption::NoDev, MountOption::Dev),
            (StatVfsMountFlags::NOSUID, MountFlags::NOSUID, MountOption::NoSuid, MountOption::Suid),
            (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC, MountOption::NoExec, MountOption::Exec),
        ] {
            let asked = self.flags.contains(&on) || now.contains(was) && !self.flags.contains(&off);
            flags.set(flag, asked);
        }
        flags
    }

    /// The properties of an inode on this mount.
    pub(super) fn manner(&self, inode: &dyn InodeOps) -> Manner {
        let flags = inode.flags();
        let is_directory = inode.file_type() == FileType::Directory;
        let names = is_directory && (self.sync_names || flags.contains(InodeFlags::DIR_SYNC));
        Manner {
            sync: names || flags.contains(InodeFlags::SYNC),
            no_atime: is_directory && self.no_directory_atime
                || flags.contains(InodeFlags::NO_ATIME),
            casefold: is_directory && flags.contains(InodeFlags::CASEFOLD),
        }
    }

    /// The number of threads. There are more threads than processors, because a thread waits while the device works.
    pub(super) fn threads(&self) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or((2 * processors).clamp(4, 16))
    }
}

/// Translates the arguments of `mount.fuse.ironmap VOLUME DIR [-sfnvrw] [-N NAMESPACE] [-t TYPE] [-o OPTIONS]` to the arguments of `ironmap
/// mount`. Returns `None` if the program was called by another name.
pub(crate) fn as_mount_helper(args: &[OsString]) -> Option<Vec<OsString>> {
    let program = std::path::Path::new(args.first()?).file_name()?.to_str()?;
    if !program.starts_with("mount.") {
        return None;
    }
    let mut own = vec![OsString::from("ironmap"), OsString::from("mount")];
    let mut rest = args[1..].iter();
    while let Some(arg) = rest.next() {
        match arg.to_str() {
            Some("-t" | "-N") => {
                rest.next();
            }
            Some(flags)
                if flags.len() > 1
                    && flags[1..].bytes().all(|flag| b"sfnvrw".contains(&flag))
                    && flags.starts_with('-') =>
            {
                // The flag -n has no effect, because ironmap does not write an mtab.
                let own_flags = flags[1..].chars().filter_map(|flag| match flag {
                    's' => Some("--sloppy"),
                    'f' => Some("--fake"),
                    'v' => Some("--verbose"),
                    'r' => Some("--read-only"),
                    'w' => Some("--rw"),
                    _ => None,
                });
                own.extend(own_flags.map(OsString::from));
            }
            // For a remount, mount(8) passes all options that remain set. A flag whose option is missing is cleared.
            Some(options) if options.split(',').any(|option| option == "remount") => {
                own.push(format!("dev,suid,exec,symfollow,{options}").into());
            }
            _ => own.push(arg.clone()),
        }
    }
    Some(own)
}

/// Whether an option is accepted without effect. mount(8) implements such an option, or every mount behaves as the option requests.
fn is_for_others(name: &str) -> bool {
    const NAMES: [&str; 12] = [
        "default_permissions",
        "lazytime",
        "nolazytime",
        "defaults",
        "auto",
        "noauto",
        "nofail",
        "_netdev",
        "nouser",
        "comment",
        "silent",
        "loud",
    ];
    NAMES.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_option_counts_and_unknown_ones_are_named() {
        let mut options = Options::default();
        options.parse("ro,noatime,uid=7,fsname=x,rw,,nodev,dev,x-systemd.automount").unwrap();
        options.parse("lazytime,nolazytime,diratime,nodiratime").unwrap();
        assert!(
            !options.is_read_only() && options.atime == Atime::Never && options.no_directory_atime
        );
        assert_eq!((options.uid, options.name.as_deref()), (Some(7), Some("x")));
        assert_eq!(options.flags, [MountOption::Dev]);
        assert_eq!(options.parse("uid=x").unwrap_err(), "-o uid: \"x\" is not a number");
        assert_eq!(options.parse("jam=1").unwrap_err(), "-o jam=1: no such option");
        options.sloppy = true;
        options.parse("jam=1,ro").unwrap();
        assert!(options.is_read_only() && options.parse("uid=x").is_err());
    }

    #[test]
    fn options_for_users_imply_others_up_to_the_later_ones() {
        use MountOption::{Exec, NoDev, NoExec, NoSuid};
        for (text, flags) in [
            ("user", &[NoSuid, NoDev, NoExec][..]),
            ("suid,users,exec", &[NoSuid, NoDev, Exec]),
            ("owner", &[NoSuid, NoDev]),
            ("group", &[NoSuid, NoDev]),
            ("nouser", &[]),
        ] {
            let mut options = Options::default();
            options.parse(text).unwrap();
            assert_eq!(options.flags, flags, "{text}");
        }
    }

    #[test]
    fn options_of_ext4_are_obeyed_or_refused_with_what_to_do() {
        let mut options = Options::default();
        options.parse("acl,user_xattr,data=ordered,barrier=1,commit=30,errors=remount-ro").unwrap();
        assert_eq!(options.commit, Some(Duration::from_secs(30)));
        assert_eq!(options.errors, Some(OnError::RemountReadOnly));
        for (option, instead) in [
            ("data=journal", "data=ordered"),
            ("nobarrier", "flushed"),
            ("barrier=0", "flushed"),
            ("noacl", "always on"),
            ("auto_unmount", "ironmap umount"),
            ("usrquota", "tune2fs -O quota"),
        ] {
            let refusal = Options::default().parse(option).unwrap_err();
            assert!(refusal.contains(option) && refusal.contains(instead), "{refusal}");
        }
        options.parse("commit=0x10").unwrap();
        assert_eq!(options.commit, Some(Duration::from_secs(16)));
        for wrong in ["errors=never", "commit=x", "commit=-1", "commit=2147484"] {
            assert!(options.parse(wrong).is_err(), "{wrong}");
        }
        options.parse("commit=2147483").unwrap();
    }

    #[test]
    fn a_journal_is_skipped_by_either_name() {
        for text in ["ro,noload", "norecovery,ro"] {
            let mut options = Options::default();
            options.parse(text).unwrap();
            assert!(options.no_load && options.is_read_only(), "{text}");
        }
    }

    #[test]
    fn each_word_about_times_of_reads_counts() {
        for (text, atime) in [
            ("strictatime,nostrictatime", Atime::Relative),
            ("strictatime,norelatime", Atime::Strict),
            ("noatime,nostrictatime,norelatime", Atime::Never),
            ("norelatime", Atime::Relative),
        ] {
            let mut options = Options::default();
            options.parse(text).unwrap();
            assert_eq!(options.atime, atime, "{text}");
        }
    }

    #[test]
    fn root_gets_devices_and_set_id_programs_by_default() {
        let options = Options::default();
        let has = |options: &Options, root, flag| {
            options.for_kernel("v", root).mount_options.contains(&flag)
        };
        assert!(has(&options, true, MountOption::Suid) && has(&options, true, MountOption::Dev));
        assert!(!has(&options, false, MountOption::Suid));
        let mut nosuid = Options::default();
        nosuid.parse("nosuid").unwrap();
        assert!(!has(&nosuid, true, MountOption::Suid) && has(&nosuid, true, MountOption::Dev));
    }

    #[test]
    fn a_remount_changes_the_flags_that_it_names() {
        let mut options = Options::default();
        options.parse("ro,relatime,remount,user_id=0,group_id=0,suid,noexec").unwrap();
        assert!(options.remount);
        let now = StatVfsMountFlags::NODEV | StatVfsMountFlags::NOSUID;
        let expected = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOEXEC;
        assert_eq!(options.for_remount(now), expected);
        let flags = |text: &str, now| {
            let mut options = Options::default();
            options.parse(text).unwrap();
            options.for_remount(now)
        };
        assert_eq!(
            flags("remount,nosymfollow", StatVfsMountFlags::empty()),
            MountFlags::NOSYMFOLLOW
        );
        assert_eq!(flags("remount,symfollow", FOLLOWS_NO_LINKS), MountFlags::empty());
        assert_eq!(
            flags("remount,ro", FOLLOWS_NO_LINKS),
            MountFlags::NOSYMFOLLOW | MountFlags::RDONLY
        );
        // A remount does not change flags that no option names.
        let mut options = Options::default();
        options.parse("remount,noexec").unwrap();
        let expected = MountFlags::RDONLY | MountFlags::NOEXEC;
        assert_eq!(options.for_remount(StatVfsMountFlags::RDONLY), expected);
    }

    #[test]
    fn mount_8_calls_it_in_its_own_way() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(
            as_mount_helper(&words(
                "/sbin/mount.fuse.ironmap /dev/x /mnt -sv -o rw,dev -t fuse.ironmap"
            )),
            Some(words("ironmap mount /dev/x /mnt --sloppy --verbose -o rw,dev"))
        );
        assert_eq!(
            as_mount_helper(&words("mount.ironmap /dev/x /mnt -fn")),
            Some(words("ironmap mount /dev/x /mnt --fake"))
        );
        assert_eq!(
            as_mount_helper(&words("mount.ironmap /dev/x /mnt -o rw,nosuid,remount")),
            Some(words("ironmap mount /dev/x /mnt -o dev,suid,exec,symfollow,rw,nosuid,remount"))
        );
        assert_eq!(
            as_mount_helper(&words("mount.ironmap -rv /dev/x /mnt -w")),
            Some(words("ironmap mount --read-only --verbose /dev/x /mnt --rw"))
        );
        assert_eq!(as_mount_helper(&words("/usr/bin/ironmap mount a b")), None);
    }
}
