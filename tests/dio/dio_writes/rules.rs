//! Rules for writes: which writes are accepted, which are refused, and how many handles, locks and requests a write may use. Each rule has
//! a test.

use std::io::IoSlice;

use ironmap::dio::DioFlags;
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{
    Fallocate, InodeFlags, KeepSetId, SetAttributes, SetXattr, Timestamp, WriteCounts,
};
use ironmap::iomap::IomapType;
use ironmap::units::FilePos;
use ironmap::{ErrorKind, FileOptions};

use crate::dio_writes::bench::{BLOCK, Bench, CALLS, Call, NONE, content, kind, map, memory};

const EXT4: &str = "-t ext4 -b 4096";

/// The position, length and address of a request must be multiples of the device's units. If one part of a request is misaligned, the whole
/// request is refused and has no effect.
#[test]
fn strict_handles_refuse_what_is_misaligned() {
    let bench = Bench::new(EXT4);
    let number = bench.written("file", 4).inode();
    let (file, mut queue) = (bench.open(number, true), bench.queue());
    let before = content(&file, &mut queue);
    let seen = bench.seen(|| {
        let buffer = memory(3 * BLOCK, 0x22);
        for (pos, offset, len) in
            [(1, 0, 512), (256, 0, 4096), (0, 0, 511), (512, 0, 4097), (0, 1, 512), (0, 2, 4096)]
        {
            let bytes = &buffer[offset..offset + len];
            let result = file.write_at(&mut queue, bytes, FilePos(pos));
            assert_eq!(kind(result), ErrorKind::InvalidInput, "{len} at {pos}, memory at {offset}");
        }
        let halves = [IoSlice::new(&buffer[..4096]), IoSlice::new(&buffer[4096..4096 + 100])];
        let result = file.write_vectored_at(&mut queue, &halves, FilePos(0), NONE);
        assert_eq!(kind(result), ErrorKind::InvalidInput, "one buffer of two");
        let rejected = file.submit_write(&mut queue, memory(100, 1), FilePos(0), NONE, 1);
        assert_eq!(rejected.unwrap_err().error.kind(), ErrorKind::InvalidInput);
        assert_eq!(queue.outstanding(), 0);
    });
    assert_eq!(seen.writes, 0);
    assert!(content(&file, &mut queue) == before);
}

/// On a device with sectors of 512 bytes, the unit of requests is 512 bytes, even if the block size is 4096.
#[test]
fn the_unit_is_the_sector_and_not_the_block() {
    let bench = Bench::new(EXT4);
    let number = bench.written("file", 4).inode();
    let (file, mut queue) = (bench.open(number, true), bench.queue());
    assert_eq!(file.write_at(&mut queue, &memory(512, 0x22), FilePos(1536)).unwrap(), 512);
    let bytes = content(&file, &mut queue);
    assert!(bytes[..1536] == [0x11; 1536] && bytes[1536..2048] == [0x22; 512]);
    assert!(bytes[2048..].iter().all(|byte| *byte == 0x11));
}

#[test]
fn no_bytes_are_written_without_a_trace() {
    let bench = Bench::new(EXT4);
    let (file, mut queue) = (bench.written("file", 1), bench.queue());
    for pos in [0, BLOCK, 100 * BLOCK] {
        for way in CALLS {
            let cost = bench.cost(|| {
                assert_eq!(way.write((&file, &mut queue), memory(0, 0), pos, NONE).unwrap(), 0);
            });
            assert_eq!((cost, file.size()), (WriteCounts::default(), BLOCK), "{way:?} at {pos}");
        }
    }
    assert_eq!(file.write_vectored_at(&mut queue, &[], FilePos(0), NONE).unwrap(), 0);
    let strict = bench.open(file.inode(), true);
    assert_eq!(
        strict.write_at(&mut queue, &[], FilePos(1)).unwrap(),
        0,
        "no position is misaligned"
    );
}

#[test]
fn a_position_past_the_format_is_too_large() {
    for (mkfs, limit) in [(EXT4, u64::from(u32::MAX) * BLOCK), ("-t ext2 -b 1024", 17_247_252_480)]
    {
        let bench = Bench::new(mkfs);
        let (file, mut queue) = (bench.open(bench.create("file"), false), bench.queue());
        for pos in [limit, limit - 512, u64::MAX - 4095] {
            for way in CALLS {
                let result = way.write((&file, &mut queue), memory(1024, 1), pos, NONE);
                assert_eq!(kind(result), ErrorKind::FileTooLarge, "{mkfs}: {pos}");
            }
        }
        assert_eq!(file.size(), 0);
        bench.close();
    }
}

#[test]
fn immutable_files_are_not_written_and_append_only_ones_at_their_end() {
    let bench = Bench::new(EXT4);
    let (file, mut queue) = (bench.written("file", 2), bench.queue());
    let flags = bench.fs().inode(file.inode()).unwrap().flags();
    // After this write, the queue has a copy of the file's size, map and flags. The first write after the change of the flag must still
    // respect the new flag.
    file.write_at(&mut queue, &memory(BLOCK, 0x12), FilePos(0)).unwrap();
    bench.fs().writable().unwrap().set_flags(file.inode(), flags | InodeFlags::IMMUTABLE).unwrap();
    for way in CALLS {
        for pos in [0, 512, 2 * BLOCK] {
            let result = way.write((&file, &mut queue), memory(512, 0x22), pos, NONE);
            assert_eq!(kind(result), ErrorKind::NotPermitted, "{way:?} at {pos}");
        }
    }
    bench.fs().writable().unwrap().set_flags(file.inode(), flags | InodeFlags::APPEND).unwrap();
    for way in CALLS {
        let result = way.write((&file, &mut queue), memory(512, 0x22), 0, NONE);
        assert_eq!(kind(result), ErrorKind::NotPermitted, "{way:?}");
        let end = file.size();
        assert_eq!(way.write((&file, &mut queue), memory(512, 0x33), end, NONE).unwrap(), 512);
    }
    let at = file.append(&mut queue, &memory(512, 0x44), NONE).unwrap();
    assert_eq!((at.0, file.size()), (2 * BLOCK + 1536, 2 * BLOCK + 2048));
    drop((file, queue));
    let bytes = bench.close().dump("/file");
    assert!(bytes[..4096] == [0x12; 4096] && bytes[4096..8192] == [0x11; 4096]);
    assert!(bytes[8192..] == [[0x33; 512], [0x33; 512], [0x33; 512], [0x44; 512]].concat());
}

/// A write removes set-id bits and capabilities before it writes the data. This also applies to overwrites. Later overwrites have no extra
/// cost.
#[test]
fn set_id_bits_and_capabilities_go_with_a_write() {
    let capability = {
        let mut value = [0; 20];
        value[..4].copy_from_slice(&0x0200_0000_u32.to_le_bytes());
        value[4..8].copy_from_slice(&0x400_u32.to_le_bytes());
        value
    };
    for way in CALLS {
        let bench = Bench::new(EXT4);
        let (file, mut queue) = (bench.written("file", 2), bench.queue());
        way.write((&file, &mut queue), memory(512, 1), 0, NONE).unwrap();
        let (fs, number) = (bench.fs(), file.inode());
        for (before, after) in [(0o6755, 0o755), (0o4644, 0o644), (0o2755, 0o755), (0o2644, 0o2644)]
        {
            let set = SetAttributes::new().permissions(before);
            fs.writable().unwrap().set_attributes(number, &set).unwrap();
            let nowait =
                way.write((&file, &mut queue), memory(512, 2), 0, DioFlags::NOWAIT).map(drop);
            let stays = before == after;
            assert_eq!(nowait.is_ok(), stays, "{before:o}: the mode is not changed with NOWAIT");
            assert_eq!(fs.inode(number).unwrap().stat().mode & 0o7777, before);
            way.write((&file, &mut queue), memory(512, 2), 0, NONE).unwrap();
            assert_eq!(fs.inode(number).unwrap().stat().mode & 0o7777, after, "{before:o}");
        }
        let (name, how) = (b"security.capability", SetXattr::Any);
        fs.writable().unwrap().setxattr(number, name, &capability, how).unwrap();
        way.write((&file, &mut queue), memory(512, 3), 512, NONE).unwrap();
        assert_eq!(fs.inode(number).unwrap().xattr(name).unwrap(), None, "{way:?}");
        let cost = bench.cost(|| {
            way.write((&file, &mut queue), memory(512, 4), 0, NONE).unwrap();
        });
        assert_eq!(cost, WriteCounts::default(), "{way:?}");
        drop((file, queue));
        bench.close();
    }
}

/// An overwrite of written blocks starts no journal handle and acquires no exclusive lock. The alignment and the number of bios do not
/// matter.
#[test]
fn pure_overwrites_start_no_handle_and_exclude_no_thread() {
    let bench = Bench::new(EXT4);
    let (file, mut queue) = (bench.written("file", 64), bench.queue());
    let cost = bench.cost(|| {
        for way in CALLS {
            for (pos, len) in [(0, BLOCK), (512, 512), (BLOCK - 512, 1024), (1536, 9 * BLOCK)] {
                for flags in [NONE, DioFlags::NOWAIT, DioFlags::HIPRI, DioFlags::BOUNCE] {
                    let buffer = memory(len, 0x22);
                    let count = way.write((&file, &mut queue), buffer, pos, flags).unwrap();
                    assert_eq!(count as u64, len, "{way:?}, {flags:?}: {len} at {pos}");
                }
            }
        }
    });
    assert_eq!(cost, WriteCounts::default());
    assert!(queue.stats().overwrites > 0, "{:?}", queue.stats());
}

/// A write into unwritten blocks starts no journal handle. Only the later conversion, which marks the blocks as written, starts one. Many
/// conversions share one handle.
#[test]
fn writes_into_unwritten_blocks_start_no_handle_and_exclude_no_thread() {
    let bench = Bench::new(EXT4);
    bench.soil();
    let (file, mut queue) = (bench.unwritten("file", 64), bench.queue());
    let cost = bench.cost(|| {
        for block in 0..32 {
            let at = block * 2 * BLOCK + 512;
            file.write_at(&mut queue, &memory(512, 0x22), FilePos(at)).unwrap();
            Call::Owned.write((&file, &mut queue), memory(512, 0x33), at + 1024, NONE).unwrap();
        }
    });
    assert_eq!(cost, WriteCounts::default());
    let expected = content(&file, &mut queue);
    let cost = bench.cost(|| file.sync(&mut queue).unwrap());
    assert_eq!((cost.conversions, cost.zeroed), (32, 32 * 3072), "each block's other sectors");
    assert!(cost.handles <= 3, "{cost:?}");
    assert!(content(&file, &mut queue) == expected);
    let mut sectors = expected.chunks(512).zip(0_usize..);
    assert!(sectors.all(|(sector, at)| {
        let fill = match at % 16 {
            1 => 0x22,
            3 => 0x33,
            _ => 0,
        };
        sector == [fill; 512]
    }));
    drop((file, queue));
    assert!(bench.close().dump("/file") == expected);
}

/// Blocks that are allocated in a hole stay unwritten until the device has the data.
#[test]
fn holes_are_allocated_unwritten_and_converted_after_the_data() {
    let bench = Bench::new(EXT4);
    let (file, mut queue) = (bench.hole("file", 16), bench.queue());
    file.submit_write(&mut queue, memory(2 * BLOCK, 0x22), FilePos(4 * BLOCK), NONE, 1).unwrap();
    assert_eq!(map(&file)[1], (IomapType::Unwritten, 2), "while it is in flight");
    bench.fs().sync().unwrap();
    // At this point only the allocation is durable.
    let crashed = bench.after_crash();
    let (other, mut other_queue) = (crashed.open(file.inode(), false), crashed.queue());
    assert!(content(&other, &mut other_queue).iter().all(|byte| *byte == 0));
    queue.wait(1).unwrap();
    assert_eq!(queue.pop().unwrap().result.unwrap() as u64, 2 * BLOCK);
    file.sync(&mut queue).unwrap();
    use IomapType::{Hole, Mapped};
    assert_eq!(map(&file), [(Hole, 4), (Mapped, 2), (Hole, 10)]);
    drop((file, queue));
    bench.close();
}

/// Reads never return old content of the device. The test reads next to the written data, past the end, and between writes.
#[test]
fn old_content_of_blocks_is_never_shown() {
    for (pos, len) in [(512, 512), (3 * 512, BLOCK), (2 * BLOCK + 512, 512), (BLOCK + 512, 3072)] {
        let bench = Bench::new(EXT4);
        bench.soil();
        let (file, mut queue) = (bench.open(bench.create("file"), false), bench.queue());
        file.write_at(&mut queue, &memory(len, 0x22), FilePos(pos)).unwrap();
        let mut expected = vec![0; (pos + len) as usize];
        expected[pos as usize..].fill(0x22);
        assert!(content(&file, &mut queue) == expected, "{len} at {pos}: at once");
        file.sync(&mut queue).unwrap();
        assert!(content(&file, &mut queue) == expected, "{len} at {pos}: converted");
        bench.fs().writable().unwrap().truncate(file.inode(), 6 * BLOCK).unwrap();
        expected.resize(6 * BLOCK as usize, 0);
        assert!(content(&file, &mut queue) == expected, "{len} at {pos}: longer");
        drop((file, queue));
        assert!(bench.close().dump("/file") == expected, "{len} at {pos}");
    }
}

#[test]
fn vectored_writes_take_their_buffers_in_order() {
    let bench = Bench::new(EXT4);
    for (name, pos, lens) in [
        ("aligned", 0, &[512_usize, 0, 4096, 1024][..]),
        ("odd", 100, &[1, 700, 0, 5000, 33][..]),
        ("overwrite", 0, &[4096, 4096][..]),
    ] {
        let (file, mut queue) = (bench.written(name, 4), bench.queue());
        let buffers: Vec<_> =
            lens.iter().zip(1..).map(|(len, fill)| memory(*len as u64, fill)).collect();
        let slices: Vec<_> = buffers.iter().map(|buffer| IoSlice::new(buffer)).collect();
        let all = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect::<Vec<_>>();
        let count = file.write_vectored_at(&mut queue, &slices, FilePos(pos), NONE).unwrap();
        assert_eq!(count, all.len(), "{name}");
        let bytes = content(&file, &mut queue);
        let pos = pos as usize;
        assert!(bytes[pos..pos + all.len()] == all, "{name}");
        assert!(bytes[pos + all.len()..].iter().all(|byte| *byte == 0x11), "{name}");
    }
    bench.close();
}

/// A write advances the file position once, by its count. Linux 6.1.64 advanced the position twice, and so corrupted data.
#[test]
fn a_write_gives_its_count_and_the_next_append_begins_after_it() {
    let bench = Bench::new(EXT4);
    let (file, mut queue) = (bench.open(bench.create("file"), false), bench.queue());
    for (step, flags) in [NONE, DioFlags::DSYNC, DioFlags::SYNC, NONE].into_iter().enumerate() {
        let at = file.append(&mut queue, &memory(1536, step as u8 + 1), flags).unwrap();
        assert_eq!((at.0, file.size()), (step as u64 * 1536, (step as u64 + 1) * 1536));
    }
    let expected = [[1; 1536], [2; 1536], [3; 1536], [4; 1536]].concat();
    assert!(content(&file, &mut queue) == expected);
    drop((file, queue));
    assert!(bench.close().dump("/file") == expected);
}

/// Blocks that were preallocated past the end remain allocated. A write into them extends the size.
#[test]
fn the_size_follows_writes_into_blocks_preallocated_past_the_end() {
    let bench = Bench::new(EXT4);
    let number = bench.create("file");
    let how = Fallocate::Allocate { keep_size: true };
    bench.fs().writable().unwrap().fallocate(number, how, FilePos(0), 8 * BLOCK).unwrap();
    let (file, mut queue) = (bench.open(number, false), bench.queue());
    file.write_at(&mut queue, &memory(BLOCK, 0x22), FilePos(BLOCK)).unwrap();
    assert_eq!(file.size(), 2 * BLOCK);
    drop((file, queue));
    let image = bench.close();
    let stat = image.ask_debugfs("stat /file\n");
    assert!(stat.contains("Blockcount: 64"), "all eight are there still: {stat}");
    assert!(image.dump("/file") == [[0; BLOCK as usize], [0x22; BLOCK as usize]].concat());
}

/// If the writer has `CAP_FSETID`, a write preserves set-id bits. It still removes capabilities.
#[test]
fn set_id_bits_stay_where_the_handle_keeps_them() {
    let bench = Bench::new(EXT4);
    let (number, mut queue) = (bench.written("file", 2).inode(), bench.queue());
    let fs = bench.fs();
    let set = SetAttributes::new().permissions(0o6755);
    fs.writable().unwrap().set_attributes(number, &set).unwrap();
    let (name, how) = (b"security.capability", SetXattr::Any);
    let value = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    fs.writable().unwrap().setxattr(number, name, &value, how).unwrap();
    let options = FileOptions::new().keep_set_id(KeepSetId::Yes);
    let file = bench.volume.open_inode(fs.inode(number).unwrap(), options.write(true)).unwrap();
    file.write_at(&mut queue, &[1; 512], FilePos(0)).unwrap();
    assert_eq!(fs.inode(number).unwrap().stat().mode & 0o7777, 0o6755);
    assert_eq!(fs.inode(number).unwrap().xattr(name).unwrap(), None);
    assert!(!fs.writable().unwrap().strip_privileges(number, KeepSetId::Yes).unwrap());
    assert!(fs.writable().unwrap().strip_privileges(number, KeepSetId::No).unwrap());
    assert_eq!(fs.inode(number).unwrap().stat().mode & 0o7777, 0o755);
    drop((file, queue));
    bench.close();
}

/// A program sets a modification time after a write. The later update of the size keeps this time.
#[test]
fn a_time_that_was_set_outlives_the_conversion() {
    let bench = Bench::new(EXT4);
    let (file, mut queue) = (bench.written("file", 1), bench.queue());
    file.write_at(&mut queue, &[1; 5000], FilePos(BLOCK)).unwrap();
    let past = Timestamp { seconds: 1_000_000_000, nanoseconds: 5 };
    let set = SetAttributes::new().modified(past);
    bench.fs().writable().unwrap().set_attributes(file.inode(), &set).unwrap();
    file.sync(&mut queue).unwrap();
    let stat = bench.fs().inspect(file.inode(), |inode| Ok(inode.stat().clone())).unwrap();
    assert_eq!((stat.modified, stat.size), (past, BLOCK + 5000));
    drop((file, queue));
    bench.close();
}

/// A file without a name can be inspected and opened again while a handle has the file open.
#[test]
fn an_open_file_without_a_name_can_be_opened_again() {
    let bench = Bench::new(EXT4);
    let file = bench.written("file", 1);
    let number = file.inode();
    let (fs, mut queue) = (bench.fs(), bench.queue());
    fs.writable().unwrap().unlink(ROOT, b"file").unwrap();
    assert_eq!(fs.inspect(number, |inode| Ok(inode.stat().links)).unwrap(), 0);
    let held = fs.hold(number).unwrap();
    let again =
        bench.volume.open_inode(held.inode().unwrap(), FileOptions::new().write(true)).unwrap();
    drop((file, held));
    again.write_at(&mut queue, &[7; 512], FilePos(0)).unwrap();
    let mut read = [0; 512];
    again.read_at(&mut queue, &mut read, FilePos(0)).unwrap();
    assert_eq!(read, [7; 512]);
    drop((again, queue));
    assert_eq!(fs.hold(number).err().map(|error| error.kind()), Some(ErrorKind::NotFound));
    assert!(fs.inspect(number, |_| Ok(())).is_err());
    bench.close();
}
