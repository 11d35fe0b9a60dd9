//! Finds runs of contiguous sectors in the buffers of a request, and computes the tuples of these sectors.

use crate::protection::{Mismatch, Protection};

/// The application tag of sectors that must not be checked (T10 SBC, NVM Command Set). Sectors that were never written have this tag.
const UNCHECKED: u16 = 0xFFFF;

/// Calls `run` for each run of contiguous whole intervals, with the number of intervals before the run. An interval that is split across
/// several buffers is assembled in `parted`. An incomplete interval at the end is ignored.
pub(super) fn each_run<'a, E>(
    protection: Protection,
    parted: &mut Vec<u8>,
    bufs: impl Iterator<Item = &'a [u8]>,
    mut run: impl FnMut(usize, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let interval = protection.interval.bytes();
    let mut done = 0;
    parted.clear();
    for mut buf in bufs {
        if !parted.is_empty() {
            let (head, rest) = buf.split_at(buf.len().min(interval - parted.len()));
            parted.extend_from_slice(head);
            buf = rest;
            if parted.len() < interval {
                continue;
            }
            run(done, parted)?;
            done += 1;
            parted.clear();
        }
        let (whole, rest) = buf.split_at(buf.len() - buf.len() % interval);
        if !whole.is_empty() {
            run(done, whole)?;
            done += whole.len() / interval;
        }
        parted.extend_from_slice(rest);
    }
    Ok(())
}

/// Compares adjacent sectors with their tuples. Sectors whose tuple disables the check are not compared.
pub(super) fn verify_run(
    protection: Protection,
    mut data: &[u8],
    mut tuples: &[u8],
    mut first: u64,
) -> Result<(), Mismatch> {
    let (bytes, interval) = (protection.kind.bytes(), protection.interval.bytes());
    loop {
        let Err(mismatch) = protection.verify(data, tuples, first, None) else { return Ok(()) };
        let index = (mismatch.sector - first) as usize;
        let tuple = &tuples[index * bytes..][..bytes];
        if protection.applications(tuple).next() != Some(UNCHECKED) {
            return Err(mismatch);
        }
        (data, tuples) = (&data[(index + 1) * interval..], &tuples[(index + 1) * bytes..]);
        first = mismatch.sector + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protection::{Field, Interval, TupleKind};

    const T10: Protection =
        Protection { kind: TupleKind::T10, interval: Interval::B512, generation: false };

    #[test]
    fn sectors_that_buffers_share_are_put_together() {
        let data: Vec<u8> = (0..4 * 512_u32).map(|at| (at / 3) as u8).collect();
        for cuts in [[512, 1024], [100, 101], [511, 513], [700, 2000], [0, 2048]] {
            let (head, rest) = data.split_at(cuts[0]);
            let (middle, tail) = rest.split_at(cuts[1] - cuts[0]);
            let mut found = Vec::new();
            let mut parted = Vec::new();
            each_run(T10, &mut parted, [head, middle, tail].into_iter(), |index, run| {
                assert_eq!(index * 512, found.len());
                found.extend_from_slice(run);
                Ok::<_, ()>(())
            })
            .unwrap();
            assert!(found == data, "{cuts:?}");
        }
    }

    #[test]
    fn a_sector_whose_check_is_switched_off_is_passed_over_and_no_other() {
        let data = vec![7; 3 * 512];
        let mut tuples = vec![0; 3 * 8];
        T10.encode(&data, 100, 0, &mut tuples);
        tuples[8..16].fill(0xFF);
        assert_eq!(verify_run(T10, &data, &tuples, 100), Ok(()));
        tuples[16] ^= 1;
        let mismatch = verify_run(T10, &data, &tuples, 100).unwrap_err();
        assert_eq!((mismatch.sector, mismatch.field), (102, Field::Guard));
    }
}
