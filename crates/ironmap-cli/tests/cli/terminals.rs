//! Tests the output of text from a volume. Names, targets, labels and attributes pass no control sequences to a terminal.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Output, Stdio};

use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, IRONMAP, text, tool};

/// Bytes that control a terminal: an escape sequence for the title, one for colours, DEL, a C1 control in UTF-8, an invalid byte, and a
/// second line.
const EVIL: &[u8] = b"a\x1b]0;t\x07\x1b[35;41m\x7f\xc2\x9b\xff\x0d\nsecond";

/// For each command, the lines that run it. `$E` is a name with bytes that control a terminal. `@` is replaced by the program.
const COMMANDS: [(&str, &str); 46] = [
    ("info", "@ info i; @ info --json i; @ info \"$E\""),
    ("ls", "@ ls -lR i:/; @ ls i:/; @ ls -1 i:/; @ ls --json i:/; @ ls \"i:/$E\" \"i:/$E/none\""),
    (
        "stat",
        "@ stat \"i:/$E\" i:/link; @ stat --json \"i:/$E\"; @ stat -c '%n %20n %N %9N' \"i:/$E\" i:/link",
    ),
    ("cat", "@ cat \"i:/no$E\"; @ cat \"host:$E\""),
    ("map", "@ map \"i:/$E/file\"; @ map --json \"i:/$E/file\""),
    ("find", "@ find i:/; @ find i:/ -print0; @ find \"$E:/\""),
    ("du", "@ du -a i:/; @ du \"i:/$E\""),
    ("df", "@ df i \"$E\""),
    ("readlink", "@ readlink i:/link; @ readlink -f \"i:/$E/file\"; @ readlink \"i:/$E\""),
    (
        "getfattr",
        "@ getfattr -d i:/attributed; @ getfattr i:/attributed; for e in text hex base64; do @ getfattr -d -e $e i:/attributed; done; \
     @ getfattr --only-values -n user.text i:/attributed; @ getfattr -n \"user.$E\" \"i:/$E\"",
    ),
    ("diff", "@ diff i:/ tree; @ diff i:/ \"tree/$E\"; @ diff \"i:/$E\" i:/; @ diff i:/ j:/"),
    ("host", "@ host \"tree/$E/file\"; @ host --json \"tree/$E/file\"; @ host \"no$E\""),
    ("check", "@ check i; @ check --json i; @ check broken; @ check --json broken"),
    ("dump", "@ dump i superblock; @ dump i inode 2; @ dump \"$E\" journal"),
    (
        "salvage",
        "@ salvage i saved; @ salvage broken saved2; @ salvage --json deleted \"saved$E\"; @ salvage \"$E\" saved3",
    ),
    ("undelete", "@ undelete deleted; @ undelete --json deleted; @ undelete --to found deleted"),
    (
        "integrity",
        "@ integrity format \"$E\"; @ integrity check \"$E\"; cp i \"g$E\"; @ integrity format --force \"g$E\"",
    ),
    (
        "cp",
        "@ cp -r i:/ \"out$E\"; @ cp -rv i:/ \"out2$E\"; @ cp -r tree i:/new; @ cp -rv tree i:/new2; @ cp -r i:/none i:/new \"i:/$E\"; \
     @ cp -v \"i:/$E/file\" \"i:/copy$E\"; tar -C tree -c . | @ cp - \"i:/piped$E\"",
    ),
    (
        "disk",
        "@ disk new.disk 8M --part \"linux-generic:1M:label=$E\"; @ disk \"$E.none/x\" 8M --part linux-generic:1M",
    ),
    ("verity", "@ verity make \"$E\" \"hash$E\"; @ verity check \"$E\" none 00"),
    ("clone", "@ clone i \"clone$E\"; @ clone \"$E\" other"),
    (
        "mkfs",
        "@ mkfs -d tree new1 32M; @ mkfs -d tree.tar new2 32M; @ mkfs --oci -d tree.tar new3 32M; @ mkfs -d tree \"new$E\" 4M; \
     @ mkfs \"$E/none\" 4M; @ mkfs -L \"$E\" new4 4M",
    ),
    ("tune", "@ tune -l i; @ tune -L \"$E\" i; @ tune -M \"/$E\" i; @ tune -l i; @ tune -l \"$E\""),
    (
        "resize",
        "@ resize -P i; cp i \"r$E\"; @ resize \"r$E\" 40M; @ resize -P \"r$E\"; @ resize \"$E\" 1G",
    ),
    ("write", "echo | @ write \"i:/$E\"; echo | @ write \"i:/no$E/x\""),
    ("mkdir", "@ mkdir -v \"i:/m$E\" \"i:/m$E\""),
    ("mknod", "@ mknod \"i:/fifo$E\" p; @ mknod \"i:/fifo$E\" p"),
    ("rmdir", "@ rmdir -v \"i:/m$E\" \"i:/m$E\" \"i:/$E\""),
    (
        "ln",
        "@ ln -v \"i:/$E/file\" \"i:/again$E\"; @ ln -sv \"$E\" \"i:/soft$E\"; @ ln -v \"i:/$E\" i:/x",
    ),
    ("tar", "@ tar i:/ -f out.tar; @ tar \"i:/no$E\"; @ tar i:/ -f \"$E/none\""),
    ("touch", "@ touch \"i:/no$E/x\"; @ touch -d \"$E\" i:/x"),
    ("truncate", "@ truncate -s 0 \"i:/$E\""),
    ("fallocate", "@ fallocate -l 4096 \"i:/$E\""),
    ("chmod", "@ chmod -Rv 755 i:/; @ chmod -v 700 \"i:/no$E\"; @ chmod \"$E\" i:/"),
    ("chown", "@ chown -Rv 5:6 i:/; @ chown -v 5 \"i:/no$E\"; @ chown \"$E\" i:/"),
    ("chattr", "@ chattr +i \"i:/no$E\"; @ chattr \"+$E\" i:/"),
    (
        "setfattr",
        "@ setfattr -n \"user.$E\" -v x \"i:/no$E\"; @ setfattr -n \"$E\" -v x i:/attributed",
    ),
    ("mv", "@ mv -v \"i:/copy$E\" \"i:/moved$E\"; @ mv -v \"i:/no$E\" i:/x"),
    ("rm", "@ rm -rv \"i:/$E\"; @ rm \"i:/no$E\""),
    ("sync", "@ sync i \"$E\""),
    ("mount", "@ mount \"$E\" \"$E/none\"; @ mount i \"$E/none\"; @ mount -o \"$E\" i ."),
    ("umount", "@ umount \"$E\""),
    (
        "bench",
        "@ bench --runtime 0.001 --rounds 1 \"j:/$E/file\"; @ bench --runtime 0.001 --rounds 1 --json - \"j:/$E/file\"; @ bench \"$E\"",
    ),
    ("demo", "@ demo \"$E\""),
    ("completions", "@ completions \"$E\""),
    ("man", "@ man \"$E/none/none\""),
];

/// Makes a tree with the name `$E`, and images with bytes that control a terminal in every place for text.
const MAKES: &str = "set -e; mkdir -p \"tree/$E/sub$E\"; head -c 3M /dev/zero > \"tree/$E/file\"; echo > \"tree/x$E\"; ln -s \"to$E\" tree/link
    echo > tree/attributed; tar -C tree -cf tree.tar .; @ mkfs -q -L \"$(printf 'l\\033]0;t\\a')\" -d tree i 48M
    @ setfattr -n \"user.$E\" -v x i:/attributed; @ setfattr -n user.text -v \"text of many plain characters, many more than others $E\" i:/attributed
    cp i j; cp i deleted; @ rm -r \"deleted:/$E\"; cp i broken; debugfs -w -R 'clri <12>' broken 2> broken.log";

#[test]
fn no_command_sends_a_terminal_what_it_obeys() {
    require!([Need::Tool("script"), Need::Tool("tar")]);
    let bench = Bench::empty();
    let made = shell(&bench, "sh", MAKES);
    assert!(made.status.success(), "{}{}", text(&made.stdout), text(&made.stderr));
    let help = text(&bench.succeed(["--help"]));
    for name in commands_of(&help) {
        assert!(COMMANDS.iter().any(|(command, _)| *command == name), "{name} has no row");
    }
    let mut wrong = Vec::new();
    for (command, lines) in COMMANDS {
        let shown = shell(&bench, "script", lines).stdout;
        let obeyed = obeyed(&shown);
        if !obeyed.is_empty() {
            wrong.push(format!("{command}: {} in {}", obeyed.join(", "), shown.escape_ascii()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The names of the commands, in the order of the help.
fn commands_of(help: &str) -> Vec<&str> {
    let list =
        help.split("\nCommands:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap();
    list.lines()
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .map(|line| line.split(' ').next().unwrap())
        .collect()
}

/// Runs lines with a shell in the directory of the test. With script(1), the output is a terminal. `@` is replaced by the program.
fn shell(bench: &Bench, by: &str, lines: &str) -> Output {
    let mut command = tool(by);
    command.arg(if by == "script" { "-qec" } else { "-c" }).arg(lines.replace('@', IRONMAP));
    if by == "script" {
        command.arg("/dev/null");
    }
    let command =
        command.env("E", OsStr::from_bytes(EVIL)).env("TERM", "xterm").env("SHELL", "/bin/sh");
    command.current_dir(bench.path("")).stdin(Stdio::null()).output().unwrap()
}

/// The kinds of control sequences in the output that a terminal would execute. The sequences that the program itself prints for progress
/// bars and colours are allowed.
fn obeyed(shown: &[u8]) -> Vec<&'static str> {
    let has = |bytes: &[u8]| shown.windows(bytes.len()).any(|window| window == bytes);
    let odd = |byte: &u8| byte.is_ascii_control() && !b"\n\r\t\x1b".contains(byte);
    let text = String::from_utf8_lossy(shown);
    let all = [
        ("a sequence", shown.windows(2).any(|two| two[0] == b'\x1b' && two[1] != b'[')),
        ("a colour", has(b"\x1b[35;41m")),
        ("a control", shown.iter().any(odd)),
        ("C1", text.chars().any(|char| ('\u{80}'..='\u{9f}').contains(&char))),
        ("a byte that is not text", std::str::from_utf8(shown).is_err()),
        ("a line break", has(b"\nsecond")),
    ];
    all.into_iter().filter_map(|(what, is)| is.then_some(what)).collect()
}
