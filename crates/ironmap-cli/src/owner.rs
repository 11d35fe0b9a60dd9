//! Parses USER:GROUP in the syntax of `chown`.

/// The new owner and group of a file. `None` keeps the old owner or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ownership {
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

impl Ownership {
    /// Parses `USER[:GROUP]`: `ann`, `ann:staff`, `:staff`, `1000:100`. `ann:` means the user ann and the primary group of ann. Names are
    /// looked up on the host.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (user, group) = match text.split_once(':') {
            None => (text, None),
            Some((user, group)) => (user, Some(group)),
        };
        let found = match user {
            "" => None,
            user => Some(find_user(user).ok_or_else(|| format!("invalid user: '{user}'"))?),
        };
        let gid = match (group, found) {
            (None, _) | (Some(""), None) => None,
            (Some(""), Some((_, own))) => {
                Some(own.ok_or_else(|| format!("invalid spec: '{text}'"))?)
            }
            (Some(group), _) => {
                Some(find_group(group).ok_or_else(|| format!("invalid group: '{group}'"))?)
            }
        };
        Ok(Self { uid: found.map(|(uid, _)| uid), gid })
    }
}

/// Returns the ID of a user. If `name` is a name, also returns the ID of the user's group. A name that begins with `+` is always a number.
fn find_user(name: &str) -> Option<(u32, Option<u32>)> {
    if let Some(user) = uzers::get_user_by_name(name) {
        return Some((user.uid(), Some(user.primary_group_id())));
    }
    number(name).map(|uid| (uid, None))
}

fn find_group(name: &str) -> Option<u32> {
    uzers::get_group_by_name(name).map(|group| group.gid()).or_else(|| number(name))
}

/// Parses a numeric ID. The highest number is refused, because it means "no change" in system calls.
fn number(text: &str) -> Option<u32> {
    let number = text.strip_prefix('+').unwrap_or(text).parse().ok();
    number.filter(|number| *number != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_group_may_be_left_out() {
        let parse = |text: &str| Ownership::parse(text).map(|of| (of.uid, of.gid));
        assert_eq!(parse("root"), Ok((Some(0), None)));
        assert_eq!(parse("root:"), Ok((Some(0), Some(0))));
        assert_eq!(parse(":root"), Ok((None, Some(0))));
        assert_eq!(parse("4711:+4712"), Ok((Some(4711), Some(4712))));
        assert_eq!(parse(""), Ok((None, None)));
        assert_eq!(parse(":"), Ok((None, None)));
        for wrong in ["no such user", "root:no such group", "4711:", "4294967295", "-1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
