//! Volumes of every variant that mkfs.xfs can make and the kernel can mount. The kernel fills each of them.

use rustix::fs::FileType;

use crate::common::command::run;
use crate::common::image::{Image, words};
use crate::common::skip::Need;
use crate::common::view::{Record, View};
use crate::common::xfsprogs;
use crate::fill::{Amount, can_share, fill};
use crate::{SEED, SIZE, assert_clean, compare_with_kernel, note, require};

/// The options to make and to mount a volume.
struct Variant {
    /// The options of mkfs.xfs.
    options: &'static str,
    size: &'static str,
    /// The options of the mount during which the volume is filled. Each option begins with a comma.
    mount: &'static str,
    amount: Amount,
    /// Whether the files of the volume can share blocks.
    shares: bool,
    /// Whether older programs, or kernels with fewer features, are allowed to refuse the variant.
    may_be_refused: bool,
    /// The options of xfs_admin, which runs after the volume is filled.
    admin: &'static str,
    /// Whether a newer xfsprogs than the installed one makes and checks the volume.
    newer: bool,
}

/// The options for newer features, each with the name of the feature.
const NEWER: [(&str, &str); 4] = [
    ("parent=1", "parent"),
    ("exchange=1", "exchange-range"),
    ("metadir=1", "metadir"),
    ("nrext64=1", "nrext64"),
];

const fn variant(options: &'static str) -> Variant {
    Variant {
        options,
        size: SIZE,
        mount: "",
        amount: Amount::Small,
        shares: true,
        may_be_refused: false,
        admin: "",
        newer: false,
    }
}

/// A variant that the installed mkfs.xfs or the kernel possibly does not support.
const fn newer(options: &'static str) -> Variant {
    let mut variant = variant(options).may_be_refused();
    variant.newer = true;
    variant
}

impl Variant {
    const fn large(mut self) -> Self {
        self.amount = Amount::Large;
        self
    }

    const fn sized(mut self, size: &'static str) -> Self {
        self.size = size;
        self
    }

    const fn mounted(mut self, options: &'static str) -> Self {
        self.mount = options;
        self
    }

    const fn without_sharing(mut self) -> Self {
        self.shares = false;
        self
    }

    const fn may_be_refused(mut self) -> Self {
        self.may_be_refused = true;
        self
    }

    const fn admin(mut self, options: &'static str) -> Self {
        self.admin = options;
        self
    }

    /// Records that a program or the kernel refused the variant, and the reason. If the variant does not permit a refusal, the test fails.
    /// The rest of the test is skipped.
    fn refused(&self, refusal: &str) {
        assert!(self.may_be_refused, "{refusal}");
        note(refusal);
    }

    fn run(&self) {
        let what = format!("mkfs.xfs {}, seed {SEED:#x}", self.options);
        let [mkfs, repair] = if self.newer {
            let need = Need::Variable(xfsprogs::VARIABLE);
            if let Some(why) = need.missing() {
                return note(&why);
            }
            ["mkfs.xfs", "xfs_repair"].map(xfsprogs::newer)
        } else {
            ["mkfs.xfs", "xfs_repair"].map(str::to_owned)
        };
        let image = match Image::mkfs_xfs_by(&mkfs, self.size, &words(self.options)) {
            Ok(image) => image,
            Err(refusal) => return self.refused(&refusal),
        };
        let block = match image.try_mount(&format!("rw{}", self.mount)) {
            Ok(mount) => {
                let block = rustix::fs::statvfs(mount.dir()).unwrap().f_bsize;
                assert_eq!(can_share(mount.dir()), self.shares, "{what}");
                fill(mount.dir(), block, self.amount, self.shares);
                block
            }
            Err(refusal) => return self.refused(&refusal),
        };
        if !self.admin.is_empty() {
            let path = image.path();
            let mut args = words(self.admin);
            args.push(path.to_str().unwrap());
            run("xfs_admin", &args);
        }
        image.check_by(&repair);
        self.check_features(&image);
        assert_clean(&image, &what);
        let seen = compare_with_kernel(&image, "", &what);
        self.check_coverage(&seen, block);
    }

    /// Asserts that the volume has the newer features that its options request.
    fn check_features(&self, image: &Image) {
        let features = image.open().unwrap().xfs().unwrap().superblock().features();
        for (option, feature) in NEWER {
            if self.options.contains(option) {
                assert!(
                    features.iter().any(|has| has == feature),
                    "{}: no {feature}",
                    self.options
                );
            }
        }
    }

    /// Checks that the tree of files contains the special cases for which it was made.
    fn check_coverage(&self, seen: &View, block: u64) {
        let any = |what: &str, has: &dyn Fn(&Record) -> bool| {
            assert!(seen.values().any(has), "{}: no {what}", self.options);
        };
        let xattrs = |record: &Record| record.xattrs.as_ref().map_or(0, |list| list.len());
        let pieces = |record: &Record| record.map.as_ref().map_or(0, Vec::len) as u64;
        let is_dir = |record: &Record| record.is(FileType::Directory);
        let size = |record: &Record| record.size.unwrap();
        any("directory in the inode", &|record| is_dir(record) && size(record) < 100);
        any("directory of many blocks", &|record| {
            is_dir(record) && size(record) > if block > 8192 { block } else { 8 * block }
        });
        any("fragments", &|record| pieces(record) >= self.amount.extents());
        any("unwritten extents", &|record| {
            record.map.iter().flatten().any(|piece| piece.unwritten)
        });
        any("blocks past the end", &|record| {
            let map = record.map.iter().flatten();
            map.last().is_some_and(|piece| piece.pos > size(record) + block)
        });
        any("many attributes", &|record| xattrs(record) > 300);
        any("long value", &|record| {
            record.xattrs.iter().flatten().any(|(_, value)| value.len() == 65_536)
        });
        any("access control list", &|record| {
            record.xattrs.iter().flatten().any(|(name, _)| name.starts_with(b"system."))
        });
        any("long target", &|record| record.target.as_ref().is_some_and(|to| to.len() == 1023));
        any("time before 1970", &|record| record.modified.is_some_and(|time| time.0 < 0));
        any("large device", &|record| record.device == Some((511, 0x3_FFFF)));
        any("flags", &|record| record.flags == Some(0xF8));
        any("project", &|record| record.project == Some(u32::MAX - 1));
        if !self.options.contains("bigtime=0") {
            any("time after 2038", &|record| record.modified.is_some_and(|time| time.0 > 1 << 32));
        }
    }
}

/// Defines one test for each variant, with a name.
macro_rules! variants {
    ($($name:ident: $variant:expr;)+) => {
        $(#[test]
        fn $name() {
            require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_repair")]);
            let variant: Variant = $variant;
            variant.run();
        })+
    };
}

variants! {
    defaults: variant("").large();
    blocks_of_1024: variant("-b size=1024").large();
    blocks_of_2048: variant("-b size=2048");
    blocks_of_4096: variant("-b size=4096");
    blocks_of_8192: variant("-b size=8192").may_be_refused();
    blocks_of_16384: variant("-b size=16384").may_be_refused();
    blocks_of_65536: variant("-b size=65536").sized("2G").may_be_refused();
    no_finobt: variant("-m finobt=0");
    rmapbt: variant("-m rmapbt=1");
    no_reflink: variant("-m reflink=0").without_sharing();
    no_bigtime: variant("-m bigtime=0");
    no_inobtcount: variant("-m inobtcount=0");
    oldest_v5: variant("-m finobt=0,reflink=0,bigtime=0,inobtcount=0 -i sparse=0").without_sharing();
    nrext64: variant("-i nrext64=1").large().may_be_refused();
    no_nrext64: variant("-i nrext64=0").may_be_refused();
    no_sparse_inodes: variant("-i sparse=0");
    sparse_inodes: variant("-i sparse=1,size=2048");
    inodes_of_512: variant("-i size=512");
    inodes_of_1024: variant("-i size=1024");
    inodes_of_1024_in_2048: variant("-b size=2048 -i size=1024");
    inodes_of_2048: variant("-i size=2048");
    names_in_4096_of_1024: variant("-b size=1024 -n size=4096");
    names_in_8192: variant("-n size=8192");
    names_in_16384: variant("-n size=16384").large();
    names_in_65536: variant("-n size=65536");
    names_in_65536_of_1024: variant("-b size=1024 -n size=65536");
    sectors_of_512: variant("-s size=512");
    sectors_of_4096: variant("-s size=4096");
    one_group: variant("-d agcount=1 --unsupported");
    two_groups: variant("-d agcount=2");
    sixteen_groups: variant("-d agcount=16 -l size=16m --unsupported");
    many_groups_of_1024: variant("-b size=1024 -d agsize=16m -l size=10m --unsupported");
    stripes: variant("-d su=64k,sw=4").sized("1G");
    stripes_of_log: variant("-d su=32k,sw=2 -l su=32k").sized("1G");
    a_tenth_for_inodes: variant("-i maxpct=10");
    all_for_inodes: variant("-i maxpct=0");
    attributes_of_version_2: variant("-i attr=2");
    large_log: variant("-l size=100m");
    log_in_last_group: variant("-l agnum=3");
    label: variant("-L twelve-bytes");
    other_uuid: variant("").admin("-U 12345678-9abc-def0-1234-56789abcdef0");
    other_uuid_of_1024: variant("-b size=1024").admin("-U generate");
    other_label: variant("-L before").admin("-L after");
    quota_of_users: variant("").mounted(",uquota").may_be_refused();
    quota_of_all: variant("").mounted(",uquota,gquota,pquota").may_be_refused();
    numbers_of_32_bits: variant("").mounted(",inode32");
    // On this volume, inode numbers need more than 32 bits.
    eight_tebibytes: variant("-d agcount=9 -l size=64m").sized("8T");
    many_features: variant("-m rmapbt=1,reflink=1 -i nrext64=1,size=1024 -n size=8192 -b size=2048").may_be_refused();
    unit_of_allocation: variant("-d extszinherit=16");
    unit_of_copies: variant("-d cowextsize=8");
    defaults_of_newer_tools: newer("").large();
    parent_pointers: newer("-n parent=1").large();
    parent_pointers_of_1024: newer("-b size=1024 -n parent=1");
    parent_pointers_in_inodes_of_2048: newer("-n parent=1 -i size=2048");
    exchange_of_ranges: newer("-i exchange=1");
    tree_of_metadata: newer("-m metadir=1");
    tree_of_metadata_with_quota: newer("-m metadir=1,uquota,gquota,pquota");
    all_newer_features: newer("-m metadir=1,rmapbt=1,autofsck=1 -n parent=1 -i exchange=1,nrext64=1");
    newer_without_defaults: newer("-m rmapbt=0,reflink=0,bigtime=0,inobtcount=0 -i nrext64=0,sparse=0").without_sharing();
}
