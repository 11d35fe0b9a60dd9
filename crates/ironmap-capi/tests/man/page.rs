//! The manual pages: an overview, and a page for each module with functions.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::c_header::{Function, Header, REQUIRES, Structure};
use crate::roff;

/// The pages and the modules whose functions and structures they describe. The title of a page is the first sentence of the module's
/// documentation.
pub(crate) const GROUPS: [(&str, &[&str]); 11] = [
    ("ironmap_volume", &["volume"]),
    ("ironmap_names", &["names", "stat"]),
    ("ironmap_file", &["file"]),
    ("ironmap_queue", &["queue"]),
    ("ironmap_buffer", &["buffer"]),
    ("ironmap_pool", &["pool"]),
    ("ironmap_directory", &["directory"]),
    ("ironmap_check", &["check"]),
    ("ironmap_disk", &["disk"]),
    ("ironmap_image", &["image"]),
    ("ironmap_failure", &["failure"]),
];

/// The columns of a prototype in the synopsis.
const COLUMNS: usize = 76;

/// All pages, by their file names. `dir` is the directory of the crate.
pub(crate) fn pages(dir: &Path, header: &Header) -> BTreeMap<String, String> {
    let mut pages: BTreeMap<_, _> = GROUPS
        .iter()
        .map(|(name, modules)| {
            let sources: Vec<_> = modules.iter().map(|module| source(dir, module)).collect();
            (format!("{name}.3"), group(name, &sources, header))
        })
        .collect();
    pages.insert("ironmap.3".to_owned(), overview(dir));
    pages
}

fn source(dir: &Path, module: &str) -> String {
    fs::read_to_string(dir.join("src").join(module).with_extension("rs")).unwrap()
}

/// The page of a group of functions.
fn group(name: &str, sources: &[String], header: &Header) -> String {
    let is_here = |begin: &str, name: &str, end: &str| {
        let declaration = format!("{begin} {name}{end}");
        sources.iter().any(|source| source.contains(&declaration))
    };
    let functions: Vec<_> =
        header.functions.iter().filter(|function| is_here("fn", &function.name, "(")).collect();
    let structures = header.structures.iter().filter(|structure| !structure.definition.is_empty());
    let structures: Vec<_> =
        structures.filter(|structure| is_here("pub struct", &structure.name, " ")).collect();
    let text = documentation(&sources[0]);
    let (title, rest) = text[0].split_once('.').unwrap_or((&text[0], ""));

    let mut page = head(name);
    let names: Vec<_> = functions.iter().map(|function| function.name.as_str()).collect();
    let _ = writeln!(page, "{} \\- {}", names.join(", "), lower(title));
    page.push_str(".SH SYNOPSIS\n.nf\n.B #include <ironmap.h>\n");
    for function in &functions {
        let _ = write!(page, ".P\n{}", prototype(function));
    }
    page.push_str(".fi\n.SH DESCRIPTION\n");
    let intro = std::iter::once(rest.trim()).filter(|rest| !rest.is_empty());
    for paragraph in intro.chain(text[1..].iter().map(String::as_str)) {
        let _ = write!(page, ".P\n{}", roff::paragraph(paragraph, &[]));
    }
    functions.iter().for_each(|function| page.push_str(&description(function)));
    if !structures.is_empty() {
        page.push_str(".SH STRUCTURES\n");
        structures.iter().for_each(|structure| page.push_str(&definition(structure)));
    }
    page.push_str(".SH RETURN VALUE\n");
    functions.iter().for_each(|function| page.push_str(&value(function)));
    page.push_str(&errors(&functions, header));
    page.push_str(&see_also(name));
    page
}

/// The overview: the sections of the crate's documentation, and the example.
fn overview(dir: &Path) -> String {
    let mut page = head("ironmap");
    page.push_str("ironmap \\- direct I/O on the files of ext4 and XFS from user space\n");
    page.push_str(".SH SYNOPSIS\n.nf\n.B #include <ironmap.h>\n.P\n");
    page.push_str(
        "\\fBcc\\fR \\fIprogram\\fR.c $(pkg\\-config \\-\\-cflags \\-\\-libs ironmap)\n.fi\n",
    );
    let text = documentation(&source(dir, "lib"));
    let sections = text.iter().skip_while(|paragraph| !paragraph.starts_with("# "));
    for paragraph in sections {
        match paragraph.strip_prefix("# ") {
            Some(heading) => {
                let _ = writeln!(page, ".SH {}", heading.to_uppercase());
            }
            None => {
                let _ = write!(page, ".P\n{}", roff::paragraph(paragraph, &[]));
            }
        }
    }
    let example = fs::read_to_string(dir.join("examples/read.c")).unwrap();
    let _ = write!(page, ".SH EXAMPLES\n{}", roff::lines(&example));
    page.push_str(&see_also("ironmap"));
    page
}

/// The beginning of a page, up to the section NAME.
fn head(name: &str) -> String {
    let (title, version) = (name.to_uppercase(), env!("CARGO_PKG_VERSION"));
    format!(
        ".\\\" Made from the documentation of the sources by the test `man` of ironmap-capi.\n.TH {title} 3 \"\" \"ironmap {version}\" \"ironmap\"\n.nh\n.SH NAME\n"
    )
}

/// The paragraphs of the documentation of a module.
fn documentation(source: &str) -> Vec<String> {
    let lines: Vec<_> =
        source.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
    let paragraphs = lines.split(|line| line.is_empty()).map(|lines| lines.join(" "));
    paragraphs.filter(|text| !text.is_empty()).collect()
}

fn lower(title: &str) -> String {
    let mut chars = title.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

/// A prototype in lines of the width of a page: bold, with italic names of parameters.
fn prototype(function: &Function) -> String {
    let space = if function.result.ends_with('*') { "" } else { " " };
    let begin = format!("{}{space}{}(", function.result, function.name);
    let (mut shown, mut column) = (format!("\\fB{}", roff::literal(&begin)), begin.len());
    for (at, parameter) in function.parameters.iter().enumerate() {
        if at > 0 && column + parameter.text.len() + 3 > COLUMNS {
            let _ = write!(shown, "\n{}", " ".repeat(8));
            column = 8;
        } else if at > 0 {
            shown.push(' ');
        }
        let text = roff::literal(&parameter.text);
        let italic = format!("\\fI{}\\fB", parameter.name);
        // The name of a parameter is the last word. If the parameter is a pointer to a function, the name is in the first parentheses.
        let named = match text.split_once(&format!("(*{})", parameter.name)) {
            Some((before, after)) => format!("{before}(*{italic}){after}"),
            None => {
                format!("{}{italic}", text.strip_suffix(parameter.name.as_str()).unwrap_or(&text))
            }
        };
        let end = if at + 1 == function.parameters.len() { "" } else { "," };
        let _ = write!(shown, "{named}{end}");
        column += parameter.text.len() + 2;
    }
    if function.parameters.is_empty() {
        shown.push_str("void");
    }
    format!("{shown});\\fR\n")
}

fn arguments(function: &Function) -> Vec<&str> {
    function.parameters.iter().map(|parameter| parameter.name.as_str()).collect()
}

/// Splits a paragraph at the sentence that begins with "Returns".
fn at_return(paragraph: &str) -> Option<(&str, &str)> {
    if paragraph.starts_with("Returns ") {
        return Some(("", paragraph));
    }
    paragraph.find(". Returns ").map(|at| (&paragraph[..=at], &paragraph[at + 2..]))
}

/// The text of a function without its result.
fn description(function: &Function) -> String {
    let mut shown = format!(".SS {}()\n", function.name);
    for paragraph in &function.comment {
        let text = at_return(paragraph).map_or(paragraph.as_str(), |(before, _)| before);
        if !text.is_empty() {
            let text = text.replacen(REQUIRES, "The caller guarantees:", 1);
            let _ = write!(shown, ".P\n{}", roff::paragraph(&text, &arguments(function)));
        }
    }
    shown
}

fn definition(structure: &Structure) -> String {
    let mut shown = format!(".SS struct {}\n", structure.name);
    for paragraph in &structure.comment {
        let _ = write!(shown, ".P\n{}", roff::paragraph(paragraph, &[]));
    }
    let lines: Vec<_> = structure.definition.iter().flat_map(|line| wrapped(line)).collect();
    shown + &roff::lines(&lines.join("\n"))
}

/// A line of a structure. A long comment becomes several lines.
fn wrapped(line: &str) -> Vec<String> {
    let Some((indent, comment)) = line.split_once("// ") else { return vec![line.to_owned()] };
    let begin = format!("{indent}//");
    let mut lines = vec![begin.clone()];
    for word in comment.split(' ') {
        if lines.last().is_some_and(|last| last.len() + word.len() >= COLUMNS) {
            lines.push(begin.clone());
        }
        lines.last_mut().into_iter().for_each(|last| last.extend([" ", word]));
    }
    lines
}

/// The result of a function: from "Returns" to the end of the paragraph, or the first paragraph of a function that only returns a value.
fn value(function: &Function) -> String {
    let stated = function.comment.iter().find_map(|paragraph| at_return(paragraph));
    let text = stated.map_or(function.comment[0].as_str(), |(_, text)| text);
    format!(".TP\n.BR {} ()\n{}", function.name, roff::paragraph(text, &arguments(function)))
}

/// The errnos, each with the functions that return it.
fn errors(functions: &[&Function], header: &Header) -> String {
    let mut by_errno = BTreeMap::<_, Vec<_>>::new();
    for function in functions {
        for errno in header.errors(function) {
            by_errno.entry(errno).or_default().push(format!("\\fB{}\\fR()", function.name));
        }
    }
    if by_errno.is_empty() {
        return String::new();
    }
    let mut shown =
        ".SH ERRORS\nEach error is returned with a minus sign, by these functions:\n".to_owned();
    for (errno, functions) in by_errno {
        let _ = writeln!(shown, ".TP\n.B {errno}\n{}", functions.join(",\n"));
    }
    shown
}

fn see_also(name: &str) -> String {
    let others = std::iter::once("ironmap").chain(GROUPS.iter().map(|(name, _)| *name));
    let others: Vec<_> =
        others.filter(|other| *other != name).map(|other| format!(".BR {other} (3)")).collect();
    format!(".SH SEE ALSO\n{}\n", others.join(",\n"))
}
