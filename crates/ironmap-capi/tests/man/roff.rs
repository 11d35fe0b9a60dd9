//! Converts text to the source of manual pages.

/// Converts a paragraph of the documentation: code in backquotes becomes bold, or italic if it is one of `arguments`. Each sentence begins
/// a line, as roff expects.
pub(crate) fn paragraph(text: &str, arguments: &[&str]) -> String {
    let mut shown = String::new();
    for (at, part) in text.split('`').enumerate() {
        if at % 2 == 0 {
            shown.push_str(&errnos(part));
        } else {
            shown.push_str(&code(part, arguments));
        }
    }
    let lines = shown.replace(". ", ".\n");
    lines.lines().map(guarded).collect()
}

/// Returns a line that roff does not read as a request.
pub(crate) fn guarded(line: &str) -> String {
    let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
    format!("{guard}{line}\n")
}

/// Converts code, so that its signs (such as the minus sign and the quotation mark) are printed as in ASCII.
pub(crate) fn literal(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    text.replace('^', "\\(ha").replace('~', "\\(ti")
}

fn code(text: &str, arguments: &[&str]) -> String {
    if arguments.contains(&text) {
        return format!("\\fI{}\\fR", literal(text));
    }
    match text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        // The name of a manual page, such as open(2).
        Some((name, section)) if section.len() == 1 => {
            format!("\\fB{}\\fR({section})", literal(name))
        }
        _ if text.starts_with("ironmap_") => format!("\\fB{text}\\fR()"),
        _ => format!("\\fB{}\\fR", literal(text)),
    }
}

/// Converts prose, so that a minus sign at the start of a word (as in the name of an errno) is printed as in ASCII.
fn errnos(text: &str) -> String {
    let mut shown = text.replace('\\', "\\e");
    for opening in [" -", "(-"] {
        shown = shown.replace(opening, &opening.replace('-', "\\-"));
    }
    match shown.strip_prefix('-') {
        Some(rest) => format!("\\-{rest}"),
        None => shown,
    }
}

/// Converts lines, and keeps their line breaks.
pub(crate) fn lines(text: &str) -> String {
    let text: String = text.lines().map(|line| guarded(&literal(line))).collect();
    format!(".P\n.in +4n\n.nf\n{text}.fi\n.in\n")
}
