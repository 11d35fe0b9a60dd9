//! Checks links in pages. The file and the heading to which a link refers must exist.

use std::fs;
use std::path::Path;

use super::packages::target;

/// The links of a page to files and headings, with their lines. Links to the web are omitted.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(text.lines()).flat_map(|(line, text)| {
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        links.map(move |link| (line, link))
    });
    lines.filter(|(_, link)| !link.is_empty() && !link.contains(':'))
}

/// Reports each link of a page whose file or heading does not exist.
pub(super) fn check(page: &Path, text: &str) -> Vec<(usize, String)> {
    let page = page.display().to_string();
    let dead = links(text).filter(|(_, link)| {
        let file = if link.starts_with('#') { page.clone() } else { target(&page, link) };
        !leads(&file, link)
    });
    dead.map(|(line, link)| (line, format!("a link to nothing: {link}"))).collect()
}

fn leads(file: &str, link: &str) -> bool {
    match link.split_once('#').filter(|_| file.ends_with(".md")) {
        None => Path::new(file).exists(),
        Some((_, heading)) => fs::read_to_string(file)
            .is_ok_and(|text| text.lines().any(|line| anchor(line) == heading)),
    }
}

/// The anchor of a heading: the name that a link to the heading uses.
fn anchor(line: &str) -> String {
    let Some(heading) = line.strip_prefix('#') else { return String::new() };
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|char| char.is_alphanumeric() || " -_".contains(*char));
    kept.map(|char| if char == ' ' { '-' } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_has_a_file_and_a_heading() {
        let text = "[a](../CLI.md) and [b](https://x.org/y)\n[c](#here) [d](x.md#part)";
        assert_eq!(
            links(text).collect::<Vec<_>>(),
            [(1, "../CLI.md"), (2, "#here"), (2, "x.md#part")]
        );
        assert_eq!(target("docs/cli/json.md", "../CLI.md"), "docs/CLI.md");
        assert_eq!(target("docs/cli/json.md", "x.md#part"), "docs/cli/x.md");
        assert_eq!(target("README.md", "docs/CLI.md"), "docs/CLI.md");
        assert_eq!(anchor("### `ls --json`: an array"), "ls---json-an-array");
        assert_eq!(anchor("text"), "");
    }
}
