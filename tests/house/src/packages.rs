//! Checks the files in the packages for the registry. `./x package` builds the crates from these files only.

use std::path::Path;
use std::process::Command;
use std::{fs, io};

/// A crate that is published as a package. The lists name the files that the package must contain, and the files and folders that it may
/// contain. The fio engine has no package, because it is under the GPL.
struct Package {
    name: &'static str,
    folder: &'static str,
    needs: &'static [&'static str],
    may: &'static [&'static str],
}

const PACKAGES: [Package; 6] = [
    Package {
        name: "ironmap",
        folder: ".",
        needs: &["src/lib.rs", "README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"],
        may: &["src/", "README.md", "CHANGELOG.md", "LICENSE-"],
    },
    Package {
        name: "ironmap-async",
        folder: "crates/ironmap-async",
        needs: &["src/lib.rs", "LICENSE-MIT", "LICENSE-APACHE"],
        may: &["src/", "LICENSE-"],
    },
    Package {
        name: "ironmap-object-store",
        folder: "crates/ironmap-object-store",
        needs: &["src/lib.rs", "LICENSE-MIT", "LICENSE-APACHE"],
        may: &["src/", "LICENSE-"],
    },
    Package {
        name: "ironmap-load",
        folder: "crates/ironmap-load",
        needs: &["src/lib.rs", "LICENSE-MIT", "LICENSE-APACHE"],
        may: &["src/", "LICENSE-"],
    },
    Package {
        name: "ironmap-image",
        folder: "crates/ironmap-image",
        needs: &["src/lib.rs", "LICENSE-MIT", "LICENSE-APACHE"],
        may: &["src/", "LICENSE-"],
    },
    Package {
        name: "ironmap-cli",
        folder: "crates/ironmap-cli",
        needs: &["src/main.rs", "README.md", "LICENSE-MIT", "LICENSE-APACHE"],
        may: &["src/", "README.md", "LICENSE-"],
    },
];

/// The list of the files in the Debian package that contains the pages.
const DEBIAN: &str = "debian/ironmap.install";

/// The file to which a link refers, relative to the root of the repository. The link may include a heading.
pub(super) fn target(page: &str, link: &str) -> String {
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    resolve(folder, link.split('#').next().unwrap_or_default())
}

/// The files that Cargo adds to each package.
const OF_CARGO: [&str; 4] = ["Cargo.toml", "Cargo.toml.orig", "Cargo.lock", ".cargo_vcs_info.json"];

/// The violations of the rules for packages. Each is reported at the manifest that lists the files of the package.
pub(super) fn check() -> io::Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    let metadata = cargo(&["metadata", "--no-deps", "--format-version", "1"])?;
    let published = metadata.matches("\"publish\":null").count();
    if published != PACKAGES.len() {
        let what = format!("{published} crates lack `publish = false`, not {}", PACKAGES.len());
        found.push(("Cargo.toml".to_owned(), what));
    }
    for package in &PACKAGES {
        let list = cargo(&["package", "--allow-dirty", "--list", "-p", package.name])?;
        let what = package.check(&list).into_iter().chain(package.check_licences()?);
        found.extend(what.map(|what| (format!("{}/Cargo.toml", package.folder), what)));
    }
    found.extend(check_debian()?.into_iter().map(|what| (DEBIAN.to_owned(), what)));
    Ok(found)
}

/// The pages in the file list of the Debian package, by their paths in this repository. Other paths in the list begin with usr/.
fn debian_pages(list: &str) -> Vec<String> {
    list.split_whitespace().filter(|path| !path.starts_with("usr/")).map(str::to_owned).collect()
}

/// The links of a page to files that are not in the list. Only links within the repository are considered.
fn missing_links(page: &str, text: &str, listed: &[String]) -> Vec<String> {
    let dir = page.rsplit_once('/').map_or("", |(dir, _)| dir);
    let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let links = links.filter(|link| !link.is_empty() && !link.contains(':'));
    let missing = links.filter(|link| {
        let path = resolve(dir, link);
        let (folder, end) = path.rsplit_once('/').unwrap_or(("", &path));
        let end = end.rsplit_once('.').map_or("", |(_, end)| end);
        !listed.contains(&path) && !listed.contains(&format!("{folder}/*.{end}"))
    });
    missing.map(|link| format!("the Debian package lacks {link}, to which {page} links")).collect()
}

/// The path of a link's target, relative to the root of the repository. `folder` contains the page with the link.
fn resolve(folder: &str, link: &str) -> String {
    let mut path: Vec<_> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            ".." => drop(path.pop()),
            "." => {}
            part => path.push(part),
        }
    }
    path.join("/")
}

/// Reports links in pages of the Debian package whose target page is not in the package.
fn check_debian() -> io::Result<Vec<String>> {
    let listed = debian_pages(&fs::read_to_string(DEBIAN)?);
    let mut pages = Vec::new();
    for page in &listed {
        let Some(folder) = page.strip_suffix("/*.md") else {
            pages.push(page.clone());
            continue;
        };
        for entry in fs::read_dir(folder)? {
            pages.push(entry?.path().display().to_string());
        }
    }
    let mut found = Vec::new();
    for page in pages.iter().filter(|page| page.ends_with(".md")) {
        found.extend(missing_links(page, &fs::read_to_string(page)?, &listed));
    }
    Ok(found)
}

/// Runs cargo with a command that builds nothing, and returns its output.
fn cargo(args: &[&str]) -> io::Result<String> {
    let output = Command::new(env!("CARGO")).args(args).output()?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
    }
}

impl Package {
    /// Compares the files of the package with the required files and the permitted files.
    fn check(&self, list: &str) -> Vec<String> {
        let files: Vec<_> = list.lines().collect();
        let missing = self.needs.iter().filter(|needed| !files.contains(needed));
        let permitted = |file: &str| {
            OF_CARGO.contains(&file) || self.may.iter().any(|prefix| file.starts_with(prefix))
        };
        let more = files.iter().filter(|file| !permitted(file));
        let missing = missing.map(|file| format!("the package of {} lacks {file}", self.name));
        missing
            .chain(more.map(|file| format!("the package of {} contains {file}", self.name)))
            .collect()
    }

    /// Checks that the licence files of a package are equal to those in the root of the repository.
    fn check_licences(&self) -> io::Result<Option<String>> {
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let packed = Path::new(self.folder).join(licence);
            if fs::read(&packed)? != fs::read(licence)? {
                return Ok(Some(format!("{} is not the licence", packed.display())));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If a package lacks a licence, or contains tests or images, this is reported.
    #[test]
    fn a_list_is_checked_in_both_directions() {
        let program = PACKAGES.iter().find(|package| package.name == "ironmap-cli").unwrap();
        let good = "Cargo.toml\nLICENSE-APACHE\nLICENSE-MIT\nREADME.md\nsrc/main.rs\nsrc/cli.rs\n";
        assert_eq!(program.check(good), [""; 0]);
        let lacks = good.replace("LICENSE-MIT\n", "");
        assert_eq!(program.check(&lacks), ["the package of ironmap-cli lacks LICENSE-MIT"]);
        let more = format!("{good}tests/cli/main.rs\n");
        assert_eq!(program.check(&more), ["the package of ironmap-cli contains tests/cli/main.rs"]);
    }

    /// Links in pages of the Debian package must lead to pages in the package. Links to the web and within a page are ignored.
    #[test]
    fn links_of_debian_pages_lead_to_its_pages() {
        let listed = debian_pages("usr/bin/ironmap\ndocs/*.md README.md usr/share/doc/ironmap\n");
        assert_eq!(listed, ["docs/*.md", "README.md"]);
        let page = "[a](docs/CLI.md#x) [b](#here) [c](https://x.org/y) [d](CHANGELOG.md)";
        let lacks = "the Debian package lacks CHANGELOG.md, to which README.md links";
        assert_eq!(missing_links("README.md", page, &listed), [lacks]);
        assert_eq!(
            missing_links("docs/CLI.md", "[a](../README.md) [b](SAFETY.md)", &listed),
            [""; 0]
        );
        let deeper = "[a](../CLI.md) [b](../../README.md) [c](b.md)";
        let lacks = "the Debian package lacks b.md, to which docs/a/a.md links";
        assert_eq!(missing_links("docs/a/a.md", deeper, &listed), [lacks]);
    }
}
