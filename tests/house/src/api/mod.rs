//! Checks docs/api.toml, the table of all operations, against the functions of the Rust, C and Python interfaces. These interfaces are the
//! doors.

// The tests of the C library include this file too.
pub(crate) mod c_header;
mod doors;
mod table;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use self::c_header::{Function, Header};
use self::doors::Functions;
use self::table::{Door, Operation, PATH, Source};

/// A violation: the file, the line and the text.
pub(super) type Finding = (String, usize, String);

/// Compares the table of operations with the functions of the interfaces. `sources` are all Rust sources.
pub(super) fn check(sources: &[PathBuf]) -> io::Result<Vec<Finding>> {
    let source = Source::read()?;
    let (header, path) = doors::header()?;
    let mut found = check_entries(&source);
    found.extend(check_kinds(&source, &doors::kinds()?));
    for (door, functions) in [
        (Door::Rust, doors::of_rust(sources)?),
        (Door::C, doors::of_c(&header)),
        (Door::Python, doors::of_python()?),
    ] {
        found.extend(check_names(&source, door, &functions));
    }
    found.extend(check_c(&source, &header, path));
    Ok(found)
}

/// Checks the form of the entries. For each interface, an entry needs either the names of functions or the reason why there is no function.
fn check_entries(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for operation in &source.table.operations {
        let name = operation.name.as_ref();
        let mut report = |what| found.push((PATH.to_owned(), source.line(&operation.name), what));
        for door in Door::ALL {
            let reason = operation.reason(door).is_some_and(|reason| !reason.is_empty());
            if operation.names(door).is_empty() != reason {
                report(format!("\"{name}\" needs either functions or a reason for {door:?}"));
            }
        }
        let functions = operation.names(Door::C).iter().filter(|name| !name.as_ref().contains('('));
        if functions.count() > 1 {
            report(format!("\"{name}\" has several C functions: make an entry of each"));
        }
        let errors = operation.errors.as_ref();
        if !errors.is_sorted_by(|a, b| a < b) {
            report(format!("the errors of \"{name}\" are not sorted"));
        }
        for error in errors.iter().filter(|error| !is_errno(error)) {
            report(format!("{error} is not an errno"));
        }
        for argument in
            operation.arguments.iter().filter(|argument| !argument.as_ref().contains(": "))
        {
            report(format!(
                "the argument \"{}\" has no meaning: write \"name: meaning\"",
                argument.as_ref()
            ));
        }
    }
    for exception in
        source.table.exceptions.iter().filter(|exception| exception.reason.as_ref().is_empty())
    {
        found.push((
            PATH.to_owned(),
            source.line(&exception.reason),
            "an exception without a reason".to_owned(),
        ));
    }
    found
}

fn is_errno(name: &str) -> bool {
    name.starts_with('E')
        && name.chars().all(|char| char.is_ascii_uppercase() || char.is_ascii_digit())
}

/// Compares the kinds of errors and their errnos in the table with those of the library.
fn check_kinds(source: &Source, kinds: &[(String, String, usize)]) -> Vec<Finding> {
    let listed = &source.table.kinds;
    let same =
        |kind: &str, errno: &str| listed.get(kind).is_some_and(|listed| listed.as_ref() == errno);
    let missing = kinds.iter().filter(|(kind, errno, _)| !same(kind, errno));
    let missing = missing.map(|(kind, errno, line)| {
        (doors::ERROR.to_owned(), *line, format!("{PATH} lacks {kind} = \"{errno}\""))
    });
    let unknown =
        listed.iter().filter(|(listed, _)| !kinds.iter().any(|(kind, ..)| kind == *listed));
    let unknown = unknown.map(|(kind, errno)| {
        (PATH.to_owned(), source.line(errno), format!("ErrorKind has no {kind}"))
    });
    missing.chain(unknown).collect()
}

/// Compares the names that the table of operations lists for an interface with the functions of this interface. In the table,
/// `name(argument)` lists one argument of a function. Another entry may list the same function.
fn check_names(source: &Source, door: Door, functions: &Functions) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut listed = BTreeMap::new();
    let table = &source.table;
    let names = table.operations.iter().flat_map(|operation| operation.names(door));
    let names = names.chain(table.exceptions.iter().flat_map(|exception| exception.names(door)));
    for name in names {
        let line = source.line(name);
        let mut report = |what| found.push((PATH.to_owned(), line, what));
        let name = name.as_ref().as_str();
        let (of, argument) = match name.strip_suffix(')').and_then(|name| name.split_once('(')) {
            Some((of, argument)) => (of, Some(argument)),
            None => (name, None),
        };
        let Some(function) = functions.get(of) else {
            report(format!("{door:?} has no {of}"));
            continue;
        };
        match argument {
            Some(argument) if !function.parameters.iter().any(|name| name == argument) => {
                report(format!(
                    "{of} has no argument {argument}: {}:{}",
                    function.file, function.line
                ));
            }
            Some(_) => {}
            None if !function.is_listed => {}
            None => {
                if let Some(first) = listed.insert(of, line) {
                    report(format!("{of} is in line {first} too"));
                }
            }
        }
    }
    let missing = functions
        .iter()
        .filter(|(name, place)| place.is_listed && !listed.contains_key(name.as_str()));
    found.extend(
        missing
            .map(|(name, place)| (place.file.clone(), place.line, format!("{PATH} lacks {name}"))),
    );
    found
}

/// Compares the errors and arguments of operations with the header.
fn check_c(source: &Source, header: &Header, path: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    for function in &header.functions {
        for name in function.references().iter().filter(|name| header.function(name).is_none()) {
            found.push((
                path.to_owned(),
                function.line,
                format!("the comment of {} names {name}, which does not exist", function.name),
            ));
        }
    }
    for operation in &source.table.operations {
        let function =
            operation.names(Door::C).first().and_then(|name| header.function(name.as_ref()));
        let Some(function) = function else { continue };
        let listed = operation.errors.as_ref();
        let stated = header.errors(function);
        let more = listed.iter().filter(|error| !stated.contains(error.as_str()));
        let line = source.line(&operation.errors);
        found.extend(more.map(|error| {
            (
                PATH.to_owned(),
                line,
                format!(
                    "the comment of {} has no {error}: {path}:{}",
                    function.name, function.line
                ),
            )
        }));
        let less = stated.iter().filter(|error| !listed.iter().any(|listed| listed == *error));
        found.extend(less.map(|error| {
            (
                path.to_owned(),
                function.line,
                format!("{} returns {error}, which {PATH}:{line} lacks", function.name),
            )
        }));
        found.extend(check_arguments(source, operation, function, path));
    }
    found
}

/// Compares the arguments of an operation with the parameters of its C function. The order is the same. The table omits the handle of the
/// call, the handle that the call makes, and the parameters in `c_parameters`.
fn check_arguments(
    source: &Source,
    operation: &Operation,
    function: &Function,
    path: &str,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut rest = function.parameters.iter().peekable();
    let mut left_out = Vec::new();
    for argument in &operation.arguments {
        let name = argument.as_ref().split(':').next().unwrap_or_default();
        let passed = rest.clone().take_while(|parameter| parameter.name != name).count();
        if passed == rest.len() {
            let what =
                format!("{} has no argument {name} here: {path}:{}", function.name, function.line);
            found.push((PATH.to_owned(), source.line(argument), what));
        } else {
            left_out.extend(rest.by_ref().take(passed));
            rest.next();
        }
    }
    let may_be_left_out = |name: &str, text: &str| {
        let is_first = function.parameters.first().is_some_and(|first| first.name == name);
        let is_handle = text.starts_with("struct ") && !text.contains("**") && is_first;
        is_handle
            || (text.starts_with("struct ") && text.contains("**"))
            || source.table.c_parameters.contains_key(name)
    };
    let missing = left_out
        .into_iter()
        .chain(rest)
        .filter(|parameter| !may_be_left_out(&parameter.name, &parameter.text));
    let line = source.line(&operation.name);
    found.extend(missing.map(|parameter| {
        let what = format!(
            "the argument {} of {} is missing or not in this order: {PATH}:{line}",
            parameter.name, function.name
        );
        (path.to_owned(), function.line, what)
    }));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "// Reads.\n//\n// Returns 0; -EIO.\nint ironmap_f(struct ironmap_a *a, size_t len, uint64_t pos, size_t size);\n\n\
        // Writes. Returns as `ironmap_f`; -EROFS.\nint ironmap_g(struct ironmap_a *a, struct ironmap_b **b);\n";
    const STUBS: &str =
        "class A:\n    def f(self, len: int) -> None: ...\n    def g(self) -> None: ...\n";
    const TABLE: &str = r#"
kinds = { NotFound = "ENOENT" }
c_parameters = { size = "bytes" }

[[operation]]
name = "read"
arguments = ["len: bytes", "pos: position"]
errors = ["EIO"]
no_rust = "a reason"
c = ["ironmap_f"]
python = ["A.f"]

[[operation]]
name = "write"
arguments = []
errors = ["EIO", "EROFS"]
no_rust = "a reason"
c = ["ironmap_g"]
python = ["A.f(len)"]

[[exception]]
reason = "a reason"
python = ["A.g"]
"#;

    /// The findings for the table after a replacement, each as "file:line: text".
    fn findings(from: &str, to: &str) -> Vec<String> {
        assert!(TABLE.contains(from), "{from}");
        let source = Source::parse(TABLE.replacen(from, to, 1)).unwrap();
        let header = Header::parse(HEADER);
        let mut found = check_entries(&source);
        found.extend(check_kinds(&source, &[("NotFound".to_owned(), "ENOENT".to_owned(), 7)]));
        found.extend(check_names(&source, Door::C, &doors::of_c(&header)));
        found.extend(check_names(&source, Door::Python, &doors::stubs(STUBS)));
        found.extend(check_c(&source, &header, "x.h"));
        found.into_iter().map(|(file, line, what)| format!("{file}:{line}: {what}")).collect()
    }

    #[test]
    fn a_table_that_equals_the_doors_has_no_findings() {
        assert_eq!(findings("", ""), [""; 0]);
    }

    /// The table lists each function exactly once, and each listed function exists.
    #[test]
    fn names_are_compared_in_both_directions() {
        let lost = findings("c = [\"ironmap_g\"]", "no_c = \"a reason\"");
        assert_eq!(
            lost,
            ["crates/ironmap-capi/include/ironmap.h:7: docs/api.toml lacks ironmap_g"]
        );
        let unknown = findings("\"A.g\"", "\"A.g\", \"A.h\"");
        assert_eq!(unknown, ["docs/api.toml:23: Python has no A.h"]);
        let twice = findings("A.f(len)", "A.f");
        assert_eq!(twice, ["docs/api.toml:19: A.f is in line 11 too"]);
        let argument = findings("A.f(len)", "A.f(size)");
        assert_eq!(argument.len(), 1, "{argument:?}");
        let neither = findings("no_rust = \"a reason\"\nc", "c");
        assert_eq!(
            neither,
            ["docs/api.toml:6: \"read\" needs either functions or a reason for Rust"]
        );
    }

    /// The table and the comment of the C function list the same errors. Errors of other functions to which the comment refers are
    /// included.
    #[test]
    fn errors_are_compared_in_both_directions() {
        let less = findings("[\"EIO\", \"EROFS\"]", "[\"EROFS\"]");
        assert_eq!(less, ["x.h:7: ironmap_g returns EIO, which docs/api.toml:16 lacks"]);
        let more = findings("[\"EIO\"]", "[\"EIO\", \"EPERM\"]");
        assert_eq!(more, ["docs/api.toml:8: the comment of ironmap_f has no EPERM: x.h:4"]);
        let kind = findings("NotFound = \"ENOENT\"", "NotFound = \"EIO\"");
        assert_eq!(kind, ["src/error.rs:7: docs/api.toml lacks NotFound = \"ENOENT\""]);
    }

    /// Arguments have the names and the order of the parameters. No parameter is missing, except for handles and `c_parameters`.
    #[test]
    fn arguments_are_compared_with_the_prototype() {
        let unknown = findings("\"pos: position\"", "\"position: position\"");
        assert_eq!(unknown.len(), 2, "{unknown:?}");
        let order =
            findings("\"len: bytes\", \"pos: position\"", "\"pos: position\", \"len: bytes\"");
        assert_eq!(order.len(), 2, "{order:?}");
        let lost = findings(", \"pos: position\"", "");
        let what = "the argument pos of ironmap_f is missing or not in this order: docs/api.toml:6";
        assert_eq!(lost, [format!("x.h:4: {what}")]);
    }
}
