//! Source packages of the system's own programs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Failure, Result, command, fail, has, output, run, target};

/// The directory of an installed package's source, unpacked and prepared by `prepare` once, or the reason for its lack. The commands of
/// `prepare` write into the log: see [`logged`].
pub(crate) fn source(
    package: &str,
    prepare: impl FnOnce(&Path, &File) -> Result,
) -> Result<PathBuf> {
    let query = ["-W", "-f", "${source:Version}", package];
    let version = output(command("dpkg-query").args(query)).unwrap_or_default();
    if version.is_empty() {
        return fail("no source packages here");
    }
    if !has("apt-get") || !has("dpkg-source") {
        return fail("no source packages here");
    }
    let cache = target(package).join(&version);
    let [source, unfinished] = ["source", "unfinished"].map(|dir| cache.join(dir));
    let attempt = || {
        let _ = fs::remove_dir_all(&unfinished);
        fs::create_dir_all(&cache)?;
        let log = File::create(target(package).join("log"))?;
        download(&format!("{package}={version}"), &cache, &log)?;
        let unpack = "dpkg-source --no-check -x *.dsc unfinished";
        logged(command("sh -c").arg(unpack).current_dir(&cache), &log)?;
        prepare(&unfinished, &log)?;
        Ok::<_, Failure>(fs::rename(&unfinished, &source)?)
    };
    if !source.is_dir() && attempt().is_err() {
        return fail(format!("the source of {package}, {version}, could not be prepared"));
    }
    Ok(source)
}

/// Downloads a source package, `NAME=VERSION`, into a directory. The package lists are of its own: the system's stay as they are.
fn download(package: &str, dir: &Path, log: &File) -> Result {
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
    apt_get(&format!("source --download-only {package}"))
}

/// Runs a command whose output goes to a log.
pub(crate) fn logged(command: &mut Command, log: &File) -> Result {
    run(command.stdout(log.try_clone()?).stderr(log.try_clone()?))
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
