//! Source packages of the system's own programs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Result, command, has, output, run};

/// The version of the source of an installed package, where there are such packages.
pub(crate) fn version(package: &str) -> Option<String> {
    let query = ["-W", "-f", "${source:Version}", package];
    let version = output(command("dpkg-query").args(query)).ok().filter(|_| has("apt-get"))?;
    (!version.is_empty()).then_some(version)
}

/// Downloads a source package into a directory. The package lists are of its own: the system's stay as they are.
pub(crate) fn download(package: &str, version: &str, dir: &Path, log: &File) -> Result {
    let lists = dir.join("lists");
    let sources = dir.join("lists.d");
    fs::create_dir_all(lists.join("partial"))?;
    fs::create_dir_all(&sources)?;
    for (list, name) in [
        ("sources.list", "main.list"),
        ("sources.list.d/debian.sources", "debian.sources"),
        ("sources.list.d/ubuntu.sources", "ubuntu.sources"),
    ] {
        if let Ok(text) = fs::read_to_string(Path::new("/etc/apt").join(list)) {
            fs::write(sources.join(name), of_source(&text))?;
        }
    }
    let apt_get = |words: &str| {
        let mut command = command("apt-get -q -o Dir::Etc::sourcelist=/dev/null");
        command.args(["-o".into(), format!("Dir::Etc::sourceparts={}", sources.display())]);
        command.args(["-o".into(), format!("Dir::State::lists={}", lists.display())]);
        command.args(["-o".into(), format!("Dir::Cache={}", dir.display())]);
        command.args(["-o", "APT::Sandbox::User="]).args(words.split(' '));
        logged(command.current_dir(dir), log)
    };
    apt_get("update")?;
    apt_get(&format!("source --download-only {package}={version}"))
}

/// Runs a command whose output goes to a log.
pub(crate) fn logged(command: &mut Command, log: &File) -> Result {
    run(command.stdout(log.try_clone()?).stderr(log.try_clone()?))
}

/// The one file of a directory whose name begins and ends so.
pub(crate) fn find(dir: &Path, prefix: &str, suffixes: &[&str]) -> Option<PathBuf> {
    let mut files = fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
    files.find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(prefix) && suffixes.iter().any(|suffix| name.ends_with(suffix))
    })
}

/// The same list, of source packages: of one line for each, or in deb822's form.
fn of_source(list: &str) -> String {
    let lines = list.lines().map(|line| match line.strip_prefix("deb ") {
        Some(rest) => format!("deb-src {rest}\n"),
        None if line.starts_with("Types:") => "Types: deb-src\n".to_owned(),
        None => format!("{line}\n"),
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_become_lists_of_sources() {
        assert_eq!(of_source("# a\ndeb u trixie main\n"), "# a\ndeb-src u trixie main\n");
        assert_eq!(of_source("Types: deb deb-src\nURIs: u\n"), "Types: deb-src\nURIs: u\n");
    }
}
