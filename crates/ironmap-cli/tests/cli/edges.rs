//! Tests names with a slash at the end, symbolic links to themselves, and the output of `-v`. coreutils give the same results on a mounted
//! copy of the volume.

use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::changing::fsck;
use crate::common::image::Image;
use crate::common::skip::Need;
use crate::looking::Twin;
use crate::require;
use crate::support::{Bench, text, tool};
use crate::trees::{compare, view};

/// Runs the same steps on two volumes: with ironmap, and with coreutils on a mount. `@/` is the root of the volume or of the mount. A line
/// that begins with `!` must fail. The outputs and the resulting trees must be the same.
fn same(steps: &str) {
    let bench = Bench::empty();
    std::fs::write(bench.path("file"), "of the host").unwrap();
    let options = ["-t", "ext4", "-b", "1024"];
    let (twin, own) = (Image::mke2fs("32M", &options), Image::mke2fs("32M", &options));
    let mount = twin.mount("rw");
    let (there, here) = (mount.dir().display().to_string(), format!("{}:", own.path().display()));
    for step in steps.lines().map(str::trim).filter(|step| !step.is_empty()) {
        let (fails, step) = step.strip_prefix("! ").map_or((false, step), |step| (true, step));
        let words = |at: &str| -> Vec<String> {
            let replace = |word: &str| word.replacen('@', at, usize::from(word.starts_with("@/")));
            step.split(' ').map(replace).collect()
        };
        let theirs = words(&there);
        let theirs =
            tool(&theirs[0]).args(&theirs[1..]).current_dir(bench.path("")).output().unwrap();
        assert_eq!(theirs.status.success(), !fails, "theirs: {step}: {}", text(&theirs.stderr));
        let ours = bench.run(words(&here));
        let errors = text(&ours.stderr);
        assert_eq!(ours.status.success(), !fails, "{step}: {errors}");
        assert_eq!(errors.is_empty(), !fails, "{step}: {errors}");
        let (theirs, ours) = (text(&theirs.stdout), text(&ours.stdout));
        assert_eq!(ours.replace(&here, ""), theirs.replace(&there, ""), "{step}");
    }
    fsck(&own.path());
    let begun = SystemTime::now() - Duration::from_secs(3600);
    let begun = begun.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
    let expected = view(mount.dir(), begun);
    let mount = own.mount("ro");
    compare(&expected, &view(mount.dir(), begun));
}

/// A name with a slash at the end must be a directory. A symbolic link to a directory is not moved. No other type of file is made with this
/// name.
#[test]
fn a_slash_asks_for_a_directory() {
    require!([Need::Root]);
    same(
        "
        mkdir @/led-to @/d @/e
        ln -s led-to @/la
        ln -s loop @/loop
        ln -s nowhere @/dang
        touch @/a @/file @/y @/led-to/f
        ! mv @/la/ @/lb
        ! mv -T @/la/ @/lb
        ! mv @/file/ @/x
        ! mv @/dang/ @/x
        ! mv @/a @/new/
        ! mv @/a @/dang/
        mv @/d @/new/
        ! mv @/new @/dang/
        ! mv -T @/new @/la/
        mv @/new/ @/d/
        mv @/d @/la/
        mv @/la/d @/
        ! mknod @/pp/ p
        ! mknod @/a/ p
        ! mknod @/d/ p
        ! mknod @/dang/ p
        ! ln -s q @/ss/
        ! ln -s q @/a/
        ! ln -s q @/dang/
        ! ln -sf q @/y/
        ! ln -sf q @/dang/
        ! ln -sf q @/loop/
        ln -s q @/d/
        ! ln @/a @/hh/
        ! ln @/a @/y/
        ! ln -f @/a @/y/
        ! ln @/a/ @/h2
        mkdir @/mk/
        ! mkdir @/dang/
        ! mkdir @/la/
        ! mkdir -p @/file/
        mkdir -p @/la/
        rmdir @/mk/
        ! rmdir @/la/
        ! rmdir @/file/
        ! touch @/new/
        ! touch @/file/
        touch -c @/new/
        ! truncate -s 1 @/new/
        ! truncate -s 1 @/file/
        ! rm @/file/
        rm -f @/file/
        ! rm @/dang/
        rm -f @/dang/
        rm -f @/missing/
        rm -f @/missing/x
        ! rm @/la/
        ! rm -f @/la/
        ! rm -dv @/la/
        ! rm -rv @/la/
        touch @/led-to/f
        rm -rfv @/la/
        rm -dv @/e/
        ",
    );
}

/// `readlink -f` prints a path without symbolic links. A slash after the name of a file is an error, and a slash after a missing name is
/// ignored.
#[test]
fn a_slash_after_a_file_has_no_path() {
    require!([Need::Root]);
    let twin = Twin::with(
        |root| {
            let links = [("to-file", "small/"), ("to-missing", "gone/"), ("to-dir", "dir/")];
            links
                .iter()
                .for_each(|(name, to)| std::os::unix::fs::symlink(to, root.join(name)).unwrap());
        },
        &[],
    );
    for path in [
        "small",
        "small/",
        "small/.",
        "small/..",
        "dir/",
        "dir//",
        "dir/../small",
        "link/",
        "to-file",
        "to-missing",
        "to-dir",
        "to-dir/",
        "to-dir/block",
        "to-file/x",
        "missing",
        "missing/",
        "missing/x",
        "missing/..",
    ] {
        let at = |root: &Path| root.join(path).display().to_string();
        let root = twin.mounted();
        let theirs = tool("readlink").args(["-f", &at(root)]).output().unwrap();
        let ours = twin.run(&format!("readlink -f @/{path}"));
        let printed = text(&ours.stdout).replace(&format!("{}:", twin.volume()), "");
        let expected = text(&theirs.stdout).replace(&root.display().to_string(), "");
        assert_eq!((ours.status.code(), printed), (theirs.status.code(), expected), "{path}");
    }
}

/// A symbolic link to itself can be replaced like any other name. For commands that follow the link, it is an error.
#[test]
fn a_link_to_itself_can_be_replaced() {
    require!([Need::Root]);
    let again = "
        rm @/loop
        ln -s loop @/loop
        ";
    let steps = [
        "
        mkdir @/d
        touch @/a @/b @/c
        ln -s loop @/loop
        ! ln -s z @/loop
        ! cp file @/loop
        ! cp -T file @/loop
        ! touch @/loop
        ! mv -t @/loop @/a
        ! mv @/a @/b @/loop
        ! mv @/d @/loop
        ! mv @/a @/loop/x
        ! ln -sf z @/loop/
        mv -n @/a @/loop
        ln -sf z @/loop",
        "ln -sfn z @/loop",
        "ln -sfT z @/loop",
        "ln -f @/c @/loop",
        "mv @/a @/loop",
        "mv -T @/b @/loop
        rm @/loop
        ln -sf loop @/loop
        mv @/loop @/other
        mv @/other @/loop",
    ];
    same(&steps.join(again));
}

/// A symbolic link must not replace the file to which it points. It would then point to itself, and the content would be lost.
#[test]
fn no_link_replaces_the_file_that_it_leads_to() {
    require!([Need::Root]);
    same(
        "
        mkdir @/d @/e
        cp file @/file
        cp file @/twin
        ln @/file @/hard
        ln -s file @/link
        ln -s ../file @/d/file
        ln -s ../d/file @/e/file
        ln -s link @/chain
        ! mv @/link @/file
        ! mv -f @/link @/file
        ! mv -T @/link @/file
        ! mv @/chain @/file
        ! mv @/d/file @/
        ! mv @/e/file @/
        ! cp -a @/link @/file
        ! cp -P @/link @/file
        ! cp -d @/link @/hard
        ! cp -r @/link @/file
        ! cp -a @/d/. @/
        ! cp -a @/e/. @/
        ! cp @/link @/file
        ! cp -a @/file @/link
        ln @/file @/hard2
        ln -s file @/again
        mv @/again @/hard2
        ! mv @/hard2 @/file
        mv -n @/link @/file
        cp -a @/link @/e/file
        mv @/link @/twin
        cp -a @/chain @/twin
        mv @/file @/chain
        ",
    );
}

/// A new directory has the requested mode, and the set-group-ID bit of its parent directory.
#[test]
fn a_new_directory_keeps_the_set_group_id_bit_unless_its_mode_names_it() {
    require!([Need::Root]);
    same(
        "
        mkdir -m 2775 @/sg
        mkdir @/sg/plain
        mkdir -m g-s @/sg/without
        mkdir -m 755 @/sg/number
        mkdir -m 00755 @/sg/five
        mkdir -m 02755 @/sg/with
        mkdir -m u=rwx,g=rx @/sg/set
        mkdir -m =rx @/sg/all
        mkdir -m a-s,u+s @/sg/user
        mkdir -p -m g-s @/sg/above/below
        ",
    );
}

/// For an append-only file, both times can be set to the current time, but to no other time.
#[test]
fn append_only_files_take_the_time_of_now() {
    require!([Need::Root]);
    same(
        "
        touch -d 2001-02-03T04:05:06Z @/app @/imm
        chattr +a @/app
        chattr +i @/imm
        ! touch -a @/app
        ! touch -m @/app
        ! touch -d 2001-02-03T04:05:06Z @/app
        ! touch -r @/imm @/app
        ! touch @/imm
        touch @/app
        touch -c @/app
        touch -h @/app
        touch -am @/app
        touch -d @1.5 @/half
        touch -d @-1.25 @/before
        ",
    );
}

/// The lines of `-v` and `-c` are those of coreutils, even for failures. `chown -v` of a symbolic link without a target is not tested. For
/// this case, coreutils 9.1 prints an owner that it has not read.
#[test]
fn verbose_lines_are_those_of_coreutils() {
    require!([Need::Root]);
    same(
        "
        mkdir -v @/v @/v/x @/it's
        ! mkdir -v @/v
        mkdir -vp @/p/q/r @/p
        ! rmdir -v @/v @/it's @/missing @/missing/x
        rmdir -v --ignore-fail-on-non-empty @/p
        touch @/a
        mv -v @/a @/a\"b'c
        mv -v @/a\"b'c @/b
        mkdir -v @/it's
        ln -v @/b @/c
        ln -sv t'o @/s
        ln -svf to @/s
        rm -v @/c
        rm -rv @/p/q
        rm -rv @/v/x
        chown -v 1 @/b
        chown -v :2 @/b
        chown -v 1:2 @/b
        chown -v 0:0 @/b
        chown -v root @/b
        chown -v root: @/b
        chown -v :root @/b
        chown -v :0 @/b
        chown -v :bin @/b
        chown -v daemon:bin @/b
        chown -v +6:+7 @/b
        chown -v daemon: @/b
        chown -v 4711:4712 @/b
        chown -v 4711 @/b
        chown -v :4712 @/b
        chown -v : @/b
        chown -c 3 @/b
        chown -c 3 @/b
        chown -vh 5 @/s
        ! chown -v 5:6 @/missing
        ! chown -v :6 @/missing
        ! chown -v : @/missing
        ! chown -c 5 @/missing
        chown -Rv 3:4 @/v
        chmod -v 600 @/b
        chmod -v 600 @/b
        chmod -c 600 @/b
        chmod -c =4755 @/b
        chmod -v -- -022 @/b
        chmod -v +022 @/b
        ! chmod -v 600 @/missing
        ! chmod -v 600 @/s
        ! chmod -c 600 @/missing
        ln -s x @/v/link
        chmod -Rv 711 @/v
        chmod -Rc 755 @/v
        chattr +i @/b
        ! chown -v 6 @/b
        ! chown -v 6:7 @/b
        ! chown -v :7 @/b
        ! chown -c 6 @/b
        ! chmod -v 600 @/b
        ! chmod -c 600 @/b
        ! rm -v @/b
        chattr -i @/b
        ",
    );
}
