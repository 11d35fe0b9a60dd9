//! Runs the commands on a volume of the test format, and compares their results with coreutils, find and tar on the host.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use ironmap::device::Ram;
use ironmap::sorting::Sorting;
use ironmap_image::opening::Opening;
use ironmap_image::{Context, Report, Stop};

use super::WithMemory;
use super::format::{Kind, MemFs};
use crate::cli::Cli;
use crate::console::Console;

/// The variable that marks the child process. The commands redirect the standard output of their process. Therefore they run in a child
/// process, without other tests.
const CHILD: &str = "IRONMAP_TEST_OTHER_FORMAT";

#[test]
fn commands_use_a_volume_of_another_format() {
    if std::env::var_os(CHILD).is_some() {
        return commands();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let name = "other_format::commands::commands_use_a_volume_of_another_format";
    child.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(CHILD, "1");
    let output = child.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a command line. Returns the standard output, or the text of the failure followed by the standard output.
fn run(fs: &MemFs, words: &[&str]) -> Result<Vec<u8>, String> {
    let mut out = tempfile::tempfile().unwrap();
    rustix::stdio::dup2_stdout(&out).unwrap();
    let cli = Cli::parse_words([&["ironmap"], words].concat().into_iter().map(Into::into)).unwrap();
    let caller = WithMemory { console: Console::new(), fs: fs.clone() };
    let (stop, opening) = (Stop::default(), Opening::default());
    let mut report = Report::new(Context::new(Box::new(caller), stop, opening, Ok(None)));
    let result = cli.command.run(&mut report);
    assert_eq!(report.worst(), None, "{words:?}");
    out.rewind().unwrap();
    let mut said = Vec::new();
    out.read_to_end(&mut said).unwrap();
    result.map_err(|failure| failure.to_string() + &String::from_utf8_lossy(&said))?;
    Ok(said)
}

/// Runs a line of words that must succeed.
#[track_caller]
fn ok(fs: &MemFs, line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let said = run(fs, &words).unwrap_or_else(|failure| panic!("{line}: {failure}"));
    String::from_utf8(said).unwrap()
}

/// The output of a program of the host, run in `dir`.
#[track_caller]
fn host(dir: &Path, line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut program = Command::new(words[0]);
    let output = program.args(&words[1..]).current_dir(dir).env("LC_ALL", "C").output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.order();
    lines
}

fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("a/b/empty")).unwrap();
    let content: Vec<u8> = (0..300_001_u32).map(|byte| (byte % 251) as u8).collect();
    fs::write(dir.join("a/b/file"), &content).unwrap();
    fs::write(dir.join("a/small"), "a line\n").unwrap();
    symlink("b/file", dir.join("a/link")).unwrap();
    fs::hard_link(dir.join("a/small"), dir.join("again")).unwrap();
    let sparse = File::create(dir.join("sparse")).unwrap();
    sparse.set_len(5 << 20).unwrap();
    sparse.write_all_at(&content, 2 << 20).unwrap();
}

fn commands() {
    let volume = MemFs::new(Arc::new(Ram::new(32 << 20)), Kind::WHOLE);
    let scratch = tempfile::Builder::new().prefix("ironmap-test-").tempdir().unwrap();
    let source = scratch.path().join("source");
    fill(&source);
    copies(&volume, scratch.path());
    same_tree(&volume, &source);
    same_changes(&volume, &source);
    refusals(&volume);
}

/// The tree is copied into the volume, and copied out of the volume in three ways.
fn copies(volume: &MemFs, scratch: &Path) {
    let ok = |line: &str| ok(volume, line);
    let shown = scratch.display();
    ok(&format!("cp -a {shown}/source memory:/tree"));
    ok(&format!("diff memory:/tree {shown}/source"));
    ok(&format!("cp -a memory:/tree {shown}/back"));
    host(scratch, "diff -r --no-dereference source back");
    let archive = run(volume, &["tar", "memory:/tree"]).unwrap();
    fs::write(scratch.join("tree.tar"), archive).unwrap();
    fs::create_dir(scratch.join("extracted")).unwrap();
    host(scratch, "tar -xf tree.tar -C extracted");
    host(scratch, "diff -r --no-dereference source extracted");
    let said = run(volume, &["cat", "memory:/tree/a/link", "memory:/tree/again"]).unwrap();
    let content = fs::read(scratch.join("source/a/b/file")).unwrap();
    assert!(said == [content, b"a line\n".to_vec()].concat());
}

/// Programs of the host show the same tree.
fn same_tree(volume: &MemFs, source: &Path) {
    let ok = |line: &str| ok(volume, line);
    assert_eq!(sorted(&ok("ls memory:/tree")), sorted(&host(source, "ls")));
    assert_eq!(sorted(&ok("ls -a memory:/tree/a")), sorted(&host(source, "ls -a a")));
    let found = ok("find memory:/tree -type f,l").replace("memory:/tree", ".");
    assert_eq!(sorted(&found), sorted(&host(source, "find . -type f,l")));
    for (file, format) in [
        ("a", "%F|%a|%h|%u|%g|%Y"),
        ("a/small", "%F|%s|%a|%h|%u|%g|%Y"),
        ("a/link", "%F|%s|%a|%Y"),
        ("sparse", "%s|%f|%Y"),
    ] {
        let said = run(volume, &["stat", "-c", format, &format!("memory:/tree/{file}")]).unwrap();
        let expected = host(source, &format!("stat -c {format} {file}"));
        assert_eq!(String::from_utf8(said).unwrap(), expected, "{file}");
    }
    assert_eq!(ok("readlink memory:/tree/a/link"), "b/file\n");
    assert!(ok("map memory:/tree/sparse").contains(" 512..     585:"));
    assert!(ok("du -s memory:/tree").ends_with("memory:/tree\n"));
    assert!(ok("df memory").contains("memory"));
}

/// Makes the same changes with ironmap in the volume, and with the host's programs in a directory.
fn same_changes(volume: &MemFs, source: &Path) {
    let (ok, there) = (|line: &str| ok(volume, line), |line: &str| host(source, line));
    ok("mkdir -p memory:/tree/new/below");
    there("mkdir -p new/below");
    ok("mv memory:/tree/a/small memory:/tree/new/below/moved");
    there("mv a/small new/below/moved");
    ok("ln memory:/tree/again memory:/tree/new/third");
    there("ln again new/third");
    ok("ln -s ../again memory:/tree/new/symlink");
    there("ln -s ../again new/symlink");
    ok("chmod 640 memory:/tree/again");
    there("chmod 640 again");
    ok("truncate -s 123456 memory:/tree/a/b/file");
    there("truncate -s 123456 a/b/file");
    ok("fallocate -l 1M memory:/tree/new/allocated");
    there("fallocate -l 1M new/allocated");
    ok("touch memory:/tree/touched");
    there("touch touched");
    ok("rmdir memory:/tree/a/b/empty");
    there("rmdir a/b/empty");
    ok("rm memory:/tree/a/link");
    there("rm a/link");
    ok("setfattr -n user.colour -v red memory:/tree/again");
    assert!(ok("getfattr -d memory:/tree/again").contains("user.colour=\"red\""));
    ok("setfattr -x user.colour memory:/tree/again");
    ok("sync memory");
    ok(&format!("diff memory:/tree {}", source.display()));
    ok("rm -r memory:/tree");
    assert_eq!(ok("ls memory:/"), "");
}

/// Commands that support only ext4 are refused, and the error names the format. A check and a search for deleted files are refused if the
/// format has none.
fn refusals(volume: &MemFs) {
    assert_eq!(
        run(volume, &["info", "memory"]).unwrap_err(),
        "memory: the file system is mem, but this command supports only ext2, ext3 and ext4"
    );
    assert_eq!(
        run(volume, &["undelete", "memory"]).unwrap_err(),
        "memory: deleted files of mem cannot be found (EOPNOTSUPP)"
    );
    assert_eq!(
        run(volume, &["check", "memory"]).unwrap_err(),
        "memory: volumes of mem cannot be checked (EOPNOTSUPP)"
    );
}
