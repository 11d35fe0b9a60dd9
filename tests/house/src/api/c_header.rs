//! Reads the C header: its functions and structures with their comments. The tests of the C library include this file.
//!
//! cbindgen writes the header, so its form is known: an empty line separates two items, and the comment of an item stands directly above it.
#![allow(
    dead_code,
    reason = "the check of the table and the tests of the C library each use a part of it"
)]

use std::collections::BTreeSet;

/// The prefix of all names of the library.
const PREFIX: &str = "ironmap_";

/// The beginning of a paragraph about the duties of the caller.
pub(crate) const REQUIRES: &str = "Requires:";

pub(crate) struct Header {
    pub(crate) functions: Vec<Function>,
    pub(crate) structures: Vec<Structure>,
}

pub(crate) struct Function {
    pub(crate) name: String,
    /// The line of the prototype, counted from 1.
    pub(crate) line: usize,
    /// The paragraphs of the comment, each without line breaks.
    pub(crate) comment: Vec<String>,
    /// The type of the result.
    pub(crate) result: String,
    pub(crate) parameters: Vec<Parameter>,
}

pub(crate) struct Parameter {
    pub(crate) name: String,
    /// The type and the name, as in the header.
    pub(crate) text: String,
}

pub(crate) struct Structure {
    pub(crate) name: String,
    pub(crate) comment: Vec<String>,
    /// The definition, as in the header. It is empty for a handle.
    pub(crate) definition: Vec<String>,
}

impl Header {
    pub(crate) fn parse(header: &str) -> Self {
        let (mut functions, mut structures) = (Vec::new(), Vec::new());
        let mut lines = (1..).zip(header.lines()).peekable();
        while lines.peek().is_some() {
            let item: Vec<_> = lines.by_ref().take_while(|(_, text)| !text.is_empty()).collect();
            let comment = item.iter().take_while(|(_, text)| text.starts_with("//")).count();
            let (comment, code) = item.split_at(comment);
            let Some((line, first)) = code.first() else { continue };
            let comment = paragraphs(comment.iter().map(|(_, text)| *text));
            if let Some(rest) = first.strip_prefix("struct ") {
                let name = rest.trim_end_matches([' ', '{', ';']).to_owned();
                let definition = match first.ends_with('{') {
                    true => code.iter().map(|(_, text)| (*text).to_owned()).collect(),
                    false => Vec::new(),
                };
                structures.push(Structure { name, comment, definition });
            } else if !first.starts_with(['#', '}', ' ']) {
                let code: Vec<_> = code.iter().map(|(_, text)| text.trim()).collect();
                functions.extend(function(*line, &code.join(" "), comment));
            }
        }
        Self { functions, structures }
    }

    pub(crate) fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.name == name)
    }

    /// The errnos of a function. They are in its comment, and in the comments of the functions that its comment refers to.
    pub(crate) fn errors<'a>(&'a self, function: &'a Function) -> BTreeSet<&'a str> {
        let (mut found, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut next = vec![function];
        while let Some(function) = next.pop() {
            if seen.insert(&function.name) {
                for paragraph in function.text() {
                    found.extend(errnos(paragraph));
                    next.extend(
                        references(paragraph).into_iter().filter_map(|name| self.function(name)),
                    );
                }
            }
        }
        found
    }
}

impl Function {
    /// The comment without the duties of the caller.
    pub(crate) fn text(&self) -> impl Iterator<Item = &str> {
        self.comment.iter().map(String::as_str).filter(|text| !text.starts_with(REQUIRES))
    }

    /// The functions whose errors the comment refers to.
    pub(crate) fn references(&self) -> Vec<&str> {
        self.text().flat_map(references).collect()
    }
}

/// A function from its declaration, such as `int name(type argument);`.
fn function(line: usize, code: &str, comment: Vec<String>) -> Option<Function> {
    let (head, rest) = code.split_once('(')?;
    let name = head.rsplit([' ', '*']).next()?;
    let result = head.strip_suffix(name)?.trim_end().to_owned();
    let list = rest.strip_suffix(");")?;
    let parameters = match list {
        "void" => Vec::new(),
        _ => split(list).into_iter().map(parameter).collect(),
    };
    let name = name.to_owned();
    name.starts_with(PREFIX).then_some(Function { name, line, comment, result, parameters })
}

/// Splits a list of parameters at its commas, except for commas in the lists of function pointers.
fn split(list: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    let at_top = |char: char| {
        match char {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        char == ',' && depth == 0
    };
    list.split(at_top).map(str::trim).collect()
}

fn parameter(text: &str) -> Parameter {
    // A function pointer has its name in the first parentheses.
    let declared = match text.split_once("(*") {
        Some((_, rest)) => rest.split(')').next().unwrap_or_default(),
        None => text,
    };
    let name = declared.rsplit([' ', '*']).next().unwrap_or_default().to_owned();
    Parameter { name, text: text.to_owned() }
}

/// The paragraphs of comment lines. An empty comment line separates two paragraphs.
fn paragraphs<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let lines: Vec<_> = lines.map(|line| line.trim_start_matches('/').trim()).collect();
    let paragraphs = lines.split(|line| line.is_empty()).map(|lines| lines.join(" "));
    paragraphs.filter(|text| !text.is_empty()).collect()
}

/// The errnos in a text. They have a minus sign there.
fn errnos(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|char: char| !char.is_ascii_alphanumeric() && char != '-');
    let found = words.filter_map(|word| word.strip_prefix('-'));
    found.filter(|name| name.starts_with('E') && *name == name.to_uppercase())
}

/// The functions that a comment names in "as `a` and `b`", "as `a`, `b`" and "errors of `a`".
fn references(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for opening in [" as `", "errors of `"] {
        for (at, _) in text.match_indices(opening) {
            let mut rest = &text[at + opening.len()..];
            while let Some((name, after)) =
                rest.split_once('`').filter(|(name, _)| name.starts_with(PREFIX))
            {
                found.push(name);
                let next = [" and `", ", `"].iter().find_map(|mark| after.strip_prefix(mark));
                let Some(next) = next else { break };
                rest = next;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "#ifndef A\n#define A\n\n// A handle.\nstruct ironmap_a;\n\n// Pairs.\nstruct ironmap_b {\n    int x;\n};\n\n\
        // Reads.\n//\n// Returns 0; -EIO; -E2BIG, and the errors of\n// `ironmap_g`.\n//\n// Requires:\n// -EPERM is not read here.\n\
        ptrdiff_t ironmap_f(struct ironmap_a *a,\n                    int (*found)(void *arg, size_t len),\n                    const void *data);\n\n\
        // Version.\nconst char *ironmap_g(void);\n\n// Like it. Returns as `ironmap_g` and `ironmap_f`.\nint ironmap_h(int);\n\n#endif\n";

    /// The parts of an item are found: comment, result, parameters (also pointers to functions), definition.
    #[test]
    fn items_are_read() {
        let header = Header::parse(HEADER);
        let [f, g, _] = &header.functions[..] else { panic!("three functions") };
        let names: Vec<_> = f.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        assert_eq!(
            (f.name.as_str(), f.line, &names[..]),
            ("ironmap_f", 19, &["a", "found", "data"][..])
        );
        assert_eq!(f.comment.len(), 3);
        assert_eq!((f.result.as_str(), g.result.as_str()), ("ptrdiff_t", "const char *"));
        assert_eq!(g.parameters.len(), 0);
        let [a, b] = &header.structures[..] else { panic!("two structures") };
        assert_eq!((a.name.as_str(), a.definition.len()), ("ironmap_a", 0));
        assert_eq!((b.name.as_str(), b.definition.len()), ("ironmap_b", 3));
    }

    /// The errors of a function include those of the functions to which its comment refers.
    #[test]
    fn errors_are_collected_through_references() {
        let header = Header::parse(HEADER);
        let errors =
            |at: usize| header.errors(&header.functions[at]).into_iter().collect::<Vec<_>>();
        assert_eq!(errors(0), ["E2BIG", "EIO"]);
        assert_eq!(errors(1), [""; 0]);
        assert_eq!(errors(2), ["E2BIG", "EIO"]);
        assert_eq!(header.functions[2].references(), ["ironmap_g", "ironmap_f"]);
    }
}
