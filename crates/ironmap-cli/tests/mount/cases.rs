//! Shell scripts whose output and exit codes must be the same on ironmap's mount and on the kernel's ext4.

use crate::sides::{Sides, require_mounts};
use crate::support::{text, tool};

/// The listing after each case: type, permissions, links, owner, size and target of all remaining files. The size of a directory depends on
/// how its blocks were split, so it is omitted.
const LISTING: &str = r"find . -path ./lost+found -prune -o -type d -printf '%p %y %m %n %U:%G\n' -o -printf '%p %y %m %n %U:%G %s %l\n' | sort";
const USER: &str = "setpriv --reuid=1000 --regid=1000 --clear-groups";
const OTHER: &str = "setpriv --reuid=1001 --regid=1001 --clear-groups";

/// The cases, each in its own directory. `$U` and `$O` run a command as one of two users, `$OUT` is a directory on another file system, and
/// `$long` is a name of 255 bytes.
const CASES: &[(&str, &str)] = &[
    (
        "names of 255 bytes and beyond",
        r#"
        touch "$long"; touch "${long}x"; mkdir "${long}x"; ln -s a "${long}x"; mknod "${long}x" p; mv "$long" "${long}x"; ln "$long" "${long}x"
        cat "${long}x"; rmdir "${long}x"; rm "${long}x"; ls "$long" | wc -c; long4=$long$long$long$long; cat "$long4"; cat "$long4$long4"
        mv "$long" short; getfattr -d "${long}x""#,
    ),
    (
        "paths that are too long",
        r#"
        p=; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do p=$p$long/; done; mkdir -p "$p"; cat "./$p$long""#,
    ),
    (
        "loops of links",
        r"
        ln -s a b; ln -s b a; cat a; cd b; echo x > a; mkdir a; touch -h a; ln -s self self; stat -L self; mv a c; cat c
        ln -s . dot; p=; for i in $(seq 41); do p=$p/dot; done; ls .$p; p=${p#/dot}; ls .$p | head -1",
    ),
    (
        "targets of links",
        r#"
        for n in 1 58 59 60 61 255 1000 1023; do t=$(printf "%${n}s" | tr ' ' t); ln -s "$t" l$n; readlink l$n | wc -c; done
        ln -s '' empty; readlink dir; ln -s "$long$long$long$long$long$long$long$long$long$long$long$long$long$long$long$long$long" l; cp -P l60 c60; rm l60"#,
    ),
    (
        "other file systems",
        "echo x > f; ln f $OUT/f; ln $OUT/image g; mv f $OUT/f; cat $OUT/f; rm $OUT/f",
    ),
    (
        "sticky directories",
        r"
        mkdir -m 1777 t; $U touch t/f; $U mkdir t/d; $O rm -f t/f; $O mv t/f t/g; $O mv -T t/d t/e; $O rmdir t/d; $O touch t/h; $O mv -T t/h t/f
        $U mv t/f t/g; $U rm -f t/h; $U rm t/g; chown 1000 t; $U rm -f t/h",
    ),
    (
        "permissions",
        r"
        mkdir -m 700 d; touch d/f; $U cat d/f; $U touch x; mkdir -m 777 o; $U touch o/f; $O chmod 777 o/f; $O chown 1001 o/f; $O sh -c 'echo > o/f'; chmod 400 o/f
        $U sh -c 'echo > o/f'; $U cat o/f; $O truncate -s 0 o/f; $O touch -d 2001-01-01 o/f; $O touch o/f; $U touch -d 2001-01-01 o/f; chmod 666 o/f; $O touch o/f
        $O touch -d 2001-01-01 o/f; $U chgrp 0 o/f; $O mv o/f o/g; $U test -x o; $U ls d; chmod 711 d; $U ls d; $U cat d/f; chmod u=s o/f",
    ),
    (
        "directories and their links",
        r"
        mkdir -p a/b/c a/d; stat -c '%n %h' . a a/b a/d; mv a/b/c a/d; stat -c '%n %h' a/b a/d; rmdir a/b; stat -c %h a; mv a/d .; stat -c '%n %h' . a d; rmdir d
        mkdir x y; touch x/f; mv -T y x; mv -T x y; stat -c '%n %h' . y; rmdir y; ls -a y; ls -di y/. | wc -l; mv y y/z; mv y/f y/f; ln y z; ln -s y l; rmdir l; rmdir l/",
    ),
    (
        "a file that is not a directory",
        r"
        echo f > f; mkdir d; ln -s f l; cat f/; cat f/x; cd f; rmdir f; rm d; mkdir f; mkdir d; ls f/.; echo x > d; echo x > d/; echo x > n/; mkdir n/; mv f d/; mv d/f f/
        ln -s nowhere dangling; echo x > dangling; cat nowhere; mkdir dangling; ln -sfT nowhere2 dangling; touch dangling/; rm f/; rmdir n/. ; rmdir n/..; rmdir .; mv . m; mv d/.. m",
    ),
    (
        "renaming over everything",
        r"
        make() { echo $1 > f$1; mkdir e$1; mkdir n$1; touch n$1/x; ln -s f$1 s$1; mknod p$1 p; }
        for a in f e n s p; do for b in f e n s p; do make 1; make 2; mv -fT ${a}1 ${b}2 2>&1; echo $a $b $?; ls -A; rm -rf ??; done; done
        make 1; make 2; mv -nT f1 f2; mv -nT f1 g; mv -fT e1 e1; ln f2 h; mv -fT f2 h; ls; stat -c %h f2",
    ),
    (
        "set-id bits",
        r"
        mkdir -m 777 w; cd w; s() { cp /bin/true f; chmod $1 f; chown 1000:1000 f; chmod $1 f; }
        for m in 4755 6755 2755 2745 6777; do
            s $m; echo >> f; stat -c 'root writes %a' f; s $m; $U sh -c 'echo >> f'; stat -c 'user writes %a' f; s $m; $U truncate -s 1 f; stat -c 'user truncates %a' f
            s $m; truncate -s 1 f; stat -c 'root truncates %a' f; s $m; chown 1001 f; stat -c 'chown %a' f; s $m; chgrp 1001 f; stat -c 'chgrp %a' f
            s $m; $U sh -c 'echo > f'; stat -c 'user empties %a' f; s $m; $U fallocate -l 100 f; stat -c 'user allocates %a' f; s $m; $U chmod g+s f; stat -c '%a' f
        done; mkdir d; chmod 6755 d; chown 5 d; stat -c %a d; rm -f f",
    ),
    (
        "capabilities",
        r"
        cp /bin/true f; setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 f; getfattr -n security.capability -e hex f
        echo >> f; getfattr -n security.capability -e hex f",
    ),
    (
        "set-group directories",
        "mkdir g; chgrp 77 g; chmod 2777 g; touch g/f; mkdir g/d; ln -s x g/l; mknod g/p p; $U touch g/u; $U mkdir g/v; $U touch g/w; $U chmod g+s g/w; umask 077; touch g/m; mkdir g/n; mknod g/q p",
    ),
    (
        "default ACLs",
        r"
        mkdir d; setfacl -d -m u:5:rwx,g::r-x,o::- d; getfacl -n d; umask 027; touch d/f; mkdir d/s; mknod d/p p; ln -s x d/l; touch d/s/g; getfacl -nR d; umask 777; touch d/z; getfacl -n d/z
        setfacl -k d; getfacl -n d; touch d/y; setfacl -k d; setfacl -d -m u:5:r d/f",
    ),
    (
        "ACLs and modes",
        r"
        touch f; chmod 640 f; setfacl -m u:1000:rw,g:7:r f; getfacl -n f; stat -c %a f; $U sh -c 'echo x > f'; $O cat f; chmod 600 f; getfacl -n f; $U cat f; chmod 677 f; getfacl -n f
        setfacl -x u:1000 f; getfacl -n f; setfacl -b f; getfacl -n f; stat -c %a f; getfattr -d -m - f; setfacl -m u::r,g::-,o::- f; stat -c %a f; getfattr -d -m - f; setfacl -b f; setfacl -b f
        setfacl -m u:9:x f; getfattr -m - -e hex -d f; cp -a f c; getfacl -n c; $U setfacl -m u:3:r f; mknod p p; setfacl -m u:3:r p; getfacl -n p; ln -s f l; setfacl -m u:4:r l; getfacl -n f",
    ),
    (
        "extended attributes",
        r#"
        touch f; v() { printf "%$1s" | tr ' ' x; }; setfattr -n user.a -v 1 f; setfattr -n user.a -v 2 f; setfattr -n trusted.t -v 3 f; setfattr -n security.s -v 4 f; setfattr -n user. -v 4 f
        setfattr -n nope.x -v 5 f; setfattr -n system.x -v 5 f; setfattr -n x -v 5 f; getfattr -d -m - f; chmod 666 f; $U getfattr -d -m - f; $U setfattr -n trusted.u -v 1 f; $U setfattr -n user.u -v 1 f
        getfattr -n user.none f; setfattr -x user.none f; setfattr -x user.a f; setfattr -x trusted.t f; setfattr -n user.empty f; getfattr -d f; setfattr -n user.b -v "$(v 500)" f; setfattr -n user.c -v "$(v 5000)" f
        setfattr -n user.b -v "$(v 900)" f; setfattr -n user.$(v 250) -v 1 f; setfattr -n user.$(v 251) -v 1 f; getfattr -d f | md5sum; ln -s f l; setfattr -h -n user.a -v 1 l; setfattr -h -n trusted.a -v 1 l
        getfattr -h -d -m - l; mknod p p; setfattr -n user.a -v 1 p; mkdir -m 1777 d; $U setfattr -n user.a -v 1 d; setfattr -n user.a -v 1 d; $U getfattr -d d; chmod 000 f; $U getfattr -d f"#,
    ),
    (
        "appending and emptying",
        r"
        echo a > f; echo b >> f; cat f; echo c > f; cat f; set -C; echo d > f; set +C; : > f; stat -c %s f; exec 3>>f; echo 1 >&3; echo 22 >> f; echo 3 >&3; exec 3>&-; cat f
        truncate -s 5000 f; md5sum f; truncate -s 3 f; echo x >> f; truncate -s 5000 f; md5sum f; mkdir d; truncate -s 0 d; mknod p p; truncate -s 0 p; truncate -s 4 new; cp f d/f; cmp f d/f",
    ),
    (
        "RLIMIT_FSIZE",
        r"
        trap '' XFSZ; (ulimit -f 4; dd if=/dev/zero of=f bs=1000 count=10 2>&1 | head -2; truncate -s 9000 f; truncate -s 2048 f; dd if=/dev/zero of=f bs=1K count=9 oflag=direct 2>&1 | head -1; fallocate -l 9000 f; fallocate -n -l 9000 f); stat -c %s f",
    ),
    (
        "sizes beyond the format",
        r"
        truncate -s 17592186040320 f; truncate -s 17592186044415 f; truncate -s 17592186044416 f; truncate -s 4398046511103 g; truncate -s 4398046511104 g; truncate -s 9223372036854775807 f; stat -c %s f g
        echo x | dd of=f bs=1 seek=17592186044416 2>&1 | head -1; fallocate -o 17592186044416 -l 1 f; truncate -s 3G h; stat -c %s h",
    ),
    (
        "a full volume",
        r"
        dd if=/dev/zero of=f bs=64K 2>&1 | head -1; dd if=/dev/zero of=g bs=64K oflag=direct 2>&1 | head -1; cat f | head -c 100 | md5sum; rm f g; echo y > h; cat h; dd if=/dev/zero of=f bs=1M count=20 2>&1 | head -1; rm f",
    ),
    (
        "no inodes left",
        "i=0; while : > f$i; do i=$((i+1)); done 2>&1 | sed s/f[0-9]*/F/; mkdir d; ln -s x l; rm -f f*; : > again",
    ),
    (
        "space without content",
        r"
        fallocate -l 100000 f; stat -c '%s %b' f; fallocate -n -l 500000 f; stat -c %s f; cat f | md5sum; yes | head -c 100000 > f; fallocate -p -o 5000 -l 50000 f; md5sum f; fallocate -z -o 1000 -l 3000 f; md5sum f
        fallocate -z -o 90000 -l 20000 f; stat -c %s f; fallocate -z -n -o 190000 -l 20000 f; stat -c %s f; md5sum f; fallocate -l 0 f; fallocate -p -o 0 -l 110000 f; stat -c %s f; fallocate -n -l 100G g; stat -c %s g; rm g; fallocate -l 100G g; [ $(stat -c %s g) -gt $((20 << 20)) ] && echo grown; rm g; touch s; chmod 6777 s; $U fallocate -l 100G s; stat -c %a s; rm s; mknod p p; mkdir d; fallocate -l 1 d",
    ),
    (
        "times that are set",
        r"
        touch f; for t in 1969-12-31T23:59:58.5Z 1950-01-01T10:00:00.25Z 1901-12-13T20:45:52Z 1901-12-13T20:45:51Z 2038-01-19T03:14:08Z 2446-05-10T22:38:54.9Z 2446-05-10T22:38:56Z 1800-01-01Z 9999-01-01Z; do touch -d $t f 2>&1; stat -c '%x %y' f; done
        touch -a -d 2001-02-03Z f; stat -c '%x %y' f; touch -m -d 2001-02-04Z f; stat -c '%x %y' f; ln -s f l; touch -h -d 2001-02-05Z l; stat -c %y l f; touch -r f g; stat -c %y g; mkdir d; touch -d 1999-09-09Z d; stat -c %y d",
    ),
    (
        "special files",
        r"
        mknod c c 1 3; mknod b b 259 300; mknod p p; mknod big c 4095 1048575; stat -c '%n %t %T %F' c b p big; echo x > c; cat c; $U mknod m c 1 3; (echo piped > p &) ; cat p; cat b; ln c c2; mv c2 c3; rm c",
    ),
    (
        "open without a name",
        r"
        echo a > f; exec 3<> f; rm f; stat -L -c '%h %s' /proc/self/fd/3; echo bcd >&3; cat /proc/self/fd/3; truncate -s 100 /proc/self/fd/3; stat -L -c '%h %s' /proc/self/fd/3; chmod 600 /proc/self/fd/3
        setfattr -n user.a -v 1 /proc/self/fd/3; getfattr -d /proc/self/fd/3 | tail -n +2; ln -L /proc/self/fd/3 g; dd if=/dev/zero of=/proc/self/fd/3 bs=1 count=1 seek=5000 2>&1 | head -1; stat -L -c '%h %s' /proc/self/fd/3; exec 3>&-
        echo 1 > x; echo 2 > y; exec 4< y; mv x y; cat <&4; cat y; exec 4<&-",
    ),
    (
        "a directory that is removed while it is used",
        r"
        mkdir -p d/e; cd d/e; rmdir ../e; ls -a; touch x; mkdir y; stat -c '%h %F' .; ls ..; cd ..; mkdir e; rmdir e; cd ..; exec 3< d; rmdir d; ls /proc/self/fd/3; touch /proc/self/fd/3/x; exec 3<&-",
    ),
    (
        "immutable and append-only",
        r"
        cd /; cd $TOP; cat imm; echo x > imm; echo x >> imm; chmod 600 imm; rm -f imm; mv imm imm2; ln imm i; touch imm; touch -d 2001-01-01 imm; setfattr -n user.a -v 1 imm; truncate -s 0 imm; fallocate -l 1 imm
        echo x > app; echo x >> app; cat app; chmod 600 app; rm -f app; mv app app2; ln app i; truncate -s 0 app; touch -d 2001-01-01 app; touch app; touch -a app; touch immd/x; rm immd/y; mkdir immd/z; chmod 700 immd; mv immd q; touch appd/x; rm appd/x; mv appd/x appd/z; mkdir appd/d; rmdir appd/d; ls immd appd",
    ),
    (
        "many links",
        "cd $TOP; ln links l1; stat -c %h links; ln links l2; rm l1; stat -c %h links; ln links l2; rm -f l2; mkdir many/a many/b; stat -c %h many; rmdir many/a; stat -c %h many; mv many/b .; rmdir b; stat -c %h many; mkdir many/c many/d many/e; stat -c %h many",
    ),
    ("statfs", "stat -f -c '%s %S %l %c %b' ."),
    (
        "programs",
        "cp /bin/true t; ./t; echo $?; chmod -x t; ./t; printf '#!/bin/sh\necho script $0\n' > s; chmod +x s; ./s; chmod 711 s; $U ./s; cp /bin/sleep z; ./z 0 & wait; echo x >> z",
    ),
    (
        "trees",
        r"
        mkdir -p s/a/b; for i in $(seq 300); do echo $i > s/a/b/a-rather-long-name-for-a-file-$i; done; cp -a s t; diff -r s t; ls -U s/a/b | wc -l; find t -name '*1*' -delete; ls t/a/b | md5sum; tar c s | tar x -C t; rm -r s; find t -type f | sort | xargs cat | md5sum; rm -r t",
    ),
];

fn run(script: &str, number: usize, sides: &Sides) -> [String; 2] {
    sides.dirs().map(|dir| {
        let head = format!(
            "exec 2>&1; export TOP='{}' OUT='{}' U='{USER}' O='{OTHER}'; long=$(printf '%255s' | tr ' ' n); umask 022; mkdir case{number}; cd case{number}; ({script}\n); echo ends $?; cd \"$TOP/case{number}\"; {LISTING}",
            dir.display(),
            sides.outside().display(),
        );
        let out = tool("sh").arg("-c").arg(head).current_dir(dir).output().unwrap();
        let text = text(&out.stdout).replace(dir.to_str().unwrap(), "TOP");
        // The messages of shells contain the name of the script. This name is replaced.
        text.replace(&format!("case{number}"), "CASE")
    })
}

fn compare(mke2fs: &[&str]) {
    let sides = Sides::new(
        mke2fs,
        &[
            "write /dev/null imm",
            "write /dev/null app",
            "mkdir immd",
            "write /dev/null immd/y",
            "mkdir appd",
            "write /dev/null links",
            "mkdir many",
            "sif imm flags 0x80010",
            "sif app flags 0x80020",
            "sif immd flags 0x80010",
            "sif appd flags 0x80020",
        ],
    );
    let mut wrong = Vec::new();
    let only = std::env::var("IRONMAP_CASE").ok();
    for (number, (name, script)) in CASES.iter().enumerate() {
        if *name == "many links" || only.as_ref().is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let [ours, kernels] = run(script, number, &sides);
        if ours != kernels {
            wrong.push(format!("{name}\n{}", difference(&ours, &kernels)));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} cases differ (- kernel, + ours):\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    sides.end();
}

fn difference(ours: &str, kernels: &str) -> String {
    let (mut ours, mut kernels): (Vec<_>, Vec<_>) =
        (ours.lines().collect(), kernels.lines().collect());
    while !ours.is_empty() && ours.first() == kernels.first() {
        ours.remove(0);
        kernels.remove(0);
    }
    while !ours.is_empty() && ours.last() == kernels.last() {
        ours.pop();
        kernels.pop();
    }
    let lines = |sign, lines: &[&str]| {
        lines.iter().take(40).map(|line| format!("  {sign} {line}\n")).collect::<String>()
    };
    lines('-', &kernels) + &lines('+', &ours)
}

/// On a volume with blocks of 4 KiB, a program sees the same names, permissions, attributes and content as on the kernel's ext4.
#[test]
fn cases_with_blocks_of_4k_are_as_the_kernels() {
    require_mounts!("cases_with_blocks_of_4k_are_as_the_kernels");
    compare(&["-t", "ext4", "-b", "4096", "-N", "1024"]);
}

/// On a volume with blocks of 1 KiB, the cases also give the kernel's results. A block of 1 KiB contains fewer names.
#[test]
fn cases_with_blocks_of_1k_are_as_the_kernels() {
    require_mounts!("cases_with_blocks_of_1k_are_as_the_kernels");
    compare(&["-t", "ext4", "-b", "1024", "-N", "1024"]);
}

/// The link counts of files and directories have the same limits as in the kernel. The test sets the counts directly, so the volume is not
/// sound.
#[test]
fn link_counts_end_where_the_kernels_do() {
    require_mounts!("link_counts_end_where_the_kernels_do");
    let sides = Sides::new(
        &["-t", "ext4"],
        &[
            "write /dev/null links",
            "sif links links_count 64999",
            "mkdir many",
            "sif many links_count 64998",
        ],
    );
    let (number, (_, script)) =
        CASES.iter().enumerate().find(|(_, (name, _))| *name == "many links").unwrap();
    let [ours, kernels] = run(script, number, &sides);
    assert_eq!(ours, kernels);
}
