//! Commands on exports of NBD servers.

use std::fs;

use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, pattern, succeed, text, tool};

/// Several reads of a file on a slow server are in flight at a time. The output has the right order.
#[test]
fn large_files_of_servers_are_read_ahead() {
    require!([Need::Tool("nbdkit")]);
    let bench = Bench::with(&["-t", "ext4", "-b", "4096"]);
    let large = pattern(3 << 20 | 77, 1);
    for command in [
        "cat \"$uri:/dir/large\" > copied",
        "cp \"$uri:/dir/large\" copied",
        "tar \"$uri:/dir/large\" | tar -xO > copied",
    ] {
        let mut nbdkit = tool("nbdkit");
        nbdkit.args(["-U", "-", "--filter=log", "--filter=delay", "file", "image"]);
        nbdkit.args(["rdelay=20ms", "logfile=requests", "--run"]);
        nbdkit.arg(format!("\"$IRONMAP\" {command}")).current_dir(bench.path(""));
        nbdkit.env("IRONMAP", bench.command().get_program());
        succeed(&mut nbdkit);
        assert!(fs::read(bench.path("copied")).unwrap() == large, "{command}");
        fs::remove_file(bench.path("copied")).unwrap();
        let most = most_in_flight(&bench);
        assert!(most >= 3, "{command}: {most} reads in flight");
    }
}

/// The maximum number of reads in flight, from the log of the server.
fn most_in_flight(bench: &Bench) -> i32 {
    let log = fs::read_to_string(bench.path("requests")).unwrap();
    fs::remove_file(bench.path("requests")).unwrap();
    let (mut now, mut most) = (0, 0);
    for line in log.lines() {
        now += i32::from(line.contains(" Read id=")) - i32::from(line.contains("...Read id="));
        most = most.max(now);
    }
    most
}

/// Several small files of a tree are read at the same time. The tree also contains hard links, symbolic links, directories, and sparse,
/// large and empty files. The copy has no difference.
#[test]
fn small_files_of_servers_are_read_together() {
    require!([Need::Tool("nbdkit")]);
    let bench = Bench::with(&["-t", "ext4", "-b", "4096", "-O", "inline_data"]);
    let tree = bench.path("tree");
    for dir in ["", "a", "a/middle", "k", "k/of/depth"] {
        let dir = tree.join(dir);
        fs::create_dir_all(&dir).unwrap();
        for number in 0..70_usize {
            let size = [0, 1, 60, 511, 4096, 5000, 20_000, 128 << 10, 129 << 10][number % 9];
            fs::write(dir.join(format!("f{number}")), pattern(size, number as u64)).unwrap();
        }
        for number in 0..40 {
            fs::hard_link(dir.join(format!("f{number}")), dir.join(format!("g{number}"))).unwrap();
        }
        std::os::unix::fs::symlink("f1", dir.join("l")).unwrap();
        let sparse = fs::File::create(dir.join("sparse")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", 70_000).unwrap();
    }
    bench.succeed(["cp", "-a", "tree", "image:/tree"]);
    for command in [
        "\"$IRONMAP\" cp -a \"$uri:/tree\" copied",
        "mkdir copied && \"$IRONMAP\" tar \"$uri:/tree\" | tar -x -C copied",
    ] {
        let mut nbdkit = tool("nbdkit");
        nbdkit.args(["-U", "-", "--filter=log", "--filter=delay", "file", "image"]);
        nbdkit.args(["rdelay=20ms", "logfile=requests", "--run"]);
        nbdkit.arg(command).current_dir(bench.path(""));
        nbdkit.env("IRONMAP", bench.command().get_program());
        succeed(&mut nbdkit);
        succeed(tool("diff").args(["-r", "--no-dereference"]).arg(&tree).arg(bench.path("copied")));
        fs::remove_dir_all(bench.path("copied")).unwrap();
        let most = most_in_flight(&bench);
        assert!(most >= 8, "{command}: {most} reads in flight");
    }
}

/// On a read-only device, `info` reports that the volume is not writable, although its format is writable.
#[test]
fn an_export_that_is_read_only_is_shown_so() {
    require!([Need::Tool("nbdkit"), Need::Tool("qemu-img")]);
    let bench = Bench::new();
    for (option, writable) in [("-r", false), ("-v", true)] {
        let mut nbdkit = tool("nbdkit");
        nbdkit.args(["-U", "-", option, "file", "image", "--run"]);
        nbdkit.arg("\"$IRONMAP\" info --json \"$uri\"").current_dir(bench.path(""));
        nbdkit.env("IRONMAP", bench.command().get_program());
        let info: serde_json::Value = serde_json::from_slice(&succeed(&mut nbdkit).stdout).unwrap();
        assert_eq!(info["writable"], writable, "{info}");
    }
    succeed(
        tool("qemu-img")
            .args(["convert", "-O", "vmdk", "image", "disk"])
            .current_dir(bench.path("")),
    );
    assert_eq!(bench.json(&["info", "--json", "vmdk:disk"])["writable"], false);
}

/// An error message names the export only once.
#[test]
fn an_error_names_its_export_once() {
    require!([Need::Tool("nbdkit")]);
    let bench = Bench::new();
    for place in [":/", "@p1:/"] {
        let mut nbdkit = tool("nbdkit");
        nbdkit.args(["-U", "-", "--filter=error", "memory", "64M", "error-pread-rate=100%"]);
        nbdkit.arg("--run").arg(format!("! \"$IRONMAP\" ls \"$uri{place}\" 2>&1 >/dev/null"));
        nbdkit.env("IRONMAP", bench.command().get_program());
        let output = nbdkit.output().unwrap();
        let message = text(&output.stdout);
        assert!(output.status.success(), "{message}");
        assert_eq!(message.matches("nbd+unix:").count(), 1, "{message}");
        assert!(message.contains("read of"), "{message}");
    }
}
