//! Commands that only read print the same output as the Linux programs with the same names. The Linux programs read the kernel's mount of
//! the same volume.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use crate::changing::fill;
use crate::common::image::{Image, LoopMount};
use crate::common::loop_device::LoopDevice;
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, pattern, succeed, text, tool};

/// A volume with one file of each kind, and its read-only mount.
pub(crate) struct Twin {
    pub(crate) bench: Bench,
    mount: LoopMount,
    /// The mounted image. The program reads a copy of this image, because it refuses a mounted image.
    _image: Image,
}

impl Twin {
    pub(crate) fn new() -> Self {
        Self::with(|_| {}, &[])
    }

    /// Makes a `Twin`. `more` adds files to its source tree. After the image was made from this tree, debugfs runs the `requests` on the
    /// image.
    pub(crate) fn with(more: impl FnOnce(&Path), requests: &[&str]) -> Self {
        let bench = Bench::empty();
        fill(&bench.source(), true);
        more(&bench.source());
        let image = Image::populated("64M", &["-t", "ext4", "-b", "1024"], &bench.source());
        for request in requests {
            succeed(tool("debugfs").args(["-w", "-R", request]).arg(image.path()));
        }
        fs::copy(image.path(), bench.image()).unwrap();
        let mount = image.mount("ro");
        Self { bench, mount, _image: image }
    }

    /// The name of the volume.
    pub(crate) fn volume(&self) -> String {
        self.bench.image().display().to_string()
    }

    /// The root of the mounted volume.
    pub(crate) fn mounted(&self) -> &Path {
        self.mount.dir()
    }

    /// A command that runs the program in the directory of the test's files.
    pub(crate) fn command(&self) -> Command {
        self.bench.command()
    }

    fn words(command: &str, at: &str) -> Vec<String> {
        command.split_whitespace().map(|word| word.replace('@', at)).collect()
    }

    /// Runs the program. `@` is replaced by the root of the volume.
    pub(crate) fn run(&self, command: &str) -> Output {
        self.bench.run(Self::words(command, &format!("{}:", self.volume())))
    }

    /// The output of ironmap, without the name of the volume.
    pub(crate) fn ours(&self, command: &str) -> String {
        let output = self.run(command);
        assert_eq!(text(&output.stderr), "", "{command}");
        assert!(output.status.success(), "{command}");
        text(&output.stdout).replace(&format!("{}:", self.volume()), "")
    }

    /// The output of the Linux program with the same name. The path of the mount is removed.
    pub(crate) fn theirs(&self, command: &str) -> String {
        let at = self.mount.dir().display().to_string();
        let words = Self::words(command, &at);
        let output = tool(&words[0]).args(&words[1..]).output().unwrap();
        assert!(output.status.success(), "{command}: {}", text(&output.stderr));
        text(&output.stdout).replace(&at, "")
    }

    /// Asserts that both programs print the same lines.
    pub(crate) fn same(&self, command: &str) {
        assert_eq!(self.ours(command), self.theirs(command), "{command}");
    }
}

/// Several files in one call are read in order, by names and by inode numbers. A missing file is reported, and the next file is still read.
#[test]
fn reads_take_many_files_of_many_volumes() {
    let bench = Bench::new();
    fs::copy(bench.image(), bench.path("other")).unwrap();
    let at = |path: &str| bench.target(path);
    let both = bench.succeed(["cat", &at("/small"), &at("/dir/large"), "other:/small"]);
    assert!(both == [b"small\n", &pattern(3 << 20 | 77, 1)[..], b"small\n"].concat());
    let said = bench.run(["cat", &at("/nope"), "other:/small", &at("/dir")]);
    assert_eq!((said.status.code(), text(&said.stdout)), (Some(1), "small\n".to_owned()));
    let (nope, dir) = (at("/nope"), at("/dir"));
    let errors = format!(
        "ironmap: {nope}: no such entry (ENOENT)\nironmap: {dir}: is a directory (EISDIR)\n"
    );
    assert_eq!(text(&said.stderr), errors, "each path once");
    for command in ["stat", "map"] {
        let one = |target: &str| text(&bench.succeed([command, target]));
        let all = text(&bench.succeed([command, &at("/small"), "other:/dir"]));
        assert_eq!(all, one(&at("/small")) + &one("other:/dir"), "{command}");
        let said = bench.run([command, "--json", &at("/nope"), &at("/small"), "other:/small"]);
        assert_eq!(said.status.code(), Some(1));
        let records: Vec<serde_json::Value> = serde_json::Deserializer::from_slice(&said.stdout)
            .into_iter()
            .map(Result::unwrap)
            .collect();
        assert_eq!(records.len(), 2, "{command}");
        assert_eq!(
            (&records[1]["volume"], &records[1]["path"]),
            (&"other".into(), &"/small".into())
        );
    }
    assert_eq!(bench.succeed(["ls", "other"]), bench.succeed(["ls", "other:/"]));
    assert_eq!(bench.succeed(["stat", "other"]), bench.succeed(["stat", "other:/"]));
    let said = bench.run(["cat", "other"]);
    assert!(said.status.code() == Some(2) && text(&said.stderr).contains("VOLUME:/PATH"));
}

/// For commands that read, `VOLUME:<N>` is inode N. Commands that need a name refuse `VOLUME:<N>` before any work.
#[test]
fn an_inode_s_number_is_a_path() {
    let bench = Bench::new();
    let number = |path: &str| {
        bench.json(&["stat", "--json", &bench.target(path)])["inode"].as_u64().unwrap()
    };
    let at = |number: u64| format!("image:<{number}>");
    let (large, dir) = (at(number("/dir/large")), at(number("/dir")));
    assert!(bench.succeed(["cat", &large]) == pattern(3 << 20 | 77, 1));
    assert_eq!(bench.succeed(["ls", &dir]), bench.succeed(["ls", "image:/dir"]));
    assert_eq!(text(&bench.succeed(["cat", &format!("{dir}/link")])), "small\n");
    let by_name = bench.json(&["map", "--json", "image:/dir/large"]);
    assert_eq!(bench.json(&["map", "--json", &large])["extents"], by_name["extents"]);
    bench.succeed(["cp", &large, "out"]);
    assert!(fs::read(bench.path("out")).unwrap() == pattern(3 << 20 | 77, 1));
    bench.succeed(["cp", "-r", &dir, "tree"]);
    assert_eq!(fs::read_link(bench.path("tree/link")).unwrap().to_str(), Some("../small"));
    assert_eq!(text(&bench.run(["cat", "image:<9999>"]).stdout), "");
    let before = fs::read(bench.image()).unwrap();
    for command in [&["rm", &large][..], &["mkdir", &format!("{dir}/new")], &["cp", "out", &dir]] {
        assert_eq!(bench.run(command).status.code(), Some(2), "{command:?}");
    }
    assert!(fs::read(bench.image()).unwrap() == before);
    // A file whose name is `<12>` is reached with a slash before its name.
    bench.succeed(["touch", "image:/<12>"]);
    assert_eq!(bench.json(&["stat", "--json", "image:/<12>"])["size"], 0);
    bench.succeed(["cp", &large, "image:/again"]);
    assert!(bench.succeed(["cat", "image:/again"]) == pattern(3 << 20 | 77, 1));
}

/// With each option and with combinations of options, `ls` prints the same as GNU ls.
#[test]
fn lists_are_those_of_ls() {
    require!([Need::Root]);
    let owned = |root: &Path| {
        for (name, owner) in [("small", (70_000, 5)), ("large", (5, 700_000))] {
            std::os::unix::fs::chown(root.join(name), Some(owner.0), Some(owner.1)).unwrap();
        }
        succeed(tool("mknod").arg(root.join("null")).args(["c", "1", "3"]));
    };
    let twin = Twin::with(owned, &[]);
    for options in ["-1", "-i", "-d", "-R", "-di"] {
        twin.same(&format!("ls {options} @/"));
    }
    // On the host, the root of the mount has a parent directory. The root of the volume has no parent. Therefore the options that show `..`
    // are tested only below the root.
    for options in ["-1", "-a", "-i", "-d", "-ai", "-R", "-Rai", "-di"] {
        twin.same(&format!("ls {options} @/dir"));
    }
    for command in ["-1 @/small @/dir @/again", "-di @/dir @/small", "-i @/dir @/dir/empty"] {
        // With several files, every name includes the volume.
        twin.same(&format!("ls {command}"));
    }
    for options in
        ["-l", "-ln", "-n", "-nd", "-la", "-lh", "-li", "-ld", "-lt", "-lahit", "-lR", "-lhd"]
    {
        for paths in ["@/", "@/dir", "@/dir/block @/large @/dir", "@/link"] {
            if options.contains('a') && paths == "@/" {
                continue;
            }
            let ours = twin.ours(&format!("ls {options} {paths}"));
            let theirs = twin.theirs(&format!("ls {options} --time-style=long-iso {paths}"));
            assert_eq!(ours, theirs, "{options} {paths}");
        }
    }
}

/// The headings of a recursive listing begin with the argument. Therefore each heading is a valid argument.
#[test]
fn headings_of_ls_begin_with_the_argument() {
    require!([Need::Root]);
    let twin = Twin::new();
    let root = twin.mount.dir().display().to_string();
    for command in ["-R @/", "-R @/dir", "-R @/dir/", "-R @/dir @/dir/empty @/small", "-Rd @/dir"] {
        let ours = text(&twin.run(&format!("ls {command}")).stdout);
        let headings = |said: &str| -> Vec<String> {
            said.lines().filter(|line| line.ends_with(':')).map(str::to_owned).collect()
        };
        let theirs = tool("ls").args(Twin::words(command, &root)).output().unwrap();
        let theirs = text(&theirs.stdout).replace(&root, &format!("{}:", twin.volume()));
        assert_eq!(headings(&ours), headings(&theirs), "{command}");
    }
    let alone = text(&twin.bench.succeed(["ls", "-R", "image"]));
    assert!(alone.starts_with("image:/:\n") && alone.contains("\nimage:/dir:\n"), "{alone}");
}

/// Like GNU ls, `ls` fails for a symbolic link that cannot be followed. A link without a target is listed as a link.
#[test]
fn links_that_lead_in_a_circle_are_refused_by_ls() {
    require!([Need::Root]);
    let links = |root: &Path| {
        for (name, to) in [("loop", "loop"), ("into-file", "small/x"), ("nowhere", "gone")] {
            symlink(to, root.join(name)).unwrap();
        }
    };
    let twin = Twin::with(links, &[]);
    for options in ["", "-i", "-R", "-l", "-n", "-d"] {
        for path in ["loop", "loop/", "into-file", "nowhere", "nowhere/", "loop @/small"] {
            let command = format!("ls {options} @/{path}");
            let at = twin.mounted().display().to_string();
            let style = options.replace("-l", "-l --time-style=long-iso");
            let style = style.replace("-n", "-n --time-style=long-iso");
            let theirs = Twin::words(&format!("ls {style} @/{path}"), &at);
            let theirs = tool(&theirs[0]).args(&theirs[1..]).output().unwrap();
            let ours = twin.run(&command);
            let code = if theirs.status.success() { 0 } else { 1 };
            assert_eq!(ours.status.code(), Some(code), "{command}: {}", text(&ours.stderr));
            let loops = text(&theirs.stderr).contains("Too many levels");
            assert_eq!(text(&ours.stderr).contains("(ELOOP)"), loops, "{command}");
            // ironmap begins each name with the name of the volume. The comparison removes it.
            let printed = text(&ours.stdout).replace(&format!("{}:", twin.volume()), "");
            assert_eq!(printed, text(&theirs.stdout).replace(&at, ""), "{command}");
        }
    }
}

/// Names that need quotes.
const QUOTED: [&str; 4] = ["it's", "quo\"te's", "new\nline's", "tab\t"];

/// Makes a `Twin` with additional files: names that need quotes, times before 1970, and a device with the number 0.
fn odd_twin() -> Twin {
    let more = |root: &Path| {
        QUOTED.iter().for_each(|name| fs::write(root.join(name), "").unwrap());
        for name in ["past", "just", "epoch"] {
            fs::write(root.join(name), "").unwrap();
        }
        // The device number and the mode are 0. A number 0 is printed without a prefix.
        succeed(tool("mknod").args(["-m", "0"]).arg(root.join("zero")).args(["b", "0", "0"]));
    };
    // Times before 1970 with fractions of a second. The field stores the nanoseconds above its two lowest bits.
    let times = [("past", -2, 250_000_000), ("just", -2, 950_000_000), ("epoch", -1, 500_000_000)];
    let requests = [("small", 1_000_000_000, 123_456_789)].into_iter().chain(times);
    let requests: Vec<_> = requests
        .flat_map(|(name, seconds, nanoseconds): (_, i64, u32)| {
            let set = |field| format!("set_inode_field /{name} {field}");
            let extra = format!("{} {}", set("mtime_extra"), nanoseconds << 2);
            [format!("{} @{seconds}", set("mtime")), extra]
        })
        .collect();
    let requests: Vec<_> = requests.iter().map(String::as_str).collect();
    Twin::with(more, &requests)
}

/// Every letter of a format is printed as by stat(1). The files have every type, and some names need quotes.
#[test]
fn formats_of_stat_are_those_of_stat() {
    require!([Need::Root]);
    let twin = odd_twin();
    let paths = "@/ @/small @/nothing @/program @/link @/node @/zero @/pipe @/dir @/dir/empty @/dir/dangling @/sparse";
    for letters in [
        "n|%N|%s",
        "b|%B|%f|%F|%a|%#a|%A",
        "u|%U|%g|%G|%i|%h",
        "t|%T|%o|%%",
        "#f|%#t|%#T|%#i|%#s",
        "#10f|%#-10f|%#010f|%#08t|%#06T|%#05a|%08f",
    ] {
        twin.same(&format!("stat -c %{letters} {paths}"));
    }
    for letters in ["w|%W", "x|%X", "y|%Y", "z|%Z", "8s|%-8s|%08s|%05a|%3i|%-9F|%12n"] {
        twin.same(&format!("stat -c |%{letters}| {paths}"));
    }
    // These formats test precision, signs, and device numbers.
    for letters in [
        "n|%.3N|%1N|%-1N|%-40.3N|%.3n|%.0n|%-8.3n|%08.3n|%.2F|%.3A|%.3U|%.3x",
        "s|%.10s|%.0s|%.s|%10.4s|%-10.4s|%010.4s|%+s|%+.3s|%+08s",
        "a|%.4a|%#.4a|%#.0a|%.6f|%#.6f|%#.0f|%.3b|%.4h|%.5u|%.9i|%.4o|%+i|%.0t|%#.4T",
        "r|%R|%#R|%Hr|%Lr|%8Hr|%-8Lr|%.8r|%08R|%#010R|%#.4R|%t",
        "X|%.X|%.0X|%.1X|%.3X|%.9X|%.12X|%20.3X|%-20.3X|%020.3X|%-020.3X|%+.3X|%+020.3X|%020X|%+X",
        "Y|%.Y|%.0Y|%.1Y|%.3Y|%.12Y|%1.3Y|%2.3Y|%6.3Y|%15.3Y|%-15Y|%015.1Y|%.3W|%.0Z|%.6Z",
    ] {
        twin.same(&format!("stat -c %{letters} {paths} @/past @/just @/epoch"));
    }
    let spaced = |program: &mut Command, at: &str| {
        let format = "|% s|% 8s|% +s|% .3Y|% 15.3Y|% 015.3Y|%'s|%'.3Y|% i|";
        let paths = ["past", "just", "small"].map(|name| format!("{at}/{name}"));
        text(&succeed(program.args(["stat", "-c", format]).args(paths)).stdout)
    };
    assert_eq!(
        spaced(&mut twin.bench.command(), &format!("{}:", twin.volume())),
        spaced(&mut tool("env"), twin.mount.dir().to_str().unwrap())
    );
    // An image has no device number. A volume on a block device has the device number that its mount would have.
    assert_eq!(twin.ours("stat -c %d:%D:%Hd:%Ld @/small"), "0:0:0:0\n");
    let device = LoopDevice::with(&["--read-only"], twin.bench.image());
    let small = format!("{}:/small", device.node());
    let ours = twin.bench.run(["stat", "-c", "%d %D %Hd %Ld", &small]);
    let theirs = tool("stat").args(["-c", "%r %R %Hr %Lr", device.node()]).output().unwrap();
    drop(device);
    assert_eq!(text(&ours.stdout), text(&theirs.stdout), "{}", text(&ours.stderr));
    for file in ["/dev/null", "/dev", twin.bench.image().to_str().unwrap()] {
        let format = "%d|%D|%#D|%Hd|%Ld|%8Hd|%-8Ld|%.9d|%r|%R|%Hr|%Lr";
        let ours = twin.bench.succeed(["stat", "-c", format, &format!("host:{file}")]);
        assert_eq!(ours, succeed(tool("stat").args(["-c", format, file])).stdout, "{file}");
    }
    for wrong in ["%H", "%Hs", "%5%", "%.-3s", "%..3s"] {
        assert_eq!(
            twin.bench.run(["stat", "-c", wrong, "image:/small"]).status.code(),
            Some(2),
            "{wrong}"
        );
    }
    twin.same("stat -L -c %F:%i:%n @/link @/small");
    let quoted = |program: &mut Command, at: &str| {
        let names = QUOTED.iter().map(|name| format!("{at}/{name}"));
        let said = succeed(program.args(["stat", "-c", "%N"]).args(names));
        text(&said.stdout).replace(at, "")
    };
    let theirs = quoted(&mut tool("env"), twin.mount.dir().to_str().unwrap());
    assert_eq!(quoted(&mut twin.bench.command(), &format!("{}:", twin.volume())), theirs);
    assert_eq!(twin.run("stat -c %q @/small").status.code(), Some(2));
}

/// Flags are printed with the letters of lsattr, and access lists with the lines of getfacl.
#[test]
fn stat_shows_flags_and_access_lists() {
    require!([Need::Root, Need::Tool("lsattr"), Need::Tool("getfacl"), Need::Tool("setfacl")]);
    let lists = |root: &Path| {
        let list = "u:7:rwx,u:70000:r,g:8:wx,m::rx,d:u:7:rwx,d:g::x,d:m::w";
        succeed(tool("setfacl").args(["-m", list]).arg(root.join("dir")));
        succeed(tool("setfacl").args(["-m", "u:0:r"]).arg(root.join("small")));
    };
    let flags = ["small 0x8000b", "large 0x80054", "program 0x980a4", "dir 0xb0000"];
    let requests = flags.map(|set| {
        let (name, flags) = set.split_once(' ').unwrap();
        format!("set_inode_field /{name} flags {flags}")
    });
    let twin = Twin::with(lists, &requests.each_ref().map(String::as_str));
    let shown = |path: &str, label: &str| -> Vec<String> {
        let said = twin.ours(&format!("stat -n @{path}"));
        let lines = said.lines().filter_map(|line| line.trim_start().strip_prefix(label));
        lines.map(|line| line.trim_start().to_owned()).collect()
    };
    for path in ["/small", "/large", "/program", "/dir", "/sparse"] {
        let theirs = twin.theirs(&format!("lsattr -d @{path}"));
        let ours = &shown(path, "Flags:")[0];
        assert_eq!(ours.split('\t').next(), theirs.split(' ').next(), "{path}");
    }
    for path in ["/small", "/dir", "/dir/block"] {
        let theirs = twin.theirs(&format!("getfacl -cnp @{path}"));
        let theirs: Vec<_> = theirs.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(shown(path, "ACL:"), theirs, "{path}");
    }
    assert_eq!(shown("/sparse", "ACL:"), Vec::<String>::new());
    assert!(twin.ours("stat @/dir").contains("   ACL: user:"));
}
