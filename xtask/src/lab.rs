//! The emulated machine (lab/boot.sh): tests of NVMe and of polled devices, and instructions counted.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use crate::shell::{
    Failure, Result, Tee, WORKSPACE, command, fail, ironmap, run, say, sh, skip, target,
};
use crate::xfsprogs;

/// Runs the tests of tests/lab there, with this program or a fresh build.
pub(crate) fn test(tee: &Tee, ironmap: Option<&Path>) -> Result {
    say("lab: tests in an emulated machine");
    // With the features that the tests of the workspace have been built with.
    let built = command(&format!("cargo test {WORKSPACE} --no-run --test lab")).output()?;
    let messages = String::from_utf8_lossy(&built.stderr);
    let program = messages.lines().find_map(|line| {
        line.trim_start().strip_prefix("Executable")?.rsplit_once('(')?.1.strip_suffix(')')
    });
    let Some(program) = program else {
        return fail(format!("tests/lab does not build\n{messages}"));
    };
    let ironmap = match ironmap {
        Some(program) => program.to_owned(),
        None => {
            sh("cargo build --quiet -p ironmap-cli")?;
            target("debug/ironmap")
        }
    };
    fs::create_dir_all(target("lab"))?;
    let tests = target("lab/lab-tests");
    fs::copy(program, &tests)?;
    boot(command("lab/boot.sh test.sh").args([tests, ironmap]), Some(tee)).map(drop)
}

/// XFS volumes of kinds that this machine's kernel may not mount, beside that machine's kernel: the newest one, and the release's, which still
/// mounts names without case.
pub(crate) fn xfs() -> Result {
    let ironmap = ironmap()?;
    for kernel in [None, Some(target("lab/kernel"))] {
        let mut machine = command("lab/boot.sh xfs.sh mkfs.xfs");
        machine.arg(&ironmap).env("LAB_SECONDS", "1800");
        if let Some(programs) = xfsprogs::programs()? {
            machine.env("LAB_NEWER", programs.join(".."));
        }
        if let Some(kernel) = kernel {
            machine.env("LAB_KERNEL", kernel);
        }
        boot(&mut machine, Some(&Tee::default()))?;
    }
    Ok(())
}

/// Prints what reads cost in instructions there, as a table.
pub(crate) fn count() -> Result {
    sh("cargo build --quiet --release -p ironmap-lab")?;
    fs::create_dir_all(target("lab"))?;
    let counts = target("lab/counts.txt");
    let mut machine = command("lab/boot.sh -c");
    machine.arg(&counts).arg("count.sh").arg(target("release/reads"));
    if let Some(console) = boot(&mut machine, None)? {
        print!("{}", table(&console, &fs::read_to_string(counts)?));
    }
    Ok(())
}

/// The output of the machine's console. A missing machine is reported, and is not a failure.
fn boot(machine: &mut Command, tee: Option<&Tee>) -> Result<Option<String>> {
    let log = target("lab.log");
    let result = run(machine.stdout(File::create(&log)?));
    let console = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    if let Err(Failure::Status(77)) = result {
        skip(&format!("lab: {}", console.lines().last().unwrap_or_default()))?;
        return Ok(None);
    }
    tee.map_or(Ok(()), |tee| tee.run(command("cat").arg(log)))?;
    result.map(|()| Some(console))
}

/// For each line of the console "reads ENGINE TARGET DEPTH BUFFERS COUNT" there is a line "PROGRAM KERNEL" of counts. A row has the
/// least of its windows.
fn table(console: &str, counts: &str) -> String {
    let mut rows: Vec<(String, [f64; 3])> = Vec::new();
    let reads = console.lines().filter_map(|line| line.strip_prefix("reads "));
    for (reads, counts) in reads.zip(counts.lines()) {
        let words: Vec<_> = reads.split_whitespace().collect();
        let [name @ .., count] = words.as_slice() else { continue };
        let each = |text: &str| {
            text.parse::<f64>().unwrap_or(f64::NAN) / count.parse().unwrap_or(f64::NAN)
        };
        let (program, kernel) = counts.split_once(' ').unwrap_or_default();
        let window = [each(program), each(kernel), each(program) + each(kernel)];
        let name = name.join(" | ");
        match rows.iter_mut().find(|row| row.0 == name) {
            Some((_, least)) if window[2] < least[2] => *least = window,
            Some(_) => {}
            None => rows.push((name, window)),
        }
    }
    let mut text = "| engine | target | depth | buffers | program | kernel | together |\n\
                    |---|---|--:|---|--:|--:|--:|\n"
        .to_owned();
    for (name, [program, kernel, together]) in rows {
        let _ = writeln!(text, "| {name} | {program:.0} | {kernel:.0} | {together:.0} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_least_of_its_windows() {
        let console = "lab: Linux 6.1\nreads psync /dev/a 0 plain 10\nreads psync /dev/a 0 plain 10\n\
                       reads io_uring /dev/a 1 fixed 10\nlab: status 0\n";
        let table = table(console, "500 2000\n400 1000\n30 40\n");
        let rows: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| psync | /dev/a | 0 | plain | 40 | 100 | 140 |",
                "| io_uring | /dev/a | 1 | fixed | 3 | 4 | 7 |"
            ]
        );
    }
}
