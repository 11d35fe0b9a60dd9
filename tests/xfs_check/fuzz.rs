//! Changes fields with the command `fuzz` of xfs_db, which repairs checksums.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;

use crate::base::Base;
use crate::common::command::{output, run};
use crate::common::skip::Need;
use crate::{damage, require};

/// The structures to change, as commands of xfs_db.
const PLACES: &[&str] = &[
    "sb 0",
    "sb 1",
    "agf 0",
    "agf 1",
    "agi 0",
    "agi 1",
    "agfl 0",
    "agf 0;addr bnoroot",
    "agf 0;addr cntroot",
    "agf 0;addr rmaproot",
    "agf 0;addr refcntroot",
    "agi 0;addr root",
    "agi 0;addr free_root",
    "path /",
    "path /short",
    "path /short/name-00000-",
    "path /block",
    "path /block;dblock 0",
    "path /leaf;dblock 0",
    "path /leaf;dblock 8388608",
    "path /nodes;dblock 0",
    "path /nodes;dblock 8388608",
    "path /nodes;dblock 16777216",
    "path /many-extents",
    "path /few-extents",
    "path /many-extents;addr u3.bmbt.ptrs[1]",
    "path /copy-1",
    "path /long-link",
    "path /long-link;dblock 0",
    "path /block/name-00002-xx",
    "path /a-short",
    "path /a-leaf",
    "path /a-leaf;ablock 0",
    "path /a-nodes;ablock 0",
    "path /a-nodes;ablock 1",
    "path /a-remote",
    "path /a-remote;ablock 0",
    "path /a-remote;ablock 1",
    "path /nodes/name-00000-",
    "path /nodes/name-00000-;ablock 0",
    "path -m /",
    "path -m /rtgroups",
];
const VERBS: [&str; 8] =
    ["zeroes", "ones", "firstbit", "middlebit", "lastbit", "add", "sub", "random"];

/// The names of the fields of each structure. The key consists of the name of the undamaged volume and the index of the structure.
type Fields = HashMap<(String, usize), Vec<String>>;

/// The field names that were already looked up.
static FIELDS: Mutex<Option<Fields>> = Mutex::new(None);

fn commands(place: &str, last: &str, path: &Path) -> Vec<String> {
    let mut args = vec!["-x".to_owned()];
    for command in place.split(';').chain([last]) {
        args.extend(["-c".to_owned(), command.to_owned()]);
    }
    args.push(path.to_str().expect("a plain path").to_owned());
    args
}

/// The field names in the output of `print`. For an array, only the first and the last elements are included.
fn fields(said: &str) -> Vec<String> {
    let mut fields = Vec::new();
    for line in said.lines() {
        let Some((name, value)) = line.split_once(" = ") else { continue };
        let Some((array, range)) = name.split_once('[') else {
            fields.push(name.to_owned());
            continue;
        };
        let (range, parts) = (range.trim_end_matches(']'), value.trim());
        let Some((first, last)) = range.split_once('-') else {
            fields.push(name.to_owned());
            continue;
        };
        let parts = parts.strip_prefix('[').and_then(|parts| parts.split_once(']'));
        for index in [first, last] {
            match parts {
                Some((parts, _)) => {
                    fields.extend(parts.split(',').map(|part| format!("{array}[{index}].{part}")));
                }
                None => fields.push(format!("{array}[{index}]")),
            }
        }
    }
    fields
}

fn fields_at(base: &Base, which: usize, path: &Path) -> Vec<String> {
    let mut known = FIELDS.lock().unwrap();
    let known = known.get_or_insert_default();
    let key = (base.name.to_owned(), which);
    known
        .entry(key)
        .or_insert_with(|| {
            let said =
                output(&base.tools.program("xfs_db"), &commands(PLACES[which], "print", path));
            fields(&String::from_utf8_lossy(&said.stdout))
        })
        .clone()
}

#[test]
fn fuzzed_fields() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_repair"), Need::Tool("xfs_db")]);
    damage("fuzzed_fields", |base, path, rng| {
        let which = rng.below(PLACES.len() as u64) as usize;
        let fields = fields_at(base, which, path);
        if fields.is_empty() {
            return None;
        }
        let field = &fields[rng.below(fields.len() as u64) as usize];
        let verb = VERBS[rng.below(VERBS.len() as u64) as usize];
        run(
            &base.tools.program("xfs_db"),
            &commands(PLACES[which], &format!("fuzz -d {field} {verb}"), path),
        );
        Some(format!("{}: {field} {verb}", PLACES[which]))
    });
}
