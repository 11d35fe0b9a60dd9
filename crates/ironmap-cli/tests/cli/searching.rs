//! `find`, `du`, `df`, `readlink` and `getfattr` print the same as the Linux programs with the same names. The Linux programs read the
//! kernel's mount of the same volume.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::skip::Need;
use crate::looking::Twin;
use crate::require;
use crate::support::{pattern, succeed, text, tool};

/// Creates names, sizes, times, modes and links that the tests of `find` distinguish.
fn more(root: &Path) {
    fs::create_dir_all(root.join("deep/er/est")).unwrap();
    for (name, len) in [
        ("deep/a.conf", 1),
        ("deep/er/B.CONF", 512),
        ("deep/er/.conf", 513),
        ("deep/er/est/c", 1 << 20),
    ] {
        fs::write(root.join(name), pattern(len, 7)).unwrap();
    }
    fs::write(root.join("deep/new"), "new").unwrap();
    symlink("/deep/er", root.join("absolute")).unwrap();
    symlink("er/../../deep/./a.conf", root.join("deep/winding")).unwrap();
    symlink("nothing-here", root.join("deep/astray")).unwrap();
}

/// `find` matches patterns as find(1) does. Patterns may have classes, and characters of several bytes. The locale determines the
/// characters.
#[test]
fn find_matches_patterns_as_find_does_in_each_locale() {
    require!([Need::Root, Need::Tool("find")]);
    let names = |root: &Path| {
        let odd = [&b"q]"[..], b"[x]", b".hid", b"a1", b"B2", b"A_", b"no\xFFutf", b"tab\there"];
        let of_utf8 = ["é", "É", "xéy", "ß", "日本", "a\u{a0}b", "١"];
        for name in odd.into_iter().chain(of_utf8.iter().map(|name| name.as_bytes())) {
            fs::write(root.join(OsStr::from_bytes(name)), "").unwrap();
        }
    };
    let twin = Twin::with(names, &[]);
    let patterns = [
        "?",
        "??",
        "x?y",
        "[é]",
        "[!a]",
        "[!a]*",
        "é",
        "*é*",
        "[[:alpha:]]*",
        "*[[:digit:]]",
        "[![:alpha:]]*",
        "[[=a=]]*",
        "[[.a.]-c]*",
        "[[:upper:]]*",
        "[[:lower:]]*",
        "*[[:punct:]]*",
        "*[[:blank:]]*",
        "*[[:space:]]*",
        "[[:alnum:]]*",
        "*[[:cntrl:]]*",
        "[[:graph:]]*",
        "[[:print:]]*",
        "[[:xdigit:]]*",
        "[[:nothing:]a]*",
        "[[:]*",
        "[^[:digit:]]*",
        "[A-C]*",
        "[Z-a]*",
        "[[.ab.]c]*",
        "*[]]",
        "no?utf",
    ];
    for (pattern, test) in patterns.iter().flat_map(|it| [(it, "-name"), (it, "-iname")]) {
        for locale in ["C", "C.UTF-8"] {
            let find = |program: &mut std::process::Command, at: &str| {
                let args = [at, "-mindepth", "1", test, pattern, "-print0"];
                let output = program.args(args).env("LC_ALL", locale).output().unwrap();
                assert!(output.status.success(), "{test} {pattern}: {}", text(&output.stderr));
                let found = output.stdout.split(|byte| *byte == 0);
                let cut = |path: &[u8]| path.get(at.len()..).unwrap_or_default().to_vec();
                found.map(cut).collect::<BTreeSet<_>>()
            };
            let root = format!("{}/", twin.mounted().display());
            let theirs = find(&mut tool("find"), &root);
            let ours = find(twin.command().arg("find"), &format!("{}:/", twin.volume()));
            assert_eq!(ours, theirs, "{test} {pattern} in {locale}");
        }
    }
}

/// Every test of `find` has the same result as in find(1): alone, negated, and with other tests.
#[test]
fn find_finds_what_find_finds() {
    require!([Need::Root, Need::Tool("find")]);
    let twin = Twin::with(more, &[]);
    for tests in [
        "",
        "-name *.conf",
        "-name ?.conf",
        "-name [a-b]*",
        "-iname *.CONF",
        "-path */er/*",
        "-path *dee[!x]*",
        "-type f",
        "-type d",
        "-type l,p,c",
        "! -type f",
        "-size 1",
        "-size +1",
        "-size -2",
        "-size 1k",
        "-size +1023k",
        "-size 1M",
        "-size -1M",
        "-size +513c",
        "-mtime +1",
        "-mtime -1",
        "-mtime 0",
        "-maxdepth 0",
        "-maxdepth 1",
        "-mindepth 2",
        "-mindepth 1 -maxdepth 2 -name *e*",
        "-empty",
        "! -empty -type d",
        "-links 2",
        "-links +1 -type f",
        "-perm 644",
        "-perm -4000",
        "-perm /u+s,g+s",
        "-perm -u+w,o+r",
        "-uid 1234",
        "-uid +0",
        "-not -uid 0 -print",
    ] {
        for start in ["@/", "@/deep", "@/deep/er/", "@/link", "@/deep/a.conf @/dir"] {
            let ours = twin.ours(&format!("find {start} {tests}"));
            let theirs = twin.theirs(&format!("find {start} {tests}"));
            let lines =
                |said: &str| -> BTreeSet<String> { said.lines().map(str::to_owned).collect() };
            assert_eq!(lines(&ours), lines(&theirs), "{start} {tests}");
            assert_eq!(ours.lines().count(), theirs.lines().count(), "{start} {tests}");
        }
    }
    let number = twin.ours("stat -c %i @/deep/new");
    twin.same(&format!("find @/ -inum {number}"));
    let names = twin.run("find @/deep -print0 -type f -name *conf").stdout;
    assert_eq!(names.iter().filter(|byte| **byte == 0).count(), 2);
    assert!(!names.contains(&b'\n'));
    // Other commands accept the output of `find` as an argument.
    let first = text(names.split(|byte| *byte == 0).next().unwrap());
    assert!(!twin.bench.succeed(["cat", &first]).is_empty());
    assert_eq!(twin.run("find @/ -nothing").status.code(), Some(2));
    let missing = twin.run("find @/nope @/deep/a.conf");
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stdout).ends_with(":/deep/a.conf\n"));
}

/// The sums of trees are the same as with du(1). A file with several names counts once. A tree within another tree also counts once.
#[test]
fn du_sums_as_du_does() {
    require!([Need::Root]);
    let twin = Twin::with(more, &[]);
    for options in ["", "-s", "-a", "-h", "-sh", "-ah"] {
        for paths in [
            "@/deep",
            "@/",
            "@/dir @/deep/er",
            "@/large @/deep",
            "@/small @/again",
            "@/deep @/deep",
            "@/deep @/deep/er",
            "@/deep/er @/deep/new @/deep",
            "@/large @/large",
        ] {
            // The two programs may find the two names of the file in a different order.
            let lines = |said: String| -> BTreeSet<String> {
                said.lines().map(|line| line.replace("/again", "/small")).collect()
            };
            let command = format!("du {options} {paths}");
            assert_eq!(lines(twin.ours(&command)), lines(twin.theirs(&command)), "{command}");
        }
    }
    // Later versions of du count directories differently, so only files are compared.
    let files = |said: String| -> BTreeSet<String> {
        let tree = ["/deep", "/deep/er", "/deep/er/est"];
        let is_file = |line: &&str| !tree.contains(&line.split('\t').nth(1).unwrap());
        said.lines().filter(is_file).map(str::to_owned).collect()
    };
    let ours = files(twin.ours("du -ab @/deep"));
    assert_eq!(ours, files(twin.theirs("du -ab @/deep")));
    assert_eq!(ours.len(), 7);
}

/// Sizes and free space are those that the kernel reports.
#[test]
fn df_shows_what_df_shows() {
    require!([Need::Root]);
    let twin = Twin::new();
    for options in ["-k", "-h", "-i", "-hi"] {
        let columns = |said: String| -> Vec<String> {
            let words = said.lines().nth(1).unwrap().split_whitespace().map(str::to_owned);
            words.skip(1).take(4).collect()
        };
        let ours = columns(twin.ours(&format!("df {} @/", options.replace("-k", ""))));
        assert_eq!(ours, columns(twin.theirs(&format!("df {options} @/"))), "{options}");
    }
    let volume = twin.volume();
    let said = text(&twin.bench.succeed(["df", &volume, &volume]));
    assert_eq!(said.lines().count(), 3);
}

/// Like readlink(1), `readlink` prints targets, and the paths to which targets lead.
#[test]
fn readlink_follows_as_readlink_does() {
    require!([Need::Root]);
    let twin = Twin::with(more, &[]);
    twin.same("readlink @/link @/deep/winding @/deep/astray @/dir/dangling @/absolute");
    for path in
        ["/", "/deep/winding", "/deep/astray", "/link", "/deep/er/../new-one", "/dir/./empty/.."]
    {
        let theirs = twin.theirs(&format!("readlink -f @{path}"));
        let theirs = if theirs == "\n" { "/\n".to_owned() } else { theirs };
        assert_eq!(twin.ours(&format!("readlink -f @{path}")), theirs, "{path}");
    }
    // An absolute symbolic link begins at the root of the volume.
    assert_eq!(twin.ours("readlink -f @/absolute/est"), "/deep/er/est\n");
    for refused in
        ["readlink @/small", "readlink @/nope", "readlink -f @/small/x", "readlink -f @/nope/x"]
    {
        assert_eq!(twin.run(refused).status.code(), Some(1), "{refused}");
    }
}

/// Names and values are printed as `getfattr` prints them, in all encodings.
#[test]
fn getfattr_writes_as_getfattr_does() {
    require!([Need::Root, Need::Tool("getfattr"), Need::Tool("setfattr")]);
    let attributes = |root: &Path| {
        more(root);
        for (name, value) in [
            ("user.plain", "text"),
            ("user.quotes", "0x61225c62"),
            ("user.lines", "0x610a620d6300"),
            ("user.bytes", "0xff00fe01"),
            ("user.two", "0xfffe"),
            ("user.mostly", "0x0161626364656667"),
            ("user.ended", "0x6100"),
            ("user.empty", ""),
            ("trusted.of-root", "secret"),
        ] {
            let path = root.join("deep/new");
            succeed(tool("setfattr").args(["-n", name, "-v", value]).arg(path));
        }
    };
    let twin = Twin::with(attributes, &[]);
    for options in [
        "",
        "-d",
        "-d -m -",
        "-m -",
        "-d -m user.[pq]",
        "-d -m ^tru",
        "-d -e text",
        "-d -e hex",
        "-d -e base64",
        "-n user.plain",
        "-n user.two -e hex",
        "-n user.bytes --only-values",
    ] {
        let paths = if options.starts_with("-n") { "@/deep/new" } else { "@/deep/new @/small" };
        let theirs = twin.theirs(&format!("getfattr --absolute-names {options} {paths}"));
        let sorted = |said: &str| -> Vec<Vec<String>> {
            let files = said.split("\n\n").map(|file| {
                let mut lines: Vec<_> = file.lines().map(str::to_owned).collect();
                lines.sort();
                lines
            });
            files.collect()
        };
        let ours = twin.ours(&format!("getfattr {options} {paths}"));
        assert_eq!(sorted(&ours), sorted(&theirs), "{options}");
    }
    twin.same("getfattr -h -d @/link");
    assert_eq!(twin.run("getfattr -n user.none @/small").status.code(), Some(1));
    assert_eq!(twin.run("getfattr -m ( @/small").status.code(), Some(2));
}
