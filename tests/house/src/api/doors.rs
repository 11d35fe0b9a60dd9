//! The functions of each interface (door) to the library: Rust, C and Python.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};

use super::c_header::Header;

/// The path of the source file that defines `ErrorKind::errno`.
pub(super) const ERROR: &str = "src/error.rs";
const PUBLIC_API: &str = "docs/public-api.txt";
const HEADER: &str = "crates/ironmap-capi/include/ironmap.h";
const STUBS: &str = "crates/ironmap-python/python/ironmap/__init__.pyi";

/// Types of the library. The table of operations must list all their methods.
const TYPES: [&str; 7] = ["Buffer", "Cursor", "File", "Files", "Host", "Queue", "Volume"];

/// The sources of the other crates, each with types. The table of operations must list all methods of these types.
const OTHER_CRATES: [(&str, &[&str]); 5] = [
    ("crates/ironmap-async/src", &["AsyncFile", "Pool", "Stream"]),
    ("crates/ironmap-image/src/content.rs", &["Content"]),
    ("crates/ironmap-image/src/disk/mod.rs", &["Disk", "DiskPart"]),
    ("crates/ironmap-image/src/image", &["Image", "OpenImage"]),
    ("crates/ironmap-image/src/verity/tree.rs", &["Tree"]),
];

/// The position of a function in the sources, and properties of the function.
pub(super) struct Place {
    pub(super) file: String,
    pub(super) line: usize,
    /// Whether the table of operations must list the function.
    pub(super) is_listed: bool,
    /// The names of the parameters, if the interface has named arguments.
    pub(super) parameters: Vec<String>,
}

/// The functions of one interface (Rust, C or Python), by their names.
pub(super) type Functions = BTreeMap<String, Place>;

pub(super) fn header() -> io::Result<(Header, &'static str)> {
    Ok((Header::parse(&fs::read_to_string(HEADER)?), HEADER))
}

pub(super) fn of_c(header: &Header) -> Functions {
    let place = |function: &super::c_header::Function| Place {
        file: HEADER.to_owned(),
        line: function.line,
        is_listed: true,
        parameters: function.parameters.iter().map(|parameter| parameter.name.clone()).collect(),
    };
    header.functions.iter().map(|function| (function.name.clone(), place(function))).collect()
}

/// The functions of the library and of the crates above it. `sources` are all Rust sources.
pub(super) fn of_rust(sources: &[PathBuf]) -> io::Result<Functions> {
    let mut found = of_library(&fs::read_to_string(PUBLIC_API)?);
    for (folder, types) in OTHER_CRATES {
        for path in sources.iter().filter(|path| path.starts_with(folder)) {
            let source = fs::read_to_string(path)?;
            let stream = source.parse().map_err(|error| io::Error::other(format!("{error}")))?;
            found.extend(methods(path, stream, types));
        }
    }
    Ok(found)
}

/// The functions in the list of public items, such as `File::size` and `fs::Writer::truncate`.
fn of_library(list: &str) -> Functions {
    let lines = (1..).zip(list.lines());
    let functions = lines.filter_map(|(line, text)| {
        let (_, rest) = text.split_once("fn ironmap::")?;
        let name = rest.split(['(', '<']).next()?;
        let is_listed = name
            .split_once("::")
            .is_some_and(|(of, name)| TYPES.contains(&of) && !name.contains("::"));
        let place = Place { file: PUBLIC_API.to_owned(), line, is_listed, parameters: Vec::new() };
        Some((name.to_owned(), place))
    });
    functions.collect()
}

/// Each variant of `ErrorKind` with its errno and its line. The errno of `Io` is that of the failed call.
pub(super) fn kinds() -> io::Result<Vec<(String, String, usize)>> {
    Ok(kinds_of(&fs::read_to_string(ERROR)?))
}

fn kinds_of(source: &str) -> Vec<(String, String, usize)> {
    let arms = (1..).zip(source.lines()).filter_map(|(line, text)| {
        let (variants, errno) = text.split_once(" => Errno::")?;
        Some((line, variants, errno.trim_end_matches(',')))
    });
    let kinds = arms.flat_map(|(line, variants, errno)| {
        let variants =
            variants.split('|').filter_map(|variant| variant.trim().strip_prefix("Self::"));
        variants.map(move |variant| (variant.to_owned(), errno.to_owned(), line))
    });
    kinds.collect()
}

/// The public methods of these types in a source.
fn methods(path: &Path, stream: TokenStream, types: &[&str]) -> Vec<(String, Place)> {
    let mut found = Vec::new();
    let trees: Vec<_> = stream.into_iter().collect();
    for (at, _) in trees.iter().enumerate().filter(|(_, tree)| is_word(tree, "impl")) {
        let head: Vec<_> = trees[at..].iter().take_while(|tree| !is_body(tree)).collect();
        let Some(TokenTree::Group(body)) = trees.get(at + head.len()) else { continue };
        let is_trait = head.iter().any(|tree| is_word(tree, "for"));
        let Some(of) = head.iter().find_map(|tree| types.iter().find(|of| is_word(tree, of)))
        else {
            continue;
        };
        if !is_trait {
            let functions = functions(&body.stream().into_iter().collect::<Vec<_>>());
            found.extend(functions.into_iter().map(|name| {
                let (file, line) = (path.display().to_string(), name.span().start().line);
                (
                    format!("{of}::{name}"),
                    Place { file, line, is_listed: true, parameters: Vec::new() },
                )
            }));
        }
    }
    found
}

/// The names of the public functions among these trees.
fn functions(trees: &[TokenTree]) -> Vec<Ident> {
    let mut found = Vec::new();
    for (at, _) in trees.iter().enumerate().filter(|(_, tree)| is_word(tree, "pub")) {
        let rest = &trees[at + 1..];
        let words = rest
            .iter()
            .take_while(|tree| ["const", "async", "unsafe"].iter().any(|word| is_word(tree, word)))
            .count();
        if let [function, TokenTree::Ident(name), ..] = &rest[words..]
            && is_word(function, "fn")
        {
            found.push(name.clone());
        }
    }
    found
}

fn is_word(tree: &TokenTree, word: &str) -> bool {
    matches!(tree, TokenTree::Ident(ident) if ident == word)
}

fn is_body(tree: &TokenTree) -> bool {
    matches!(tree, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

pub(super) fn of_python() -> io::Result<Functions> {
    Ok(stubs(&fs::read_to_string(STUBS)?))
}

/// The public classes, methods and functions in Python type stubs. A class in the table stands for its constructor.
pub(super) fn stubs(text: &str) -> Functions {
    let mut found = Functions::new();
    let mut class = String::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((line, text)) = lines.next() {
        let place =
            |is_listed, parameters| Place { file: STUBS.to_owned(), line, is_listed, parameters };
        if let Some(rest) = text.strip_prefix("class ") {
            class = rest.split(['(', ':']).next().unwrap_or_default().to_owned();
            found.insert(class.clone(), place(false, Vec::new()));
        }
        let Some((indent, rest)) =
            text.split_once("def ").filter(|(indent, _)| indent.trim().is_empty())
        else {
            continue;
        };
        let (name, list) = rest.split_once('(').unwrap_or((rest, ""));
        let mut list = list.to_owned();
        while !list.ends_with("...") {
            let Some((_, more)) = lines.next() else { break };
            list.push_str(more);
        }
        let name = match indent.is_empty() {
            true => name.to_owned(),
            false => format!("{class}.{name}"),
        };
        if !name.split('.').any(|part| part.starts_with('_')) {
            let parameters = list.split(',').filter_map(|parameter| parameter.split_once(':'));
            let parameters = parameters.map(|(name, _)| name.trim().to_owned()).collect();
            found.insert(name, place(true, parameters));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An arm of the match can have several variants.
    #[test]
    fn kinds_have_errnos() {
        let source = "match self {\n    Self::A | Self::B => Errno::EIO,\n    Self::Io(errno) => errno,\n    Self::C => Errno::EPERM,\n";
        let found = kinds_of(source);
        let found: Vec<_> = found
            .iter()
            .map(|(kind, errno, line)| (kind.as_str(), errno.as_str(), *line))
            .collect();
        assert_eq!(found, [("A", "EIO", 2), ("B", "EIO", 2), ("C", "EPERM", 4)]);
    }

    /// The table of operations must list each method of the types in `TYPES`. It may list other functions too.
    #[test]
    fn methods_of_the_library_are_read() {
        let list = "pub fn ironmap::File::size(&self) -> u64\npub fn ironmap::Volume::open<L>(L)\npub unsafe fn ironmap::Buffer::from_raw_parts()\n\
                    pub fn ironmap::fs::Writer::link(&self)\npub ironmap::File::x: u8\n";
        let found = of_library(list);
        let found: Vec<_> = found
            .iter()
            .map(|(name, place)| (name.as_str(), place.line, place.is_listed))
            .collect();
        let expected = [
            ("Buffer::from_raw_parts", 3, true),
            ("File::size", 1, true),
            ("Volume::open", 2, true),
            ("fs::Writer::link", 4, false),
        ];
        assert_eq!(found, expected);
    }

    /// Private functions, functions of traits, and functions of types that are not given are omitted.
    #[test]
    fn methods_of_other_crates_are_read() {
        let source = "impl A { pub const fn a() {} pub(crate) fn b() {} fn c() {}\npub fn d(self) {} } impl T for A { pub fn e() {} } impl B { pub fn f() {} }";
        let found = methods(Path::new("a.rs"), source.parse().unwrap(), &["A"]);
        let found: Vec<_> = found.iter().map(|(name, place)| (name.as_str(), place.line)).collect();
        assert_eq!(found, [("A::a", 1), ("A::d", 2)]);
    }

    /// Names with an underscore are private. A signature can have several lines.
    #[test]
    fn stubs_are_read() {
        let text = "class A(B):\n    def __init__(self) -> None: ...\n    @property\n    def a(self) -> int: ...\n    def b(\n        self,\n        c: int = 0,\n    ) -> None: ...\n\
                    class _P:\n    def a(self) -> int: ...\ndef f(x: int, *, y: str = \"\") -> int: ...\ndef _g() -> None: ...\n";
        let found = stubs(text);
        let found: Vec<_> = found
            .iter()
            .map(|(name, place)| (name.as_str(), place.line, place.is_listed))
            .collect();
        assert_eq!(
            found,
            [
                ("A", 1, false),
                ("A.a", 4, true),
                ("A.b", 5, true),
                ("_P", 9, false),
                ("f", 11, true)
            ]
        );
        assert!(stubs(text)["A.b"].parameters.contains(&"c".to_owned()));
        assert!(stubs(text)["f"].parameters.contains(&"y".to_owned()));
    }
}
