//! Tests `info`, `ls`, `stat`, `cat` and `map` on an image. Their output matches the source tree, and the output of debugfs and dumpe2fs.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

use crate::support::{Bench, pattern, raw_name, succeed, text, tool, xattr};
use serde_json::{Value, json};

/// Each line of a directory's listing is a name, unchanged. The names are sorted, and hidden names are listed only on request.
#[test]
fn ls_lists_what_the_source_holds() {
    let bench = Bench::new();
    let mut expected: Vec<Vec<u8>> = fs::read_dir(bench.source())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().as_bytes().to_vec())
        .chain([b"lost+found".to_vec()])
        .collect();
    expected.sort();
    let expected: Vec<u8> = expected.iter().flat_map(|name| [name, &b"\n"[..]].concat()).collect();
    assert_eq!(bench.succeed(["ls", &bench.target("/")]), expected);
    assert_eq!(text(&bench.succeed(["ls", &bench.target("/dir")])), "again\nempty\nlarge\nlink\n");
    let all = bench.succeed(["ls", "-a", &bench.target("/dir")]);
    assert_eq!(text(&all), ".\n..\n.hidden\nagain\nempty\nlarge\nlink\n");
}

/// `ls -l` has the same output as GNU ls, except for the sizes of directories.
#[test]
fn long_lists_equal_those_of_ls() {
    let bench = Bench::new();
    let theirs =
        succeed(tool("ls").args(["-lnA", "--time-style=long-iso"]).arg(bench.source().join("dir")));
    let ours = bench.succeed(["ls", "-lan", &bench.target("/dir")]);
    let lines = |output: &[u8]| -> BTreeSet<String> {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text(output).lines().filter(|line| line.starts_with(['-', 'l'])).map(words).collect()
    };
    assert_eq!(lines(&ours), lines(&theirs.stdout));
    let empty = text(&ours).lines().find(|line| line.ends_with(" empty")).unwrap().to_owned();
    assert!(empty.starts_with("dr-xr-xr-t 2 ") && empty.contains("2033-05-18 03:33"), "{empty}");
}

/// For a device node, `ls` shows its numbers. `-R` lists every directory below.
#[test]
fn ls_walks_and_shows_devices() {
    let bench = Bench::new();
    bench.debugfs("mknod node b 259 255");
    let list = text(&bench.succeed(["ls", "-lR", &bench.target("/")]));
    assert!(list.contains("259, 255"), "{list}");
    let headings: Vec<_> = list.lines().filter(|line| line.ends_with(':')).collect();
    let expected = ["/", "/dir", "/dir/empty", "/lost+found"];
    assert_eq!(headings, expected.map(|path| format!("{}:", bench.target(path))));
}

/// The JSON contains every attribute. Names that are not UTF-8 are represented without a loss.
#[test]
fn stat_and_ls_give_the_source_s_attributes_as_json() {
    let bench = Bench::new();
    for name in ["small", "dir/large", "dir/link", "dir/empty", "dangling", "sparse"] {
        let path = bench.source().join(name);
        let (host, ours) = (
            fs::symlink_metadata(&path).unwrap(),
            bench.json(&["stat", "--json", &bench.target(&format!("/{name}"))]),
        );
        assert_eq!(ours["mode"], host.mode(), "{name}");
        assert_eq!(ours["links"], host.nlink(), "{name}");
        assert_eq!((&ours["uid"], &ours["gid"]), (&host.uid().into(), &host.gid().into()));
        if !host.is_dir() {
            assert_eq!(ours["size"], host.size(), "{name}");
        }
        if host.is_symlink() {
            assert_eq!(ours["target"], fs::read_link(&path).unwrap().to_str().unwrap());
        } else {
            let modified: jiff::Timestamp = ours["modified"].as_str().unwrap().parse().unwrap();
            assert_eq!(modified.as_second(), host.mtime(), "{name}");
        }
    }
    let small = bench.json(&["stat", "--json", &bench.target("/small")]);
    if xattr(&bench.source().join("small"), "user.colour").is_some() {
        assert_eq!(small["xattrs"][0]["name"], "user.colour");
        assert_eq!(small["xattrs"][0]["value"], "gr%FCn");
        assert_eq!(small["xattrs"][0]["encoding"], "percent");
    }
    let list = bench.json(&["ls", "--json", &bench.target("/")]);
    let odd: Vec<_> =
        list.as_array().unwrap().iter().filter(|file| file["encoding"] != Value::Null).collect();
    assert_eq!(odd.len(), 1);
    assert_eq!(odd[0]["path"], "/not utf-8 %FF%25");
}

/// Times with nanoseconds, and times after 2038, are shown as debugfs has set them.
#[test]
fn stat_shows_times_in_full() {
    let bench = Bench::new();
    bench.debugfs("set_inode_field /small mtime_extra 493827157");
    let shown = text(&bench.succeed(["stat", &bench.target("/small")]));
    assert!(shown.contains("Modify: 2106-02-06 06:28:16.123456789 +0000"), "{shown}");
    assert!(shown.contains("Access: (0644/-rw-r--r--)"), "{shown}");
}

/// `cat` prints every byte of a file, and zeros for holes. It follows symbolic links. This applies to each format of the extent map.
#[test]
fn cat_gives_the_bytes_of_the_source() {
    for options in [
        &["-t", "ext4", "-b", "4096"][..],
        &["-t", "ext2", "-b", "1024"],
        &["-t", "ext4", "-b", "2048", "-O", "inline_data"],
    ] {
        let bench = Bench::with(options);
        for name in ["small", "nothing", "dir/large", "sparse", "dir/link"] {
            // With inline_data, mke2fs loses the hole at the end of a file.
            if name == "sparse" && options.contains(&"inline_data") {
                continue;
            }
            let ours = bench.succeed(["cat", &bench.target(&format!("/{name}"))]);
            let host = fs::read(bench.source().join(name)).unwrap();
            assert!(
                ours == host,
                "{name} with {options:?}: {} of {} bytes",
                ours.len(),
                host.len()
            );
        }
        let mut raw = std::ffi::OsString::from(bench.target("/"));
        raw.push(raw_name());
        assert_eq!(text(&bench.succeed([std::ffi::OsStr::new("cat"), &raw])), "raw");
    }
}

/// If a reader closes the pipe early, there is no error and no message.
#[test]
fn cat_and_ls_end_quietly_with_their_reader() {
    let bench = Bench::new();
    for args in [["cat", "/dir/large"], ["ls", "/"]] {
        let mut child = bench
            .command()
            .args([args[0], &bench.target(args[1])])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), text(&output.stderr)),
            (Some(0), String::new()),
            "{args:?}"
        );
    }
}

/// The extents contain the same blocks as the output of debugfs, in order, without holes.
#[test]
fn maps_name_the_blocks_that_debugfs_names() {
    for options in [&["-t", "ext4", "-b", "4096"][..], &["-t", "ext2", "-b", "1024"]] {
        let bench = Bench::with(options);
        for name in ["/dir/large", "/sparse", "/nothing"] {
            let map = bench.json(&["map", "--json", &bench.target(name)]);
            let block = map["block_size"].as_u64().unwrap();
            let ours: Vec<u64> = map["extents"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|extent| {
                    let start = extent["physical"].as_u64().unwrap() / block;
                    start..start + extent["length"].as_u64().unwrap() / block
                })
                .collect();
            // For an indirect map, debugfs also prints the blocks of the map itself.
            let theirs: Vec<u64> = bench
                .ask(&format!("blocks {name}"))
                .split_whitespace()
                .map(|number| number.parse().unwrap())
                .collect();
            if options.contains(&"ext4") {
                assert_eq!(ours, theirs, "{name}");
            } else {
                let theirs: BTreeSet<_> = theirs.into_iter().collect();
                assert!(ours.iter().all(|block| theirs.contains(block)), "{name}");
            }
        }
        let map = bench.json(&["map", "--json", &bench.target("/sparse")]);
        let logical = |index: usize| map["extents"][index]["logical"].as_u64().unwrap();
        assert_eq!((logical(0), logical(1)), (1 << 20, 5 << 20));
        let table = text(&bench.succeed(["map", &bench.target("/sparse")]));
        assert!(table.contains(" ext:     logical_offset:") && table.contains(" last"), "{table}");
    }
}

/// Features, sizes and UUID match the output of dumpe2fs.
#[test]
fn info_says_what_dumpe2fs_says() {
    let bench = Bench::with(&["-t", "ext4", "-L", "a label", "-O", "project,quota"]);
    let theirs = text(&succeed(tool("dumpe2fs").arg("-h").arg(bench.image())).stdout);
    let field = |name: &str| {
        let line = theirs.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} in {theirs}")).trim().to_owned()
    };
    let info = bench.json(&["info", "--json", bench.image().to_str().unwrap()]);
    let features: BTreeSet<_> =
        info["features"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let listed = field("Filesystem features:");
    assert_eq!(features, listed.split_whitespace().collect());
    assert_eq!(info["uuid"], field("Filesystem UUID:"));
    assert_eq!(info["label"], "a label");
    for (ours, name) in [
        ("blocks", "Block count:"),
        ("free_blocks", "Free blocks:"),
        ("reserved_blocks", "Reserved block count:"),
        ("inodes", "Inode count:"),
        ("free_inodes", "Free inodes:"),
        ("block_size", "Block size:"),
        ("inode_size", "Inode size:"),
    ] {
        assert_eq!(info[ours].to_string(), field(name), "{name}");
    }
    assert_eq!(info["format"], "ext4");
    assert_eq!(info["journal"]["state"], "clean");
    let shown = text(&bench.succeed(["info", bench.image().to_str().unwrap()]));
    assert!(shown.contains("Format:         ext4\n"), "{shown}");
}

/// Only the known fields of a recorded error are printed. The output does not say which program has recorded the error.
#[test]
fn recorded_errors_are_shown_as_far_as_they_are_known() {
    let bench = Bench::new();
    let told = || {
        let said = text(&bench.succeed(["info", "image"]));
        let line = said.lines().find_map(|line| line.strip_prefix("Errors:"));
        let json = bench.json(&["info", "--json", "image"])["errors"]["last"].clone();
        (line.unwrap().trim().to_owned(), json)
    };
    assert_eq!(told(), ("none recorded".to_owned(), Value::Null));
    bench.debugfs("ssv error_count 3");
    assert_eq!(told(), ("3 recorded".to_owned(), json!({})));
    bench.debugfs("ssv last_error_func writer");
    bench.debugfs("ssv last_error_block 77");
    let known = json!({ "function": "writer", "block": 77 });
    assert_eq!(told(), ("3 recorded, in writer, block 77".to_owned(), known));
    let said = text(&bench.succeed(["check", "image"]));
    assert!(said.contains("3 errors recorded in the superblock"), "{said}");
}

/// The reaction to errors is printed with the word that tune2fs uses. For an unknown value, the kernel's reaction is printed.
#[test]
fn the_policy_for_errors_is_shown() {
    let bench = Bench::new();
    for (raw, name) in [(1, "continue"), (2, "remount-ro"), (3, "panic"), (9, "remount-ro")] {
        bench.debugfs(&format!("ssv errors {raw}"));
        let said = text(&bench.succeed(["info", "image"]));
        let line = said.lines().find_map(|line| line.strip_prefix("On errors:"));
        assert_eq!(line.map(str::trim), Some(name), "{raw}");
        assert_eq!(bench.json(&["info", "--json", "image"])["errors"]["behavior"], name, "{raw}");
    }
}

/// A volume in a part of an image is named by an offset or by a partition. The name of the image may contain a colon.
#[test]
fn parts_of_an_image_are_volumes() {
    let bench = Bench::new();
    let disk = bench.path("disk:1@home");
    let file = fs::File::create(&disk).unwrap();
    file.set_len(80 << 20).unwrap();
    let mut sgdisk = tool("sgdisk");
    if sgdisk.args(["-n", "3:4096:+64M"]).arg(&disk).output().is_err() {
        eprintln!("skipped: sgdisk is not installed");
        return;
    }
    let volume = fs::read(bench.image()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &volume, 2 << 20).unwrap();
    for part in ["p3", "2M", "0x200000", "2097152"] {
        let target = format!("{}@{part}:/dir/large", disk.display());
        assert!(bench.succeed(["cat", &target]) == pattern(3 << 20 | 77, 1), "{part}");
    }
    let refused = bench.run(["ls", &format!("{}:/", disk.display())]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(text(&refused.stderr).contains("@p3"), "{}", text(&refused.stderr));
}

/// Manual pages and completions exist for every command. The pages have the sections of man-pages(7) in their order.
#[test]
fn manual_pages_and_completions_are_generated() {
    let bench = Bench::empty();
    bench.succeed(["man", "."]);
    for page in ["ironmap", "ironmap-ls", "ironmap-cp", "ironmap-find", "ironmap-integrity-scrub"] {
        let page = fs::read_to_string(bench.path(&format!("{page}.1"))).unwrap();
        let wanted = [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "OPTIONS",
            "EXAMPLES",
            "EXIT STATUS",
            "FILES",
            "SEE ALSO",
        ];
        let headings = page.lines().filter_map(|line| line.strip_prefix(".SH "));
        let headings: Vec<_> = headings.map(|heading| heading.trim_matches('"')).collect();
        let found: Vec<_> = headings.iter().filter(|heading| wanted.contains(heading)).collect();
        // The page of the program itself has no examples.
        let program = page.contains("SUBCOMMANDS");
        let wanted = wanted.iter().filter(|heading| !program || **heading != "EXAMPLES");
        assert_eq!(found, wanted.collect::<Vec<_>>(), "{page}");
    }
    let page = fs::read_to_string(bench.path("ironmap-cp.1")).unwrap();
    assert!(page.contains("ironmap cp [OPTIONS] <VOLUME:/PATH|PATH>... <DEST>"), "{page}");
    assert!(page.contains("ironmap cp \\-r /dev/sdb1:/home/ann /srv/rescue"), "{page}");
    let features = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/FEATURES.md");
    let features = fs::read_to_string(features).unwrap();
    let pages = fs::read_dir(bench.dir.path()).unwrap().map(|page| page.unwrap().file_name());
    for page in pages.map(|page| page.into_string().unwrap()) {
        let command = page.trim_start_matches("ironmap-").trim_end_matches(".1").replace('-', " ");
        let below = command.split_once(' ').map_or(&*command, |(_, below)| below);
        let named = [format!("`{command}"), format!("`{below}`")];
        assert!(named.iter().any(|name| features.contains(name)), "{page}");
        assert!(page != "ironmap-complete.1", "it is hidden");
    }
    let page = fs::read_to_string(bench.path("ironmap-mount.1")).unwrap();
    for file in ["/etc/fstab", "/dev/fuse", "/sbin/mount.fuse.ironmap", "/sbin/mount.ironmap"] {
        let files = page.split("\n.SH \"FILES\"").nth(1).unwrap();
        assert!(files.split("\n.SH ").next().unwrap().contains(file), "{file}: {page}");
    }
    // man must not print a warning.
    if let Ok(said) = tool("man")
        .args(["--warnings", "-l", "-E", "UTF-8", "./ironmap-cp.1"])
        .current_dir(bench.dir.path())
        .output()
    {
        assert_eq!(text(&said.stderr), "");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(text(&bench.succeed(["completions", shell])).contains("ironmap"), "{shell}");
    }
}

/// On request, an unreadable journal is ignored. The request is a prefix of the location, or an option. A warning reports that the changes
/// in the journal are missing.
#[test]
fn a_volume_is_read_without_its_journal_where_asked_for() {
    let bench = Bench::new();
    bench.debugfs("feature needs_recovery");
    let before = text(&bench.succeed(["ls", &bench.target("/dir")]));
    let block: u64 = bench.ask("bmap <8> 0").trim().parse().unwrap();
    let stats = text(&succeed(tool("dumpe2fs").arg("-h").arg(bench.image())).stdout);
    let size = stats.lines().find_map(|line| line.strip_prefix("Block size:")).unwrap();
    let size: u64 = size.trim().parse().unwrap();
    let image = fs::File::options().write(true).open(bench.image()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, &[0; 64], block * size).unwrap();
    let target = bench.target("/dir");
    assert_eq!(bench.run(["ls", &target]).status.code(), Some(4));
    let without = format!("noload:{target}");
    let ways: [&[&str]; 3] =
        [&["ls", &without], &["--noload", "ls", &target], &["ls", "--noload", &target]];
    for way in ways {
        let said = bench.run(way);
        assert!(said.status.success(), "{way:?}: {}", text(&said.stderr));
        assert_eq!(text(&said.stdout), before, "{way:?}");
        let errors = text(&said.stderr);
        assert!(
            errors.starts_with("ironmap: warning: ")
                && errors.contains("the journal needs recovery"),
            "{errors}"
        );
    }
    let refused = bench.run(["mkdir", &format!("{without}/new")]);
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
}
