//! Maps the owners of source files to the owners of files in a new image.

use std::collections::HashMap;
use std::path::Path;

use crate::failure::Failure;

/// The owners of copied files, if they differ from the owners of the source files.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    all: Option<(u32, u32)>,
    users: HashMap<u32, u32>,
    groups: HashMap<u32, u32>,
}

impl Owners {
    /// Creates the mapping. `all` is one owner for all files. `map` is a file with maps of users and groups; it is ignored if `all` is
    /// given.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if a line is not `UID:GID UID:GID`.
    pub fn new(all: Option<(u32, u32)>, map: Option<&Path>) -> Result<Self, Failure> {
        let mut owners = Self { all, ..Self::default() };
        let Some(path) = map else { return Ok(owners) };
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| Failure::host(path.display(), error))?;
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            if !line.trim().is_empty() && owners.add(line).is_none() {
                let (path, number) = (path.display(), number + 1);
                let what = "does not have the form FROM-UID:FROM-GID TO-UID:TO-GID, or contradicts another line";
                return Err(Failure::usage(format!("{path}: line {number} {what}")));
            }
        }
        Ok(owners)
    }

    /// Adds a line. Returns `None` if the line is invalid or contradicts an earlier line.
    fn add(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_whitespace();
        let (from, to) = (pair(words.next()?)?, pair(words.next()?)?);
        if words.next().is_some() {
            return None;
        }
        for (map, from, to) in [(&mut self.users, from.0, to.0), (&mut self.groups, from.1, to.1)] {
            let (Some(from), Some(to)) = (from, to) else {
                // In a line such as `5: 7:`, both groups are missing, so the line maps only users. If only one of the two groups (or users)
                // is missing, the line is invalid.
                if from != to {
                    return None;
                }
                continue;
            };
            if *map.entry(from).or_insert(to) != to {
                return None;
            }
        }
        Some(())
    }

    /// Maps the owner and group of a source to those of its copy.
    pub fn of(&self, uid: u32, gid: u32) -> (u32, u32) {
        self.all.unwrap_or_else(|| {
            let to = |map: &HashMap<u32, u32>, id| map.get(&id).copied().unwrap_or(id);
            (to(&self.users, uid), to(&self.groups, gid))
        })
    }
}

/// Parses `UID:GID`. Both numbers may be empty.
fn pair(word: &str) -> Option<(Option<u32>, Option<u32>)> {
    let (user, group) = word.split_once(':')?;
    let number = |text: &str| match text {
        "" => Some(None),
        text => text.parse().ok().map(Some),
    };
    Some((number(user)?, number(group)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_mapped_each_by_itself() {
        let mut owners = Owners::default();
        for line in ["1000:1000 0:0", "1001:100 5:6", "7: 8:", ":9 :10"] {
            assert!(owners.add(line).is_some(), "{line}");
        }
        assert_eq!(owners.of(1000, 100), (0, 6));
        assert_eq!(owners.of(7, 9), (8, 10));
        assert_eq!(owners.of(2, 3), (2, 3));
        for wrong in ["1", "1:2", "1:2 3", "a:b 1:2", "1:2 3:4 5", "1000:5 1:5", "1: :2"] {
            assert!(owners.add(wrong).is_none(), "{wrong}");
        }
        owners.all = Some((3, 4));
        assert_eq!(owners.of(1000, 1), (3, 4));
    }
}
