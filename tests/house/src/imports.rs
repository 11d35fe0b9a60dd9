//! Checks the imports between modules. They follow the path of a request: front end, file, dio, iomap, bio, device, sys.
//!
//! Each module in the root of the library is a layer. The table `LAYERS` says which layers a layer may name by `crate::`. These are the
//! layer itself, and some of the rows above it. This order prevents cycles.

use std::path::Path;

use proc_macro2::TokenStream;

use super::tokens::{Token, starts_with, without_tests};

/// Each row of this table contains a layer (module) and the layers that it may name in its code. If braces follow a layer, only the items
/// in the braces may be named.
const LAYERS: &str = "
units:
error: units
# The form of options.
setters:
# Sorts of little code.
sorting:
# The real locks, or those of the model checker.
sync:
sys: error units
bio: sys error units
# The layout of tuples.
protection:
device: bio sorting sync sys protection error units
events: device{Device,Durability,WrongTuple} error units
iomap: bio{CompletionWork} error units
# The state of an open file, independent of formats and devices.
open_file: iomap sync bio{Completion,CompletionWork} sys{barrier} error units
dio: open_file iomap bio sys{copy} device events error units
# Beyond memory, a file system knows only the kernel's reports on host files and their leases.
fs: open_file iomap device{Ahead,AheadQueue,BATCH,Device,Dry,Fence,Limits} bio{Buffer} sorting sync events setters error units \
    sys{Buffer,FiemapExtent,FiemapFlags,fiemap,has_reflink,inode_generation,is_realtime,lease,coarse_time,rate,ticks}
integrity: bio device protection sync setters error units
partition: bio{Buffer} sorting device{Device} error units
md: partition sorting error units \
    device{AnyQueue,Device,InRange,Limits,OnlyReads,QueueOptions,Ranges,Segment,Segmented,Within}
lvm: md{Leg,assemble_legs,look_within} partition sorting device{AnyQueue,Device,InRange,Limits,OnlyReads,QueueOptions,Ranges,Segment,Segmented} sync \
    error units
probe: lvm md device{Device,Within} partition error units
location: lvm md probe partition integrity fs{block_size_on} device setters error units
host: open_file dio fs iomap bio device events error units
queue: open_file host dio iomap bio device events error units
# The counter of sys, which a write reads without a call.
file: open_file queue host dio fs iomap bio device{Device,DeviceQueue,LentPart,Limits,with_queue} sys{ticks} setters \
    error units
";

struct Layer {
    name: &'static str,
    /// The layers that this layer may name, each with the permitted items. An empty list permits all items.
    may: Vec<(&'static str, Vec<&'static str>)>,
}

fn layers() -> Vec<Layer> {
    let rows = LAYERS.lines().filter(|row| !row.starts_with('#'));
    let rows = rows.filter_map(|row| row.split_once(':')).map(|(name, may)| {
        let may = may.split_whitespace().map(|may| match may.split_once(['{', '}']) {
            Some((name, items)) => (name, items.trim_end_matches('}').split(',').collect()),
            None => (may, Vec::new()),
        });
        Layer { name, may: may.collect() }
    });
    rows.collect()
}

/// Modules that may name all layers. These modules connect the layers, or make them public.
const JOINERS: [&str; 7] = ["cursor", "files", "volume", "tools", "mounted", "prelude", "lib"];

/// The row of the table that belongs to the layer of a file. Row 0 is the lowest layer. Modules that may name all layers are above all
/// rows. `None` means that the file belongs to no layer.
pub(super) fn height(path: &Path) -> Option<usize> {
    let name = module_path(path.strip_prefix("src").ok()?).into_iter().next()?;
    if JOINERS.contains(&name.as_str()) {
        return Some(layers().len());
    }
    layers().iter().position(|layer| layer.name == name)
}

pub(super) fn check(path: &Path, stream: TokenStream) -> Vec<(usize, String)> {
    let Ok(inside) = path.strip_prefix("src") else { return Vec::new() };
    let module = module_path(inside);
    let Some(name) = module.first() else { return Vec::new() };
    if JOINERS.contains(&name.as_str()) {
        return Vec::new();
    }
    let layers = layers();
    let Some(layer) = layers.iter().find(|layer| layer.name == name) else {
        return vec![(
            1,
            format!("`{name}` has no row in the table of layers (tests/house/src/imports.rs)"),
        )];
    };
    // A module named `tests` or `*_tests` contains only tests, because it is declared after `#[cfg(test)]`.
    if module.iter().any(|name| name == "tests" || name.ends_with("_tests")) {
        return Vec::new();
    }
    let tokens = without_tests(stream);
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        let rest = &tokens[at..];
        let continues = at > 0 && tokens[at - 1].text == "::";
        let Some(head) = path_to_root(rest, module.len()).filter(|_| !continues) else { continue };
        for path in tree(&mut &rest[head..]) {
            if let Err(what) = layer.check(&path) {
                found.push((rest[0].line, what));
            }
        }
    }
    found
}

/// If the tokens begin with the path to the root of the crate, returns the number of tokens in this path. The path is `crate::`, or one
/// `super::` for each level of the module.
fn path_to_root(tokens: &[Token], depth: usize) -> Option<usize> {
    if starts_with(tokens, &["crate", "::"]) {
        return Some(2);
    }
    let supers = tokens.chunks(2).take_while(|pair| starts_with(pair, &["super", "::"])).count();
    (supers == depth).then_some(2 * supers)
}

/// The path of a file's module: `fs`, `ext4` for `fs/ext4/mod.rs`.
fn module_path(file: &Path) -> Vec<String> {
    let mut parts: Vec<_> =
        file.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    parts
}

impl Layer {
    fn check(&self, path: &[&str]) -> Result<(), String> {
        let (Some(&head), own) = (path.first(), self.name) else { return Ok(()) };
        let shown = path.join("::");
        match self.may.iter().find(|(name, _)| *name == head) {
            _ if head == own => Ok(()),
            Some((_, items)) if items.is_empty() => Ok(()),
            Some((_, items)) if path.get(1).is_some_and(|item| items.contains(item)) => Ok(()),
            Some((_, items)) => {
                let items = items.join(", ");
                Err(format!("`{own}` may name only {items} of `{head}`, not `{shown}`"))
            }
            None if height(&Path::new("src").join(head)).is_some() => {
                Err(format!("`{own}` may not name `{shown}`"))
            }
            // The path names no layer, but a macro or a re-export in the root of the crate.
            None if head.starts_with(char::is_uppercase) || head == "*" => {
                Err(format!("name the layer of `{shown}`, not the crate's root"))
            }
            None => Ok(()),
        }
    }
}

/// Parses a use tree, or a path in an expression. Returns its paths, for example `a::b` and `a::c::d` for `a::{b, c::d}`.
fn tree<'a>(rest: &mut &'a [Token]) -> Vec<Vec<&'a str>> {
    let Some((first, after)) = rest.split_first() else { return Vec::new() };
    *rest = after;
    if first.text == "{" {
        let mut paths = Vec::new();
        while let Some((next, after)) = rest.split_first() {
            match next.text.as_str() {
                "," => *rest = after,
                "as" => *rest = after.get(1..).unwrap_or_default(),
                "}" => {
                    *rest = after;
                    break;
                }
                _ => paths.extend(tree(rest)),
            }
        }
        return paths;
    }
    if !starts_with(rest, &["::"]) {
        return vec![vec![&first.text]];
    }
    *rest = &rest[1..];
    let mut paths = tree(rest);
    paths.iter_mut().for_each(|path| path.insert(0, &first.text));
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, source: &str) -> Vec<String> {
        check(Path::new(path), source.parse().expect("Rust"))
            .into_iter()
            .map(|(line, what)| format!("{line}: {what}"))
            .collect()
    }

    #[test]
    fn a_layer_names_only_rows_above_it() {
        let layers = layers();
        assert_eq!(layers.len(), 23);
        for (at, layer) in layers.iter().enumerate() {
            for (name, _) in &layer.may {
                let above = layers[..at].iter().any(|above| above.name == *name);
                assert!(above, "{} names {name}, which is not above it", layer.name);
            }
        }
    }

    #[test]
    fn a_file_system_never_names_dio() {
        let source = "use crate::error::Result;\nuse crate::{iomap::Iomap, dio::simple};";
        assert_eq!(findings("src/fs/ext4/map.rs", source), ["2: `fs` may not name `dio::simple`"]);
    }

    #[test]
    fn dio_never_names_a_file_system_even_inline() {
        let source = "fn f(inode: &crate::fs::ext4::Inode) {}";
        assert_eq!(findings("src/dio/mod.rs", source), ["1: `dio` may not name `fs::ext4::Inode`"]);
    }

    #[test]
    fn a_file_system_knows_only_the_device_trait() {
        assert_eq!(
            findings("src/fs/ext4/blocks.rs", "use crate::device::{Device, Limits};"),
            [""; 0]
        );
        assert_eq!(
            findings("src/fs/ext4/blocks.rs", "use crate::device::{Device, Psync};"),
            [
                "1: `fs` may name only Ahead, AheadQueue, BATCH, Device, Dry, Fence, Limits of `device`, not `device::Psync`"
            ]
        );
        assert_eq!(findings("src/fs/ext4/blocks.rs", "use crate::device;").len(), 1);
    }

    #[test]
    fn super_is_no_way_around() {
        assert_eq!(findings("src/iomap/mod.rs", "use super::dio::Request;").len(), 1);
        assert_eq!(findings("src/iomap/extent_map.rs", "use super::Iomap;"), [""; 0]);
        assert_eq!(findings("src/iomap/extent_map.rs", "use super::super::dio;").len(), 1);
    }

    #[test]
    fn the_crates_root_hides_no_layer() {
        assert_eq!(findings("src/dio/mod.rs", "use crate::Volume;").len(), 1);
        assert_eq!(findings("src/dio/mod.rs", "crate::layout!(A);"), [""; 0]);
    }

    #[test]
    fn tests_and_joiners_are_free_and_new_layers_must_be_entered() {
        assert_eq!(
            findings("src/dio/mod.rs", "#[cfg(test)] mod tests { use crate::fs; }"),
            [""; 0]
        );
        assert_eq!(findings("src/dio/tests.rs", "use crate::fs;"), [""; 0]);
        assert_eq!(findings("src/dio/tests/model.rs", "use crate::fs;"), [""; 0]);
        assert_eq!(findings("src/volume.rs", "use crate::{dio, fs, device};"), [""; 0]);
        assert_eq!(findings("src/cache/mod.rs", "").len(), 1);
    }

    #[test]
    fn trees_give_every_path() {
        let tokens = without_tests("a::{b, c::{d as e, self}, f::*} rest".parse().expect("Rust"));
        let paths: Vec<_> =
            tree(&mut tokens.as_slice()).into_iter().map(|path| path.join("::")).collect();
        assert_eq!(paths, ["a::b", "a::c::d", "a::c::self", "a::f::*"]);
    }
}
