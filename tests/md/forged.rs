//! Arrays of each level. The test makes the members of an array from a table. The table shows which chunk is on which member, as in md(4)
//! and in the documentation of RAID layouts.

use std::sync::Arc;

use ironmap::device::{Faults, Sim};
use ironmap::location::LocationOptions;
use ironmap::md::{assemble, look};
use ironmap::partition::{NewPartition, NewTable};
use ironmap::units::DevOffset;
use ironmap::{ErrorKind, Location};

use crate::common::command::run;
use crate::common::image::scratch;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::shape::Shape;
use crate::{assert_content, choices, members, refusal, require};

const SEED: u64 = 0x4D45;
const CHUNK: usize = 4096;
/// The numbers that stand for parity chunks in a table.
const P: usize = 1000;
const Q: usize = 1001;

/// A table with one row for each row of chunks (stripe) of the array. A row contains, for each member, the number of the chunk on this
/// member.
type Table = &'static [&'static [usize]];

const LEFT_ASYMMETRIC: Table = &[&[0, 1, 2, P], &[3, 4, P, 5], &[6, P, 7, 8], &[P, 9, 10, 11]];
const RIGHT_ASYMMETRIC: Table = &[&[P, 0, 1, 2], &[3, P, 4, 5], &[6, 7, P, 8], &[9, 10, 11, P]];
const LEFT_SYMMETRIC: Table = &[&[0, 1, 2, P], &[4, 5, P, 3], &[8, P, 6, 7], &[P, 9, 10, 11]];
const RIGHT_SYMMETRIC: Table = &[&[P, 0, 1, 2], &[5, P, 3, 4], &[7, 8, P, 6], &[9, 10, 11, P]];
const FIRST: Table = &[&[P, 0, 1, 2], &[P, 3, 4, 5], &[P, 6, 7, 8], &[P, 9, 10, 11]];
const LAST: Table = &[&[0, 1, 2, P], &[3, 4, 5, P], &[6, 7, 8, P], &[9, 10, 11, P]];
const SIX_LEFT_SYMMETRIC: Table = &[
    &[Q, 0, 1, 2, P],
    &[3, 4, 5, P, Q],
    &[7, 8, P, Q, 6],
    &[11, P, Q, 9, 10],
    &[P, Q, 12, 13, 14],
];
const SIX_LEFT_ASYMMETRIC: Table = &[
    &[Q, 0, 1, 2, P],
    &[3, 4, 5, P, Q],
    &[6, 7, P, Q, 8],
    &[9, P, Q, 10, 11],
    &[P, Q, 12, 13, 14],
];
const SIX_ZERO_RESTART: Table = &[
    &[P, Q, 0, 1, 2],
    &[3, P, Q, 4, 5],
    &[6, 7, P, Q, 8],
    &[9, 10, 11, P, Q],
    &[Q, 12, 13, 14, P],
];
const SIX_N_RESTART: Table = &[
    &[0, 1, 2, P, Q],
    &[3, 4, P, Q, 5],
    &[6, P, Q, 7, 8],
    &[P, Q, 9, 10, 11],
    &[Q, 12, 13, 14, P],
];
const SIX_N_CONTINUE: Table = &[
    &[0, 1, 2, Q, P],
    &[4, 5, Q, P, 3],
    &[8, Q, P, 6, 7],
    &[Q, P, 9, 10, 11],
    &[P, 12, 13, 14, Q],
];
const NEAR_3: Table = &[&[0, 0, 1], &[1, 2, 2], &[3, 3, 4], &[4, 5, 5]];
const NEAR_4: Table = &[&[0, 0, 1, 1], &[2, 2, 3, 3], &[4, 4, 5, 5], &[6, 6, 7, 7]];

/// For each array: the level, the layout, the table, and the number of members that may be missing.
const ARRAYS: &[(i32, u32, Table, usize)] = &[
    (5, 0, LEFT_ASYMMETRIC, 1),
    (5, 1, RIGHT_ASYMMETRIC, 1),
    (5, 2, LEFT_SYMMETRIC, 1),
    (5, 3, RIGHT_SYMMETRIC, 1),
    (5, 4, FIRST, 1),
    (5, 5, LAST, 1),
    (4, 0, LAST, 1),
    (6, 0, SIX_LEFT_ASYMMETRIC, 2),
    (6, 2, SIX_LEFT_SYMMETRIC, 2),
    (6, 8, SIX_ZERO_RESTART, 2),
    (6, 9, SIX_N_RESTART, 2),
    (6, 10, SIX_N_CONTINUE, 2),
    (10, 0x102, NEAR_3, 1),
    (10, 0x102, NEAR_4, 1),
];

/// The product of two numbers in the field of RAID 6, computed by its definition: the remainder of a product of polynomials.
fn product(one: u8, other: u8) -> u8 {
    let mut all: u32 = (0..8)
        .filter(|bit| other >> bit & 1 == 1)
        .fold(0, |all, bit| all ^ (u32::from(one) << bit));
    for bit in (8..16).rev() {
        if all >> bit & 1 == 1 {
            all ^= 0x11D << (bit - 8);
        }
    }
    all as u8
}

/// Makes the data of each member of the array from a table. Q is a sum with one coefficient for each member. In the layouts of DDF, every
/// member has a coefficient, in the order of the members, including the members with parity.
fn by_table(table: Table, layout: u32, content: &[u8]) -> Vec<Vec<u8>> {
    let is_ddf = (8..=10).contains(&layout);
    let width = table[0].len();
    let mut all = vec![Vec::new(); width];
    for row in table {
        let chunk = |number: usize| &content[number * CHUNK..][..CHUNK];
        let data: Vec<usize> = (0..width).filter(|member| row[*member] < P).collect();
        let (mut p, mut q) = (vec![0; CHUNK], vec![0; CHUNK]);
        // In all other layouts, only the members with data have coefficients of Q. Their order begins at the member after Q.
        let first = row.iter().position(|number| *number == Q && !is_ddf).map_or(0, |at| at + 1);
        let ordered = (0..width).map(|step| (first + step) % width);
        let mut power = 1;
        for member in ordered.filter(|member| is_ddf || data.contains(member)) {
            let bytes = if row[member] < P { chunk(row[member]) } else { &[] };
            for (at, byte) in bytes.iter().enumerate() {
                p[at] ^= byte;
                q[at] ^= product(power, *byte);
            }
            power = product(power, 2);
        }
        for (member, number) in row.iter().enumerate() {
            all[member].extend_from_slice(match *number {
                P => &p,
                Q => &q,
                number => chunk(number),
            });
        }
    }
    all
}

fn images(shape: &Shape, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    (0..).zip(data).map(|(number, data)| shape.image(number, data)).collect()
}

/// For each level and layout, ironmap reads the content that the table defines, with all members and without each set of members that may
/// be missing.
#[test]
fn each_layout_is_read_by_its_table() {
    let content = Rng::new(SEED).bytes(16 * CHUNK);
    for (minor, (level, layout, table, spared)) in (0..3).cycle().zip(ARRAYS) {
        let chunks = table.iter().flat_map(|row| row.iter()).filter(|number| **number < P);
        let chunks = chunks.max().unwrap() + 1;
        let (disks, size) = (table[0].len() as u32, (table.len() * CHUNK / 512) as u64);
        let shape = Shape::new(minor, *level, *layout, disks, size);
        let images = images(&shape, &by_table(table, *layout, &content));
        for without in (0..=*spared).flat_map(|count| choices(images.len(), count)) {
            let what = format!("level {level}, layout {layout}, without {without:?}");
            let array = assemble(members(&images, &without))
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_content(&array, &content[..chunks * CHUNK], &what, SEED);
        }
    }
}

/// If a member cannot read some sectors, these sectors are reconstructed, provided that enough other chunks of the row can be read. If not,
/// the read returns the error of the device.
#[test]
fn unreadable_sectors_are_reconstructed() {
    let content = Rng::new(SEED).bytes(16 * CHUNK);
    for (level, layout, table, spared) in ARRAYS {
        let (disks, size) = (table[0].len(), (table.len() * CHUNK / 512) as u64);
        let shape = Shape::new(2, *level, *layout, disks as u32, size);
        let images = images(&shape, &by_table(table, *layout, &content));
        let assembled = |failing: usize| {
            let mut all = members(&images, &[]);
            for member in &mut all[..failing] {
                // The bad sectors are the second row and a part of the third row.
                let bad_sectors = (0..11).map(|sector| shape.start() as u64 + 8 + sector).collect();
                let faults = Faults { bad_sectors, ..Faults::default() };
                member.device = Arc::new(Sim::new(Arc::clone(&member.device), faults));
            }
            assemble(all).unwrap()
        };
        let chunks = table.iter().flat_map(|row| row.iter()).filter(|number| **number < P);
        let content = &content[..(chunks.max().unwrap() + 1) * CHUNK];
        for failing in 0..=*spared {
            assert_content(&assembled(failing), content, &format!("level {level}"), SEED);
        }
        let mut bytes = vec![0; content.len()];
        let failed = assembled(disks).device().read_exact_at(&mut bytes, DevOffset(0)).unwrap_err();
        assert!(matches!(failed.kind(), ErrorKind::Io(_)), "{failed}");
    }
}

/// A location names an array by its members, even if one member is missing. A location can also name a part of an array.
#[test]
fn an_array_is_a_location() {
    let content = Rng::new(SEED).bytes(16 * CHUNK);
    let (level, layout, table, _) = ARRAYS.iter().find(|(level, ..)| *level == 5).unwrap();
    let chunks = 1 + table.iter().flat_map(|row| row.iter()).filter(|it| **it < P).max().unwrap();
    let size = (table.len() * CHUNK / 512) as u64;
    let shape = Shape::new(2, *level, *layout, table[0].len() as u32, size);
    let dir = scratch();
    let paths: Vec<String> = (0..)
        .zip(images(&shape, &by_table(table, *layout, &content)))
        .map(|(number, image): (u32, _)| {
            let path = dir.path().join(format!("member{number}"));
            std::fs::write(&path, image).unwrap();
            path.display().to_string()
        })
        .collect();
    let open = |text: String| {
        let location: Location = text.parse().unwrap();
        location.open(&LocationOptions::new())
    };
    for without in 0..=paths.len() {
        let mut members = paths.clone();
        if without < paths.len() {
            members.remove(without);
        }
        let text = format!("md:{}", members.join(","));
        let opened = open(text.clone()).unwrap();
        assert_eq!(opened.faults.is_empty(), without == paths.len(), "{text}");
        let mut bytes = vec![0; chunks * CHUNK];
        opened.device.read_exact_at(&mut bytes, DevOffset(0)).unwrap();
        assert!(bytes == content[..chunks * CHUNK], "{text}");
        drop(opened);
        let part = open(format!("part:4096+8192@{text}")).unwrap().device;
        let mut bytes = vec![0; 8192];
        part.read_exact_at(&mut bytes, DevOffset(0)).unwrap();
        assert!(part.size() == 8192 && bytes == content[4096..12288], "{text}");
    }
    let text = format!("md:{},{}", paths[0], paths[0]);
    assert!(open(text).unwrap_err().to_string().contains("is named twice"));
    let location: Location = format!("md:{}", paths.join(",")).parse().unwrap();
    let error = location.open(&LocationOptions::new().write(true)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
}

/// The test covers arrays of level linear and of level 0 whose members have different lengths, and mirrors.
#[test]
fn members_of_different_lengths_form_zones() {
    let content = Rng::new(SEED).bytes(16 * CHUNK);
    let linear: &[&[usize]] = &[&[0], &[1, 2, 3], &[4, 5]];
    // The first zone is on three members, the second one on two, and the third one on one.
    let original: &[&[usize]] = &[&[0], &[1, 4], &[2, 3, 5, 6]];
    let alternate: &[&[usize]] = &[&[0], &[1, 3], &[2, 4, 5, 6]];
    let mirror: &[&[usize]] = &[&[0, 1, 2], &[0, 1, 2], &[0, 1, 2]];
    for (level, layout, columns) in
        [(-1, 0, linear), (0, 1, original), (0, 2, alternate), (1, 0, mirror)]
    {
        for minor in [0, 1, 2] {
            let column = |column: &&[usize]| -> Vec<u8> {
                column
                    .iter()
                    .flat_map(|number| content[number * CHUNK..][..CHUNK].to_vec())
                    .collect()
            };
            let data: Vec<_> = columns.iter().map(column).collect();
            let shape = Shape::new(minor, level, layout, 3, 3 * 8);
            let images = images(&shape, &data);
            let array = assemble(members(&images, &[])).unwrap();
            let len = 1 + columns.iter().flat_map(|column| column.iter()).max().unwrap();
            assert_content(&array, &content[..len * CHUNK], &format!("level {level}"), SEED);
            assert!(array.faults().is_empty(), "{:?}", array.faults());
        }
    }
}

/// In version 0.90, the data of a member of RAID 0 end at the superblock. Such a superblock never names a layout, so the members must have the
/// same size.
#[test]
fn old_superblocks_of_level_0_need_equal_members() {
    let content = Rng::new(SEED).bytes(64 * CHUNK);
    let column = |column| -> Vec<u8> {
        (0..32_usize)
            .flat_map(|row| content[(2 * row + column) * CHUNK..][..CHUNK].to_vec())
            .collect()
    };
    let shape = Shape::new(90, 0, 0, 2, 0);
    let mut images = images(&shape, &[column(0), column(1)]);
    let array = assemble(members(&images, &[])).unwrap();
    assert_eq!(array.device().size(), content.len() as u64);
    assert_content(&array, &content, "version 0.90", SEED);
    images[1] = shape.image(1, &[column(1), vec![0; 65536]].concat());
    let refused = refusal(members(&images, &[])).to_string();
    assert!(refused.contains("does not name the layout"), "{refused}");
}

/// mdadm accepts the superblocks of these tests, and reads the same properties from them as ironmap.
#[test]
fn mdadm_reads_the_same_superblocks() {
    require!([Need::Tool("mdadm")]);
    let dir = scratch();
    let path = dir.path().join("member");
    for (minor, version) in [(0, "1.0"), (1, "1.1"), (2, "1.2"), (90, "0.90")] {
        let shape = Shape::new(minor, 5, 2, 3, 64);
        let image = shape.image(1, &vec![0; 64 * 512]);
        std::fs::write(&path, &image).unwrap();
        let shown = run("mdadm", &["--examine".as_ref(), path.as_os_str()]);
        let shown = String::from_utf8(shown).unwrap();
        let device = ironmap::device::Ram::from_image(&image);
        let found = look(&device).unwrap().unwrap().to_string();
        assert!(found.starts_with("device 1 of the RAID 5 array "), "{found}");
        assert!(found.contains(&format!("3 devices, metadata {version}, ")), "{found}");
        let uuid = found.rsplit(' ').next().unwrap();
        for text in [uuid, "raid5", "correct", "left-symmetric"] {
            assert!(shown.contains(text), "{text}: {shown}");
        }
    }
}

/// ironmap does not write to a member of an array, because the members would differ. For the same reason, it does not write to a partition
/// of a member. A part that is named by its start and length can be written.
#[test]
fn a_partition_of_a_member_is_only_read() {
    let dir = scratch();
    let path = dir.path().join("member");
    // The array has a partition table. The superblock is at the end of the member, so the table is at the beginning of the member.
    std::fs::write(&path, vec![0; 2 << 20]).unwrap();
    let device = ironmap::tools::device(&*path).unwrap();
    let (kind, guid, name) = ([7; 16], [8; 16], "part".to_owned());
    let (start, len, attributes) = (1 << 20, 512 << 10, 0);
    let partitions = vec![NewPartition { kind, guid, start, len, attributes, name }];
    NewTable { guid: [9; 16], sector: 512, partitions }.write(&*device).unwrap();
    drop(device);
    let content = std::fs::read(&path).unwrap();
    let shape = Shape::new(0, 1, 0, 2, (content.len() / 512) as u64);
    std::fs::write(&path, shape.image(0, &content)).unwrap();
    for (part, is_written) in [("@p1", false), ("@1048576", false), ("@1048576+4096", true)] {
        let location: Location = format!("{}{part}", path.display()).parse().unwrap();
        location.open(&LocationOptions::new()).unwrap();
        let opened = location.open(&LocationOptions::new().write(true));
        match opened {
            Ok(_) => assert!(is_written, "{part}"),
            Err(error) => {
                let said = error.to_string();
                assert!(!is_written && said.contains("RAID 1 array"), "{part}: {said}");
            }
        }
    }
}

/// The part at the end of `md:DISK,DISK@p1` belongs to the last disk. The error names the location of a part of the array.
#[test]
fn the_location_of_a_part_of_an_array_is_named() {
    let content = Rng::new(SEED).bytes(1 << 20);
    let dir = scratch();
    let shape = Shape::new(2, 1, 0, 2, (content.len() / 512) as u64);
    let paths = [0, 1].map(|number| {
        let path = dir.path().join(format!("member{number}"));
        std::fs::write(&path, shape.image(number, &content)).unwrap();
        path.display().to_string()
    });
    let array = format!("md:{},{}", paths[0], paths[1]);
    for part in ["p1", "4096+4096", "vg/root"] {
        let location: Location = format!("{array}@{part}").parse().unwrap();
        let error = location.open(&LocationOptions::new()).unwrap_err().to_string();
        assert!(error.contains(&format!("write part:{part}@{array}")), "{error}");
    }
}
