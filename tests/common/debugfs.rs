//! debugfs as an oracle. debugfs needs no root, reads volumes that the kernel cannot mount, and finds inodes by their numbers.

use super::image::Image;
use super::view::{Piece, Record, Time, View, joined};

/// Asks debugfs for each inode in `paths`. Returns the properties that debugfs prints, with the same paths.
pub(crate) fn view(image: &Image, block_size: u64, paths: &View) -> View {
    let numbers: Vec<_> = paths.values().map(|record| record.inode.expect("a number")).collect();
    let commands: String = numbers.iter().map(|number| format!("stat <{number}>\n")).collect();
    let output = image.ask_debugfs(&commands);
    let answers: Vec<_> = output.split("debugfs: stat ").skip(1).collect();
    assert_eq!(answers.len(), numbers.len(), "debugfs's answers");
    let records = answers.iter().map(|answer| record(answer, block_size));
    paths.keys().cloned().zip(records).collect()
}

fn record(answer: &str, block_size: u64) -> Record {
    let field = |name: &str| {
        let at = answer.find(name).unwrap_or_else(|| panic!("debugfs: no {name} in {answer}"));
        answer[at + name.len()..].split_whitespace().next().unwrap_or_default()
    };
    let number = |name: &str| field(name).parse::<u64>().expect(name);
    // debugfs prints the numbers of users, groups and projects as signed numbers.
    let id = |name: &str| field(name).parse::<i32>().expect(name) as u32;
    let octal = u32::from_str_radix(field("Mode:"), 8).expect("mode");
    let hex = |text: &str| {
        u32::from_str_radix(text.trim_start_matches("0x"), 16).expect("a hexadecimal number")
    };
    let kind = answer.lines().find_map(|line| line.split("Type: ").nth(1)).unwrap_or_default();
    let kind = match kind.split("   ").next().unwrap_or_default().trim() {
        "regular" => 0o100_000,
        "directory" => 0o040_000,
        "symlink" => 0o120_000,
        "FIFO" => 0o010_000,
        "socket" => 0o140_000,
        "character special" => 0o020_000,
        "block special" => 0o060_000,
        other => panic!("debugfs: type {other}"),
    };
    let flags = hex(field("Flags:"));
    let inline = flags & 0x1000_0000 != 0;
    let has_map = kind == 0o100_000 && !inline;
    Record {
        mode: Some(kind | octal),
        links: Some(number("Links:") as u32),
        owner: Some((id("User:"), id("Group:"))),
        size: answer.contains("Size: ").then(|| number("Size: ")),
        accessed: Some(time(answer, "atime: ")),
        modified: Some(time(answer, "mtime: ")),
        changed: Some(time(answer, "ctime: ")),
        created: answer.contains("crtime: ").then(|| time(answer, "crtime: ")),
        flags: Some(flags),
        generation: Some(number("Generation:") as u32),
        // debugfs prints project 0 even if the volume has no projects.
        project: answer
            .contains("Project:")
            .then(|| id("Project:"))
            .filter(|project| *project != 0),
        map: has_map.then(|| map(answer, block_size)),
        ..Record::default()
    }
}

/// `atime: 0x6b016d23:00000000 -- Sat …`: signed 32-bit seconds. An inode with extra time fields adds a second number: two bits that extend
/// the seconds, and thirty bits of nanoseconds.
fn time(answer: &str, name: &str) -> Time {
    let at = answer.find(name).unwrap_or_else(|| panic!("debugfs: no {name}")) + name.len();
    let text = answer[at..].split_whitespace().next().unwrap_or_default().trim_start_matches("0x");
    let (seconds, extra) = text.split_once(':').unwrap_or((text, "0"));
    let parse = |text| u32::from_str_radix(text, 16).expect("a time");
    let (seconds, extra) = (parse(seconds), parse(extra));
    (i64::from(seconds as i32) + (i64::from(extra & 3) << 32), extra >> 2)
}

/// `(0-11):786-797, (IND):798, (12-267[u]):799-1054`, possibly over several lines. Blocks of the map itself have names such as `IND`.
fn map(answer: &str, block_size: u64) -> Vec<Piece> {
    let Some(at) = answer.find("EXTENTS:\n").or_else(|| answer.find("BLOCKS:\n")) else {
        return Vec::new();
    };
    let list = answer[at..].lines().skip(1).take_while(|line| line.starts_with('('));
    let mut pieces = Vec::new();
    for item in
        list.flat_map(|line| line.split(", ")).map(str::trim).filter(|item| !item.is_empty())
    {
        let (logical, physical) = item
            .trim_start_matches('(')
            .split_once("):")
            .unwrap_or_else(|| panic!("debugfs: map {item}"));
        let unwritten = logical.ends_with("[u]");
        let logical = logical.trim_end_matches("[u]");
        if !logical.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            (
                first.parse::<u64>().expect("a block"),
                last.trim_end_matches(',').parse::<u64>().expect("a block"),
            )
        };
        let (first, last) = range(logical);
        let (start, _) = range(physical.trim_end_matches(','));
        let [pos, addr, len] = [first, start, last - first + 1].map(|blocks| blocks * block_size);
        pieces.push(Piece { pos, len, addr, unwritten });
    }
    joined(pieces)
}
