//! Commands on exports of NBD servers.

use std::fs;

use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, pattern, succeed, tool};

/// A server that answers late is asked for the next bytes meanwhile, and the bytes come in their order.
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
        let log = fs::read_to_string(bench.path("requests")).unwrap();
        fs::remove_file(bench.path("requests")).unwrap();
        let (mut now, mut most) = (0, 0);
        for line in log.lines() {
            now += i32::from(line.contains(" Read id=")) - i32::from(line.contains("...Read id="));
            most = most.max(now);
        }
        assert!(most >= 3, "{command}: {most} reads in flight\n{log}");
    }
}
