//! `ironmap bench`: the simple path stays within its limits, and no device or file remains.

use crate::require;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::skip::Need;
use crate::results::{RELEASE, bench, bench_of};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// On the simple path, a request needs at most 120 instructions more than its bare submission to the engine. The `null` engine has no costs
/// for I/O.
#[test]
fn the_simple_path_costs_at_most_120_instructions() {
    require!([Need::Tool("valgrind"), Need::Tool("mke2fs"), Need::Variable(RELEASE)]);
    for depth in ["1", "32"] {
        let rows = bench(&[
            "--fixture",
            "shm",
            "--engine",
            "null",
            "--instructions",
            "--simple",
            "both",
            "--iodepth",
            depth,
        ]);
        let [raw, generic, simple] = &rows[..] else { panic!("{rows:?}") };
        let count = |row: &Value| row["instructions_per_io"].as_f64().unwrap();
        let above = count(simple) - count(raw);
        assert!(above <= 120.0, "{above} instructions at depth {depth}");
        assert!(count(simple) < count(generic), "depth {depth}: {rows:?}");
    }
}

/// Overwrites that are queued on io_uring have the same limit of instructions. The io_uring engine needs NOWAIT, which a file in memory
/// does not support. Therefore the fixture is a loop device.
#[test]
fn an_overwrite_queued_on_io_uring_costs_at_most_120_instructions() {
    let needs = [Need::Root, Need::Tool("valgrind"), Need::Tool("mke2fs"), Need::Variable(RELEASE)];
    require!(needs);
    let above = overwrite_above_raw("loop", "io_uring", "128");
    assert!(above <= 120.0, "{above} instructions");
}

/// With an engine that completes requests at once, an overwrite stays within its limit of instructions. With one request at a time, each
/// request also reads the clock for the timestamp (55 instructions).
#[test]
fn an_overwrite_that_completes_at_once_costs_at_most_so_many_instructions() {
    require!([Need::Tool("valgrind"), Need::Tool("mke2fs"), Need::Variable(RELEASE)]);
    for (engine, depth, most) in [("null", "128", 160.0), ("psync", "1", 155.0)] {
        let above = overwrite_above_raw("shm", engine, depth);
        assert!(above <= most, "{above} instructions with {engine} at depth {depth}");
    }
}

/// Reads and overwrites of a file cost the same on XFS as on ext4, because the same extent map serves both formats. The engine completes
/// each request immediately. On io_uring, the costs depend on the number of completions that arrive together.
#[test]
fn a_request_on_xfs_costs_at_most_5_instructions_above_ext4() {
    let tools = ["valgrind", "mke2fs", "mkfs.xfs"].map(Need::Tool);
    require!([Need::Root, Need::Variable(RELEASE)], tools);
    for (work, engine, depth) in [
        ("randread", "null", "1"),
        ("randread", "null", "32"),
        ("randwrite", "null", "1"),
        ("randwrite", "null", "128"),
    ] {
        let count = |fs: &str| {
            let args = ["--fixture", "loop", "--size", "64m", "--fs", fs, "--rw", work];
            let chosen = ["--engine", engine, "--iodepth", depth, "--instructions"];
            let rows = bench(&[&args[..], &chosen, &["--only", "vol"]].concat());
            assert_eq!(rows[0]["engine"].as_str(), Some(engine), "{rows:?}");
            rows[0]["instructions_per_io"].as_f64().unwrap()
        };
        // On a busy machine, fewer requests share a read of the clock. The costs then differ, and the measurement is repeated.
        let mut runs = Vec::new();
        let is_near = (0..4).any(|_| {
            let (ext4, xfs) = (count("ext4"), count("xfs"));
            runs.push((xfs, ext4));
            xfs <= ext4 + 5.0
        });
        let what = format!("{work} with {engine} at depth {depth}: XFS, ext4");
        assert!(is_near, "{what}: {runs:?}");
        println!("{what}: {runs:?}");
    }
}

/// The instructions of an overwrite, minus the instructions of the bare submission by the same engine.
fn overwrite_above_raw(fixture: &str, engine: &str, depth: &str) -> f64 {
    let args = ["--fixture", fixture, "--engine", engine, "--iodepth", depth];
    above_raw("vol:", &[&args[..], &["--rw", "randwrite", "--size", "64m"]].concat())
}

/// The instructions of a request to a target, minus the instructions of the bare submission. Asserts that the requested engine serves both
/// requests.
fn above_raw(target: &str, args: &[&str]) -> f64 {
    let only = format!("raw,{}", target.trim_end_matches(':'));
    let rows = bench(&[args, &["--instructions", "--only", &only]].concat());
    let asked = args.iter().skip_while(|arg| **arg != "--engine").nth(1);
    let count = |target: &str| {
        let row = rows.iter().find(|row| row["target"].as_str().unwrap().starts_with(target));
        let row = row.unwrap();
        assert_eq!(row["engine"].as_str(), asked.copied(), "{row}");
        row["instructions_per_io"].as_f64().unwrap()
    };
    count(target) - count("raw:")
}

/// Compares two kinds of reads and writes: with a method that keeps the memory of a request unchanged, and with zero copy. A method that
/// copies costs little more than the copy itself. For the copy, valgrind counts one instruction per byte. A method that does not copy costs
/// almost nothing.
#[test]
fn a_copied_request_costs_at_most_so_many_instructions_above_its_copy() {
    require!([Need::Tool("valgrind"), Need::Tool("mke2fs"), Need::Variable(RELEASE)]);
    const COPY: f64 = 4096.0;
    const STAMP: f64 = 55.0;
    for (work, depth, most) in [
        // The code calls one function before and one function after the system call, instead of one function around the system call. The
        // two calls cost 50 instructions, but save about 400 ns, because a return after a system call is slow.
        ("randread", "1", 245.0),
        ("randread", "32", 470.0),
        // Under valgrind, requests are slow. So an update of the timestamp may be counted for one method and not for the other.
        ("randwrite", "1", 25.0 + STAMP),
        ("randwrite", "32", 500.0),
    ] {
        let args = "--fixture shm --integrity all --size 64m --engine null --instructions";
        let args: Vec<&str> = args.split(' ').collect();
        let chosen = ["--rw", work, "--iodepth", depth, "--only", "vol"];
        let rows = bench(&[&args[..], &chosen].concat());
        let [zero_copy, bounce, lazy, owned] = &rows[..] else { panic!("{rows:?}") };
        let count = |row: &Value| row["instructions_per_io"].as_f64().unwrap();
        let above = |row: &Value| count(row) - count(zero_copy);
        let copied = |row: &Value| above(row) <= COPY + most;
        let direct = |row: &Value| above(row) <= 10.0;
        assert!(copied(bounce), "{work} at depth {depth}: {}", above(bounce));
        let lazily = if work == "randread" { direct(lazy) } else { copied(lazy) };
        assert!(lazily, "{work} at depth {depth}: {}", above(lazy));
        // The method `owned` needs no copy. The bench uses buffers of the library, and no other code can change them.
        assert!(direct(owned), "{work} at depth {depth}: {}", above(owned));
    }
}

/// Overwrites of complete blocks and of half blocks (2K) all take the simple path. They start no handle of the journal, and lock no range
/// exclusively. The bench runs on a file, and on a device in memory without sectors.
#[test]
fn overwrites_start_no_handle_and_take_no_exclusive_lock() {
    require!([Need::Tool("mke2fs")]);
    for (engine, block, work) in [
        ("psync", "4k", "randwrite"),
        ("psync", "4k", "randrw"),
        ("dax", "4k", "randwrite"),
        ("dax", "2k", "randwrite"),
        ("dax", "2k", "write"),
    ] {
        let args = "--fixture shm --size 16m --numjobs 4 --runtime 0.05 --rounds 1";
        let args: Vec<&str> = args.split(' ').collect();
        let chosen = ["--engine", engine, "--bs", block, "--rw", work];
        let program = env!("CARGO_BIN_EXE_ironmap");
        let rows = bench_of(program.as_ref(), &[&args[..], &chosen].concat());
        let vol = rows.iter().find(|row| row["target"].as_str().unwrap().starts_with("vol:"));
        let counters = &vol.unwrap()["counters"];
        let count = |name: &str| counters[name].as_u64();
        assert!(count("overwrites") > Some(0), "{chosen:?}: {counters}");
        // The first write of each thread looks up the file. It does not take the simple path.
        assert!(count("writes") <= Some(4), "{chosen:?}: {counters}");
        let none = ["handles", "exclusive", "conversions", "zeroed"].map(count);
        assert_eq!(none, [Some(0); 4], "{chosen:?}: {counters}");
    }
}

/// Unwritten extents that were written are converted in batches. Therefore the journal has far fewer handles than there are writes.
#[test]
fn unwritten_blocks_are_converted_in_batches() {
    require!([Need::Tool("mke2fs")]);
    let args = "--fixture shm --rw write --fallocate --size 16m --rounds 1";
    let args: Vec<&str> = args.split(' ').collect();
    let rows = bench_of(env!("CARGO_BIN_EXE_ironmap").as_ref(), &args);
    let counters = &rows[1]["counters"];
    let count = |name: &str| counters[name].as_u64().unwrap_or(0);
    assert!(count("overwrites") + count("writes") >= 4000, "{counters}");
    assert!((1..200).contains(&count("handles")), "{counters}");
    assert!(count("conversions") > 0, "{counters}");
}

/// With `--fsync N`, the file is synced after each N writes of a job, and at no other time.
#[test]
fn the_file_is_synced_after_each_so_many_writes() {
    require!([Need::Tool("mke2fs")]);
    let args = "--fixture shm --rw write --fallocate --size 16m --rounds 1 --runtime 0.1 --fsync";
    let handles_per_sync = |every: u64| {
        let args: Vec<String> =
            args.split(' ').map(str::to_owned).chain([every.to_string()]).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let rows = bench_of(env!("CARGO_BIN_EXE_ironmap").as_ref(), &args);
        let counters = &rows[1]["counters"];
        let count = |name: &str| counters[name].as_u64().unwrap_or(0);
        // The counters also include the writes that fill the file before the measurement.
        let writes = count("overwrites") + count("writes");
        assert!(writes >= 4096, "{counters}");
        count("handles") as f64 / (writes / every) as f64
    };
    for every in [8, 64] {
        let handles = handles_per_sync(every);
        assert!(
            (0.9..4.0).contains(&handles),
            "{handles} handles for each sync, of {every} writes"
        );
    }
}

/// Each read of a host file checks that the lease of the file is still valid. This check has a limit of instructions. A queued read costs
/// more, because the request in flight must be recorded.
#[test]
fn a_host_file_costs_at_most_160_instructions_and_300_queued() {
    let needs = [Need::Root, Need::Tool("valgrind"), Need::Tool("mke2fs"), Need::Variable(RELEASE)];
    require!(needs);
    for (engine, depth, limit) in
        [("null", "1", 160.0), ("io_uring", "32", 300.0), ("null", "32", 320.0)]
    {
        let above =
            above_raw("host:", &["--fixture", "loop", "--engine", engine, "--iodepth", depth]);
        assert!(above <= limit, "{above} instructions with {engine} at depth {depth}");
    }
}

/// A running bench, which is killed if the test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(args: &[&str]) -> Running {
    // In a shell's background, the tests ignore some signals. The bench must receive these signals.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_ironmap")]);
    command.arg("bench").args(args).stdout(Stdio::null()).stderr(Stdio::null());
    Running(command.spawn().unwrap())
}

/// The remains of a bench with this process ID: directories, mounts, loop devices, and mark files of zram devices.
fn left_by(pid: u32) -> Vec<String> {
    let name = format!("ironmap-bench-{pid}");
    let mut left = Vec::new();
    for parent in [Path::new("/dev/shm"), &std::env::temp_dir()] {
        left.extend(parent.join(&name).exists().then(|| name.clone()));
    }
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    left.extend(mounts.lines().filter(|line| line.contains(&name)).map(str::to_owned));
    let loops = crate::common::command::output("losetup", &["--list", "--noheadings"]).stdout;
    let loops = String::from_utf8_lossy(&loops).into_owned();
    left.extend(loops.lines().filter(|line| line.contains(&name)).map(str::to_owned));
    for mark in std::fs::read_dir("/run/ironmap-bench-zram").into_iter().flatten().flatten() {
        let owner = std::fs::read_to_string(mark.path()).unwrap_or_default();
        left.extend((owner == pid.to_string()).then(|| mark.path().display().to_string()));
    }
    left
}

/// Whether a child of this process runs a launch. A launch measures the targets in a separate process.
fn measures(pid: u32) -> bool {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children.unwrap_or_default().split_whitespace().any(|child| {
        let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == b"--launch")
    })
}

fn interrupt(fixture: &str, when: impl Fn(u32) -> bool) {
    let mut bench = start(&["--fixture", fixture, "--rounds", "1000", "--runtime", "0.05"]);
    let pid = bench.0.id();
    let deadline = Instant::now() + Duration::from_secs(120);
    while !when(pid) {
        assert!(Instant::now() < deadline, "{fixture}: the bench does not get there");
        assert!(bench.0.try_wait().unwrap().is_none(), "{fixture}: the bench has ended");
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&bench.0), Signal::INT).unwrap();
    assert_eq!(bench.0.wait().unwrap().code(), Some(130), "{fixture}");
    assert_eq!(left_by(pid), Vec::<String>::new(), "{fixture}");
}

#[test]
fn an_interrupted_bench_leaves_no_files() {
    require!([Need::Tool("mke2fs")]);
    for fixture in ["shm", "disk"] {
        interrupt(fixture, |pid| !left_by(pid).is_empty());
    }
    interrupt("shm", measures);
}

#[test]
fn an_interrupted_bench_leaves_no_device_and_no_mount() {
    require!([Need::Root, Need::Tool("mke2fs"), Need::Tool("addpart")]);
    for fixture in ["zram", "loop", "partition"] {
        interrupt(fixture, |pid| !left_by(pid).is_empty());
        interrupt(fixture, measures);
    }
}

/// If a launch fails, the bench reports the reason, ends, and removes the fixture.
#[test]
fn a_bench_that_fails_leaves_nothing() {
    require!([Need::Tool("mke2fs")]);
    let mut bench = start(&["--fixture", "shm", "--bs", "1g"]);
    let pid = bench.0.id();
    assert!(!bench.0.wait().unwrap().success());
    assert_eq!(left_by(pid), Vec::<String>::new());
}

/// Arguments that cannot be measured are refused before any work. A message of a launch is printed only once.
#[test]
fn wrong_arguments_are_named() {
    for (args, code, said) in [
        (&["null:1m", "--engine", "tape"][..], 2, "tape is not an engine"),
        (&["raw:/dev/null", "--rw", "randwrite"], 2, "confirm this with --destroy"),
        (&["raw:missing"], 1, "bench: missing: No such file or directory"),
        (
            &["host:/etc/passwd", "--rw", "write", "--destroy"],
            1,
            "host files can be read but not written",
        ),
        (&["--fixture", "shm", "--fs", "xfs"], 1, "XFS must be mounted"),
        (&["floppy:a"], 2, "a target is raw:, kernel:, vol:, host: or null:"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_ironmap")).arg("bench").args(args).output();
        let output = output.unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(said) && error.lines().count() == 1, "{args:?}: {error}");
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
    }
}
