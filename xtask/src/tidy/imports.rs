//! Imports follow the line of the request: front end, file, dio, iomap, bio, device, sys.
//!
//! Each module of the library's root is a layer. The table says what a layer may name by `crate::`: itself, and of the rows above it those that
//! it lists. So there is no circle between layers. A reader who wants the architecture in one screen reads [`LAYERS`].

use std::path::Path;

use proc_macro2::TokenStream;

use super::tokens::{Token, starts_with, without_tests};

/// A layer, and the layers that it may name.
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
    // The form of options.
    Layer { name: "setters", may: &[] },
    // Whose locks: the model checker's or the real ones.
    Layer { name: "sync", may: &[] },
    Layer { name: "sys", may: &[Any("error"), Any("units")] },
    Layer { name: "bio", may: &[Any("sys"), Any("error"), Any("units")] },
    // The layout of tuples.
    Layer { name: "protection", may: &[] },
    Layer {
        name: "device",
        may: &[Any("bio"), Any("sync"), Any("sys"), Any("protection"), Any("error"), Any("units")],
    },
    Layer {
        name: "events",
        may: &[Only("device", &["Device", "Durability", "WrongTuple"]), Any("error"), Any("units")],
    },
    Layer { name: "iomap", may: &[Only("bio", &["CompletionWork"]), Any("error"), Any("units")] },
    // The state of an open file, independent of formats and devices.
    Layer {
        name: "open_file",
        may: &[
            Any("iomap"),
            Any("sync"),
            Only("bio", &["Completion", "CompletionWork"]),
            Only("sys", &["barrier"]),
            Any("error"),
            Any("units"),
        ],
    },
    Layer {
        name: "dio",
        may: &[
            Any("open_file"),
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
            Any("open_file"),
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
            Any("setters"),
            Any("error"),
            Any("units"),
        ],
    },
    Layer {
        name: "integrity",
        may: &[
            Any("bio"),
            Any("device"),
            Any("protection"),
            Any("sync"),
            Any("setters"),
            Any("error"),
            Any("units"),
        ],
    },
    Layer { name: "partition", may: &[Only("device", &["Device"]), Any("error"), Any("units")] },
    Layer {
        name: "probe",
        may: &[Only("device", &["Device"]), Any("partition"), Any("error"), Any("units")],
    },
    Layer {
        name: "location",
        may: &[
            Any("partition"),
            Any("integrity"),
            Any("device"),
            Any("setters"),
            Any("error"),
            Any("units"),
        ],
    },
    Layer {
        name: "host",
        may: &[
            Any("open_file"),
            Any("dio"),
            Any("fs"),
            Any("iomap"),
            Any("bio"),
            Any("device"),
            Any("events"),
            Any("error"),
            Any("units"),
        ],
    },
    Layer {
        name: "queue",
        may: &[
            Any("open_file"),
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
            Any("open_file"),
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
const JOINERS: [&str; 5] = ["files", "volume", "mounted", "prelude", "lib"];

/// How high a file stands in the table: 0 is the lowest layer, and modules that join them are above them all. `None` for a file of no layer.
pub(super) fn height(path: &Path) -> Option<usize> {
    let name = module_path(path.strip_prefix("src").ok()?).into_iter().next()?;
    if JOINERS.contains(&name.as_str()) {
        return Some(LAYERS.len());
    }
    LAYERS.iter().position(|layer| layer.name == name)
}

pub(super) fn check(path: &Path, stream: TokenStream) -> Vec<(usize, String)> {
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

/// How many tokens lead to the crate's root: `crate::`, or as many `super::` as the module is deep.
fn path_to_root(tokens: &[Token], depth: usize) -> Option<usize> {
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

/// Takes a use tree, or a path in an expression, and gives its paths: `a::{b, c::d}` is `a::b` and `a::c::d`.
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
        for (at, layer) in LAYERS.iter().enumerate() {
            for Any(name) | Only(name, _) in layer.may {
                let above = LAYERS[..at].iter().any(|above| above.name == *name);
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
        let tokens = without_tests("a::{b, c::{d as e, self}, f::*} rest".parse().expect("Rust"));
        let paths: Vec<_> =
            tree(&mut tokens.as_slice()).into_iter().map(|path| path.join("::")).collect();
        assert_eq!(paths, ["a::b", "a::c::d", "a::c::self", "a::f::*"]);
    }
}
