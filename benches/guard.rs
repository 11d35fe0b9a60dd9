//! Guard tags of sectors. Measures which crate computes guard tags fastest, and the time to encode and to verify the tags of many sectors.
//!
//! `cargo bench --bench guard`. The candidates run in turns on one core. The result of a candidate is the median of its turns. The crate
//! `crc` is measured with its largest table. This crate is the fallback for processors without carry-less multiplication.

use std::hint::black_box;
use std::time::Instant;

use crc::{Crc, Table};
use crc_fast::CrcAlgorithm::{Crc16T10Dif, Crc64Nvme};
use ironmap::protection::{Interval, Protection, TupleKind, guard};

const ROUNDS: usize = 101;
/// The number of bytes that a candidate processes in one turn, and the size of the data in bytes. The data fit into the second-level cache,
/// like data that a program has just read.
const TURN: usize = 1 << 20;
const DATA: usize = 128 << 10;

static T10: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&crc::CRC_16_T10_DIF);
static NVME: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&crc::CRC_64_NVME);

/// A candidate: its name, and its function, which processes one piece of the data.
type Candidate<'a> = (&'a str, &'a mut dyn FnMut(&[u8]) -> u64);

fn main() {
    println!("GB/s, one core\n");
    println!("| | 512 B | 4 KiB | 64 KiB |\n|---|--:|--:|--:|");
    table(
        [512, 4096, 65536],
        &mut [
            ("CRC16: crc-fast", &mut |data| crc_fast::checksum(Crc16T10Dif, data)),
            ("CRC16: crc, 16 tables", &mut |data| T10.checksum(data).into()),
            ("CRC64: crc-fast", &mut |data| crc_fast::checksum(Crc64Nvme, data)),
            ("CRC64: crc64fast-nvme", &mut |data| {
                let mut digest = crc64fast_nvme::Digest::new();
                digest.write(data);
                digest.sum64()
            }),
            ("CRC64: crc, 16 tables", &mut |data| NVME.checksum(data)),
            ("`guard::t10_dif`", &mut |data| guard::t10_dif(data, 0).into()),
            ("`guard::t10_dif`, seeded", &mut |data| guard::t10_dif(data, 5).into()),
            ("`guard::nvme64`", &mut |data| guard::nvme64(data, 0)),
            ("`guard::nvme64`, seeded", &mut |data| guard::nvme64(data, 5)),
        ],
    );
    println!("\n| | 4 KiB | 64 KiB |\n|---|--:|--:|");
    for (kind, name) in [(TupleKind::T10, "T10 DIF"), (TupleKind::Nvme64, "NVMe, 64-bit guard")] {
        for interval in [Interval::B512, Interval::B4096] {
            let protection = Protection { kind, interval, generation: false };
            let name = |what: &str| format!("{what}, {name}, sectors of {}", interval.bytes());
            let mut tuples = vec![0; 65536 / interval.bytes() * kind.bytes()];
            let mut right = tuples.clone();
            protection.encode(&data()[..65536], 1, 2, &mut right);
            let count = |data: &[u8]| data.len() / interval.bytes() * kind.bytes();
            table(
                [4096, 65536],
                &mut [
                    (&name("encode"), &mut |data| {
                        let tuples = &mut tuples[..count(data)];
                        protection.encode(data, 1, 2, tuples);
                        tuples[0].into()
                    }),
                    (&name("verify"), &mut |data| {
                        let tuples = &right[..count(data)];
                        protection.verify(data, tuples, 1, Some(2)).expect("its own tuples");
                        0
                    }),
                ],
            );
        }
    }
}

/// The data repeat one piece of 4 KiB. So the protection information tuples (one per interval) of the first piece are correct for all
/// pieces.
fn data() -> Vec<u8> {
    let once = Vec::from_iter((0..4096).map(|at| (at % 251) as u8));
    once.repeat(DATA / once.len())
}

fn table<const N: usize>(lengths: [usize; N], candidates: &mut [Candidate<'_>]) {
    let data = data();
    let mut rates = vec![[const { Vec::new() }; N]; candidates.len()];
    for _ in 0..ROUNDS {
        for (column, length) in lengths.into_iter().enumerate() {
            for ((_, compute), rates) in candidates.iter_mut().zip(&mut rates) {
                let start = Instant::now();
                for piece in data.chunks_exact(length).cycle().take(TURN / length) {
                    black_box(compute(black_box(piece)));
                }
                rates[column].push(TURN as f64 / start.elapsed().as_nanos() as f64);
            }
        }
    }
    for ((name, _), rates) in candidates.iter().zip(rates) {
        let rates = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            format!("{:.1}", rates[rates.len() / 2])
        });
        println!("| {name} | {} |", rates.join(" | "));
    }
}
