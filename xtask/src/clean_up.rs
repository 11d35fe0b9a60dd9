//! Removes the files, mounts and devices of tests and benches that were killed. The files, mounts and devices of running processes are
//! kept.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::Result;

/// Programs that tests start. They may continue to run after a test is killed.
const SERVERS: [&str; 5] = ["nbdkit", "qemu-nbd", "nbd-server", "ceph-mon", "ceph-osd"];

/// The directory with the mark files of tests and benches. There is one file for each zram device. It contains the ID of the process that
/// made the device.
const ZRAM: &str = "/run/ironmap-bench-zram";

pub(crate) fn run() -> Result {
    if output("id", &["-u"])?.trim() != "0" {
        return Err("clean-up removes mounts and devices: run it as root".into());
    }
    end_servers()?;
    // The mounts are removed in reverse order, because later mounts can be inside earlier ones.
    for mount in fs::read_to_string("/proc/mounts")?.lines().rev() {
        let path = mount.split(' ').nth(1).unwrap_or_default();
        if is_abandoned(path) {
            println!("unmounting {path}");
            // If a frozen file system is unmounted, it stays frozen. So it is thawed first.
            let _ = output("fsfreeze", &["--unfreeze", path]);
            output("umount", &[path]).or_else(|_| output("umount", &["--lazy", path]))?;
        }
    }
    let loops = output("losetup", &["--list", "--noheadings", "--output", "NAME,BACK-FILE"])?;
    for (device, file) in loops.lines().filter_map(|line| line.split_once(' ')) {
        if is_abandoned(file) || is_abandoned_zram(file) {
            println!("detaching {device}");
            output("losetup", &["--detach", device])?;
        }
    }
    for mark in fs::read_dir(ZRAM).into_iter().flatten().flatten() {
        let maker = fs::read_to_string(mark.path())?;
        let device = mark.file_name().to_string_lossy().into_owned();
        if let Some(number) = device.strip_prefix("zram").filter(|_| !runs(maker.trim())) {
            println!("removing {device}");
            fs::write(format!("/sys/block/{device}/reset"), "1")?;
            fs::write("/sys/class/zram-control/hot_remove", number)?;
            fs::remove_file(mark.path())?;
        }
    }
    for dir in [std::env::temp_dir(), "/dev/shm".into()] {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = path.to_string_lossy();
            if is_abandoned(&name) {
                put_back(&path.join("setting"))?;
                println!("removing {name}");
                output("rm", &["-rf", &name])?;
            }
        }
    }
    Ok(())
}

/// The standard output of a command.
fn output(program: &str, args: &[&str]) -> Result<String> {
    let Output { status, stdout, stderr } = Command::new(program).args(args).output()?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&stderr);
    Err(format!("{program} {}: {status}: {}", args.join(" "), said.trim()).into())
}

/// Ends the servers of killed tests. The arguments or the environment of such a server contain the directory of its test.
fn end_servers() -> Result {
    for process in fs::read_dir("/proc")?.flatten() {
        let read = |name: &str| fs::read(process.path().join(name)).unwrap_or_default();
        let name = String::from_utf8_lossy(&read("comm")).trim().to_owned();
        if !SERVERS.contains(&name.as_str()) {
            continue;
        }
        let words = [read("cmdline"), read("environ")].concat();
        if words.split(|byte| *byte == 0).any(|word| is_abandoned(&String::from_utf8_lossy(word))) {
            let process = process.file_name().to_string_lossy().into_owned();
            println!("ending {name} {process}");
            let _ = output("kill", &["-9", &process]);
        }
    }
    Ok(())
}

/// Restores a system setting that a test had changed. The file contains the previous value.
fn put_back(setting: &Path) -> Result {
    let text = fs::read_to_string(setting).unwrap_or_default();
    if let Some((file, value)) = text.trim_end().split_once(' ') {
        println!("setting {file} to {value}");
        fs::write(file, value)?;
    }
    Ok(())
}

/// Whether a path belongs to a process that has ended. Tests and benches name their files ironmap-test-PID-* and ironmap-bench-PID.
fn is_abandoned(path: &str) -> bool {
    maker(path).is_some_and(|process| !runs(process))
}

/// Whether a zram device belongs to a process that has ended. The mark file of the device contains the number of the process.
fn is_abandoned_zram(device: &str) -> bool {
    let mark = device.strip_prefix("/dev/zram").map(|number| format!("{ZRAM}/zram{number}"));
    let maker = mark.and_then(|mark| fs::read_to_string(mark).ok());
    maker.is_some_and(|maker| !runs(maker.trim()))
}

/// The process number that the name of a path contains.
fn maker(path: &str) -> Option<&str> {
    let mut names = path.split('/').skip(1);
    names.find_map(|name| {
        let name = name.strip_prefix("ironmap-")?;
        let rest = name.strip_prefix("test-").or_else(|| name.strip_prefix("bench-"))?;
        let number = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        (!number.is_empty()).then_some(number)
    })
}

/// Whether a process runs. A zombie does not run: it still has a directory in /proc, but no program.
fn runs(process: &str) -> bool {
    fs::read_link(format!("/proc/{process}/exe")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_whose_a_path_is() {
        assert_eq!(maker("/tmp/ironmap-test-17-abc/mounted"), Some("17"));
        assert_eq!(maker("/dev/shm/ironmap-bench-18"), Some("18"));
        for path in ["/tmp/ironmap-test-x", "/tmp/ironmap-bench-zram", "ironmap-test-17", "/tmp"] {
            assert_eq!(maker(path), None, "{path}");
        }
    }

    #[test]
    fn a_running_process_keeps_its_files() {
        assert!(!is_abandoned(&format!("/tmp/ironmap-test-{}-a", std::process::id())));
        assert!(is_abandoned("/tmp/ironmap-test-4294967295-a"));
    }
}
