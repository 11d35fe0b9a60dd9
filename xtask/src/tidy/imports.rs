//! Imports follow the line of the request: front end, file, dio, iomap, bio, device, sys.
//!
//! Each module of the library's root is a layer. The table says what a layer may name by `crate::`; a layer may always name
//! itself. A reader who wants the architecture in one screen reads [`LAYERS`].

use std::path::Path;

use super::tokens::{Token, starts_with, without_tests};

/// What a layer may name.
struct Layer {
    name: &'static str,
    may: &'static [May],
}

/// A layer that may be named, whole or by some of its items only.
enum May {
    Any(&'static str),
    Only(&'static str, &'static [&'static str]),
}

use May::{Any, Only};

const LAYERS: &[Layer] = &[
    Layer { name: "units", may: &[] },
    Layer { name: "error", may: &[Any("units")] },
    Layer {
        name: "events",
        may: &[Only("device", &["Device", "Durability", "WrongTuple"]), Any("error"), Any("units")],
    },
    // Whose locks: the model checker's or the real ones.
    Layer { name: "sync", may: &[] },
    Layer { name: "sys", may: &[Any("error"), Any("units")] },
    Layer { name: "bio", may: &[Any("sys"), Any("error"), Any("units")] },
    Layer {
        name: "device",
        may: &[
            Any("bio"),
            Any("sync"),
            Any("sys"),
            // What tuples look like, which needs no device; those of a device of its own are the device's matter.
            Only("integrity", &["Interval", "Mismatch", "Protection", "TupleKind"]),
            Any("error"),
            Any("units"),
        ],
    },
    Layer { name: "iomap", may: &[Any("error"), Any("units")] },
    Layer {
        name: "inode",
        may: &[
            Any("iomap"),
            Any("sync"),
            Only("bio", &["CompletionWork"]),
            Only("sys", &["barrier"]),
            Any("error"),
            Any("units"),
        ],
    },
    Layer {
        name: "dio",
        may: &[
            Any("inode"),
            Any("iomap"),
            Any("bio"),
            Only("sys", &["copy"]),
            Any("device"),
            Any("events"),
            Any("error"),
            Any("units"),
        ],
    },
    Layer {
        name: "fs",
        may: &[
            Any("inode"),
            Any("iomap"),
            Only("device", &["Device", "Limits"]),
            Only("bio", &["Buffer"]),
            // Beyond memory, only what the kernel says of host files and their leases.
            Only(
                "sys",
                &[
                    "Buffer",
                    "FiemapExtent",
                    "FiemapFlags",
                    "fiemap",
                    "has_reflink",
                    "is_realtime",
                    "lease",
                    "coarse_time",
                    "rate",
                    "ticks",
                ],
            ),
            Any("sync"),
            Any("events"),
            Any("error"),
            Any("units"),
        ],
    },
    Layer {
        name: "integrity",
        may: &[Any("bio"), Any("device"), Any("sync"), Any("events"), Any("error"), Any("units")],
    },
    Layer { name: "partition", may: &[Only("device", &["Device"]), Any("error"), Any("units")] },
    Layer {
        name: "probe",
        may: &[Only("device", &["Device"]), Any("partition"), Any("error"), Any("units")],
    },
    Layer {
        name: "location",
        may: &[Any("partition"), Any("integrity"), Any("device"), Any("error"), Any("units")],
    },
    Layer {
        name: "queue",
        may: &[
            Any("file"),
            Any("host"),
            Any("dio"),
            Any("iomap"),
            Any("bio"),
            Any("device"),
            Any("events"),
            Any("error"),
            Any("units"),
        ],
    },
    Layer {
        name: "file",
        may: &[
            Any("inode"),
            Any("queue"),
            Any("host"),
            Any("dio"),
            Any("fs"),
            Any("iomap"),
            Any("bio"),
            Only("device", &["Device", "Limits", "with_queue"]),
            // The counter, which a write reads without a call.
            Only("sys", &["ticks"]),
            Any("error"),
            Any("units"),
        ],
    },
];

/// These name all layers: two join them, the third shows them to the user.
const JOINERS: [&str; 3] = ["volume", "host", "lib"];

pub(super) fn check(path: &Path, source: &str) -> Vec<(usize, String)> {
    let Ok(inside) = path.strip_prefix("src") else { return Vec::new() };
    let module = module_path(inside);
    let Some(name) = module.first() else { return Vec::new() };
    if JOINERS.contains(&name.as_str()) {
        return Vec::new();
    }
    let Some(layer) = LAYERS.iter().find(|layer| layer.name == name) else {
        return vec![(
            1,
            format!("`{name}` has no row in the table of layers (xtask/src/tidy/imports.rs)"),
        )];
    };
    // Tests in files of their own, below `#[cfg(test)] mod tests;`.
    if module.iter().any(|name| name == "tests" || name.ends_with("_tests")) {
        return Vec::new();
    }
    let tokens = without_tests(source);
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        let rest = &tokens[at..];
        let continues = at > 0 && tokens[at - 1].text == "::";
        let Some(head) = path_to_root(rest, module.len()).filter(|_| !continues) else { continue };
        for path in tree(&rest[head..]).0 {
            if let Err(what) = layer.check(&path) {
                found.push((rest[0].line, what));
            }
        }
    }
    found
}

/// How many tokens lead to the crate's root: `crate::`, or as many `super::` as the module is deep.
fn path_to_root(tokens: &[Token<'_>], depth: usize) -> Option<usize> {
    if starts_with(tokens, &["crate", "::"]) {
        return Some(2);
    }
    let supers = tokens.chunks(2).take_while(|pair| starts_with(pair, &["super", "::"])).count();
    (supers == depth).then_some(2 * supers)
}

/// `fs/ext4/mod.rs` is `fs`, `ext4`.
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
        let Some((&head, rest)) = path.split_first() else { return Ok(()) };
        let shown = path.join("::");
        if head == self.name {
            return Ok(());
        }
        for may in self.may {
            match may {
                Any(name) if *name == head => return Ok(()),
                Only(name, items) if *name == head => {
                    if rest.first().is_some_and(|item| items.contains(item)) {
                        return Ok(());
                    }
                    let items = items.join(", ");
                    return Err(format!(
                        "`{}` may name only {items} of `{name}`, not `{shown}`",
                        self.name
                    ));
                }
                _ => {}
            }
        }
        if LAYERS.iter().any(|layer| layer.name == head) || JOINERS.contains(&head) {
            return Err(format!("`{}` may not name `{shown}`", self.name));
        }
        // A macro or a re-export of the crate's root.
        if head.starts_with(char::is_uppercase) || head == "*" {
            return Err(format!("name the layer of `{shown}`, not the crate's root"));
        }
        Ok(())
    }
}

/// The paths of a use tree or of a path in an expression: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn tree<'t, 'a>(tokens: &'t [Token<'a>]) -> (Vec<Vec<&'a str>>, &'t [Token<'a>]) {
    let Some((first, rest)) = tokens.split_first() else { return (Vec::new(), tokens) };
    if first.text == "{" {
        let mut paths = Vec::new();
        let mut rest = rest;
        while let Some(token) = rest.first() {
            match token.text {
                "}" => return (paths, &rest[1..]),
                "," => rest = &rest[1..],
                "as" => rest = rest.get(2..).unwrap_or_default(),
                _ => {
                    let (more, after) = tree(rest);
                    paths.extend(more);
                    // Whatever else stands here is no use tree: leave it rather than stand still.
                    if after.len() == rest.len() {
                        return (paths, after);
                    }
                    rest = after;
                }
            }
        }
        return (paths, rest);
    }
    if !starts_with(rest, &["::"]) {
        return (vec![vec![first.text]], rest);
    }
    let (below, after) = tree(&rest[1..]);
    let joined = below.into_iter().map(|mut path| {
        path.insert(0, first.text);
        path
    });
    (joined.collect(), after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, source: &str) -> Vec<String> {
        check(Path::new(path), source)
            .into_iter()
            .map(|(line, what)| format!("{line}: {what}"))
            .collect()
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
    fn a_file_system_knows_the_device_trait_alone() {
        assert_eq!(
            findings("src/fs/ext4/blocks.rs", "use crate::device::{Device, Limits};"),
            [""; 0]
        );
        assert_eq!(
            findings("src/fs/ext4/blocks.rs", "use crate::device::{Device, Psync};"),
            ["1: `fs` may name only Device, Limits of `device`, not `device::Psync`"]
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
        let tokens = without_tests("a::{b, c::{d as e, self}, f::*} rest");
        let paths: Vec<_> = tree(&tokens).0.into_iter().map(|path| path.join("::")).collect();
        assert_eq!(paths, ["a::b", "a::c::d", "a::c::self", "a::f::*"]);
    }
}
