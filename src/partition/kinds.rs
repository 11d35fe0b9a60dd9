//! The types of GPT partitions, with the names that systemd-repart uses. Source: the Discoverable Partitions Specification.

/// The types that do not depend on the processor: name and GUID.
const COMMON: [(&str, u128); 13] = [
    ("esp", 0xC12A7328_F81F_11D2_BA4B_00A0C93EC93B),
    ("xbootldr", 0xBC13C2FF_59E6_4262_A352_B275FD6F7172),
    ("swap", 0x0657FD6D_A4AB_43C4_84E5_0933C84B4F4F),
    ("home", 0x933AC7E1_2EB4_4F13_B844_0E14E2AEF915),
    ("srv", 0x3B8F8425_20E0_4F3B_907F_1A25A76F98E8),
    ("var", 0x4D21B016_B534_45C2_A9FB_5C16E091FD2D),
    ("tmp", 0x7EC6F557_3BC5_4ACA_B293_16EF5DF639D1),
    ("user-home", 0x773F91EF_66D4_49B5_BD83_D683BF40AD16),
    ("linux-generic", 0x0FC63DAF_8483_4772_8E79_3D69D8477DE4),
    ("linux-lvm", 0xE6D6D379_F507_44C2_A23C_238F2A3DF928),
    ("linux-raid", 0xA19D880F_05FC_4D3B_A006_743F0F84911E),
    ("bios-boot", 0x21686148_6449_6E6F_744E_656564454649),
    ("microsoft-basic", 0xEBD0A0A2_B9E5_4433_87C0_68B6B72699C7),
];

/// The suffix of a type whose partitions contain the hash tree of another partition.
const VERITY: &str = "-verity";

/// The types for one processor.
struct Processor {
    name: &'static str,
    /// The name of the processor in Rust's `target_arch`.
    arch: &'static str,
    root: u128,
    root_verity: u128,
    usr: u128,
    usr_verity: u128,
}

const PROCESSORS: [Processor; 9] = [
    Processor {
        name: "x86-64",
        arch: "x86_64",
        root: 0x4F68BCE3_E8CD_4DB1_96E7_FBCAF984B709,
        root_verity: 0x2C7357ED_EBD2_46D9_AEC1_23D437EC2BF5,
        usr: 0x8484680C_9521_48C6_9C11_B0720656F69E,
        usr_verity: 0x77FF5F63_E7B6_4633_ACF4_1565B864C0E6,
    },
    Processor {
        name: "x86",
        arch: "x86",
        root: 0x44479540_F297_41B2_9AF7_D131D5F0458A,
        root_verity: 0xD13C5D3B_B5D1_422A_B29F_9454FDC89D76,
        usr: 0x75250D76_8CC6_458E_BD66_BD47CC81A812,
        usr_verity: 0x8F461B0D_14EE_4E81_9AA9_049B6FB97ABD,
    },
    Processor {
        name: "arm64",
        arch: "aarch64",
        root: 0xB921B045_1DF0_41C3_AF44_4C6F280D3FAE,
        root_verity: 0xDF3300CE_D69F_4C92_978C_9BFB0F38D820,
        usr: 0xB0E01050_EE5F_4390_949A_9101B17104E9,
        usr_verity: 0x6E11A4E7_FBCA_4DED_B9E9_E1A512BB664E,
    },
    Processor {
        name: "arm",
        arch: "arm",
        root: 0x69DAD710_2CE4_4E3C_B16C_21A1D49ABED3,
        root_verity: 0x7386CDF2_203C_47A9_A498_F2ECCE45A2D6,
        usr: 0x7D0359A3_02B3_4F0A_865C_654403E70625,
        usr_verity: 0xC215D751_7BCD_4649_BE90_6627490A4C05,
    },
    Processor {
        name: "riscv64",
        arch: "riscv64",
        root: 0x72EC70A6_CF74_40E6_BD49_4BDA08E8F224,
        root_verity: 0xB6ED5582_440B_4209_B8DA_5FF7C419EA3D,
        usr: 0xBEAEC34B_8442_439B_A40B_984381ED097D,
        usr_verity: 0x8F1056BE_9B05_47C4_81D6_BE53128E5B54,
    },
    Processor {
        name: "riscv32",
        arch: "riscv32",
        root: 0x60D5A7FE_8E7D_435C_B714_3DD8162144E1,
        root_verity: 0xAE0253BE_1167_4007_AC68_43926C14C5DE,
        usr: 0xB933FB22_5C3F_4F91_AF90_E2BB0FA50702,
        usr_verity: 0xCB1EE4E3_8CD0_4136_A0A4_AA61A32E8730,
    },
    Processor {
        name: "loongarch64",
        arch: "loongarch64",
        root: 0x77055800_792C_4F94_B39A_98C91B762BB6,
        root_verity: 0xF3393B22_E9AF_4613_A948_9D3BFBD0C535,
        usr: 0xE611C702_575C_4CBE_9A46_434FA0BF7E3F,
        usr_verity: 0xF46B2C26_59AE_48F0_9106_C50ED47F673D,
    },
    Processor {
        name: "ppc64-le",
        arch: "powerpc64",
        root: 0xC31C45E6_3F39_412E_80FB_4809C4980599,
        root_verity: 0x906BD944_4589_4AAE_A4E4_DD983917446A,
        usr: 0x15BB03AF_77E7_4D4A_B12B_C0D084F7491C,
        usr_verity: 0xEE2B9983_21E8_4153_86D9_B6901A54D1CE,
    },
    Processor {
        name: "s390x",
        arch: "s390x",
        root: 0x5EEAD9A9_FE09_4A1E_A1D7_520D00531306,
        root_verity: 0xB325BFBE_C7BE_4AB8_8357_139E652D2F6B,
        usr: 0x8A4F5770_50AA_4ED3_874A_99B710DB6FEA,
        usr_verity: 0x31741CC4_1A2A_4111_A581_E00B447D2D06,
    },
];

impl Processor {
    fn kinds(&self) -> [(&'static str, &'static str, u128); 4] {
        let Self { root, root_verity, usr, usr_verity, .. } = *self;
        [
            ("root", "", root),
            ("root", VERITY, root_verity),
            ("usr", "", usr),
            ("usr", VERITY, usr_verity),
        ]
    }
}

/// Returns all types: the name, and the bytes of the GUID in the order of its text form. Partitions for `/` (`root`) and `/usr` (`usr`),
/// and those for their hash trees, have a separate type for each processor, for example `root-x86-64` and `root-x86-64-verity`.
pub fn all() -> impl Iterator<Item = (String, [u8; 16])> {
    let common = COMMON.iter().map(|(name, guid)| ((*name).to_owned(), *guid));
    let of_processors = PROCESSORS.iter().flat_map(|processor| {
        let name = processor.name;
        processor.kinds().map(|(what, suffix, guid)| (format!("{what}-{name}{suffix}"), guid))
    });
    common.chain(of_processors).map(|(name, guid)| (name, guid.to_be_bytes()))
}

/// Returns the GUID of the type with this name. `root`, `root-verity`, `usr` and `usr-verity` are the types for the processor of this
/// machine.
#[must_use]
pub fn by_name(name: &str) -> Option<[u8; 16]> {
    let native = PROCESSORS.iter().find(|processor| processor.arch == std::env::consts::ARCH);
    let native = native.into_iter().flat_map(Processor::kinds);
    let native = native.map(|(what, suffix, guid)| (format!("{what}{suffix}"), guid.to_be_bytes()));
    native.chain(all()).find(|(known, _)| known == name).map(|(_, guid)| guid)
}

/// Returns the name of a type, or `None` for a type without a name.
#[must_use]
pub fn name_of(guid: &[u8; 16]) -> Option<String> {
    all().find(|(_, known)| known == guid).map(|(name, _)| name)
}

/// If partitions of the type `guid` contain hash trees, returns the type of the partitions that these hash trees protect. Otherwise,
/// returns `None`.
#[must_use]
pub fn verified_by(guid: &[u8; 16]) -> Option<[u8; 16]> {
    by_name(name_of(guid)?.strip_suffix(VERITY)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A search for the name of each type finds this type. Each type of partitions with hash trees has a corresponding type of partitions
    /// that the hash trees protect.
    #[test]
    fn names_and_types_are_unique() {
        for (name, guid) in all() {
            assert_eq!(by_name(&name), Some(guid), "{name}");
            assert_eq!(name_of(&guid), Some(name.clone()));
            let data = name.strip_suffix(VERITY).map(|data| by_name(data).unwrap());
            assert_eq!(verified_by(&guid), data, "{name}");
        }
        assert_eq!(by_name("root-vax"), None);
    }
}
