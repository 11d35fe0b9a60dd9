//! Modes in the syntax of `chmod`: `755`, `u+x,go-w`, `g=u`, `a+X`, `+755`.

const SET_ID: u32 = 0o6000;
const ALL: u32 = 0o7777;

/// The requested change of a mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModeChange(Vec<Step>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    /// The mode bits of the users to which the step applies. 0 means all users. The step then does not change the bits in the umask.
    who: u32,
    how: How,
    what: What,
    /// The set-id bits that the step names. On a directory, the step does not change the other set-id bits.
    named: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Add,
    Remove,
    Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Bits {
        bits: u32,
        /// `X`: execute permission for directories, and for files that some user may already execute.
        search: bool,
    },
    /// Copies the permissions of the user, the group or others. The number is the shift of these three bits in the mode.
    Copy(u32),
}

impl ModeChange {
    /// Parses a MODE argument.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("invalid mode: '{text}'");
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            let bits = octal(text).ok_or_else(wrong)?;
            let named = if text.len() < 5 { bits & SET_ID | !SET_ID } else { !0 };
            let what = What::Bits { bits, search: false };
            return Ok(Self(vec![Step { who: ALL, how: How::Set, what, named }]));
        }
        let mut steps = Vec::new();
        for clause in text.split(',') {
            parse_clause(clause, &mut steps).ok_or_else(wrong)?;
        }
        Ok(Self(steps))
    }

    /// Applies the change to `mode` and returns the new mode. Both modes are the lower twelve bits.
    pub(crate) fn apply(&self, mode: u32, directory: bool, umask: u32) -> u32 {
        self.0.iter().fold(mode, |mode, step| step.apply(mode, directory, umask))
    }
}

impl Step {
    fn apply(&self, mode: u32, directory: bool, umask: u32) -> u32 {
        let kept = if directory { SET_ID & !self.named } else { 0 };
        let bits = match self.what {
            What::Copy(shift) => (mode >> shift & 7) * 0o111,
            What::Bits { bits, search } => {
                let executable = search && (directory || mode & 0o111 != 0);
                bits | if executable { 0o111 } else { 0 }
            }
        };
        let who = if self.who == 0 { !umask } else { self.who };
        let bits = bits & who & !kept & ALL;
        match self.how {
            How::Add => mode | bits,
            How::Remove => mode & !bits,
            How::Set => {
                let others = if self.who == 0 { 0 } else { !self.who };
                mode & (others | kept) | bits
            }
        }
    }
}

/// Parses a clause such as `ugo+rwx-s`. Letters for the users come first. One or more operators follow, each with its permissions.
fn parse_clause(clause: &str, steps: &mut Vec<Step>) -> Option<()> {
    let start = clause.find(['+', '-', '='])?;
    let mut who = 0;
    for letter in clause[..start].chars() {
        who |= match letter {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            'a' => ALL,
            _ => return None,
        };
    }
    let mut rest = &clause[start..];
    while let Some(operator) = rest.chars().next() {
        let how = match operator {
            '+' => How::Add,
            '-' => How::Remove,
            _ => How::Set,
        };
        if rest[1..].starts_with(|first: char| first.is_ascii_digit()) {
            // An octal number applies to all users and ignores the umask. It ends the clause.
            let bits = octal(&rest[1..]).filter(|_| who == 0)?;
            let what = What::Bits { bits, search: false };
            steps.push(Step { who: ALL, how, what, named: !0 });
            return Some(());
        }
        let end = rest[1..].find(['+', '-', '=']).map_or(rest.len(), |next| next + 1);
        let what = parse_what(&rest[1..end])?;
        let named = match what {
            What::Bits { bits, .. } if who == 0 => bits,
            What::Bits { bits, .. } => bits & who,
            What::Copy(_) => 0,
        };
        steps.push(Step { who, how, what, named });
        rest = &rest[end..];
    }
    Some(())
}

fn octal(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    u32::from_str_radix(text, 8).ok().filter(|bits| digits && *bits <= ALL)
}

fn parse_what(text: &str) -> Option<What> {
    match text {
        "u" => return Some(What::Copy(6)),
        "g" => return Some(What::Copy(3)),
        "o" => return Some(What::Copy(0)),
        _ => {}
    }
    let (mut bits, mut search) = (0, false);
    for letter in text.chars() {
        match letter {
            'r' => bits |= 0o444,
            'w' => bits |= 0o222,
            'x' => bits |= 0o111,
            's' => bits |= SET_ID,
            't' => bits |= 0o1000,
            'X' => search = true,
            _ => return None,
        }
    }
    Some(What::Bits { bits, search })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected results are those of `chmod` of coreutils 9.1 with umask 022.
    #[test]
    fn modes_change_as_with_chmod() {
        let cases: [(&str, u32, bool, u32); 28] = [
            ("755", 0o4644, false, 0o755),
            ("755", 0o6700, true, 0o6755),
            ("00755", 0o6700, true, 0o755),
            ("2755", 0o4700, true, 0o6755),
            ("u+x", 0o644, false, 0o744),
            ("+x", 0o644, false, 0o755),
            ("+w", 0o444, false, 0o644),
            ("a+w", 0o444, false, 0o666),
            ("go-rwx", 0o777, false, 0o700),
            ("g=u", 0o640, false, 0o660),
            ("u=rwx,go=rx", 0o7000, false, 0o755),
            ("a+X", 0o644, false, 0o644),
            ("a+X", 0o744, false, 0o755),
            ("a+X", 0o600, true, 0o711),
            ("+t", 0o777, true, 0o1777),
            ("u+s", 0o755, false, 0o4755),
            ("g+s", 0o755, true, 0o2755),
            ("=r", 0o2755, true, 0o2444),
            ("g=", 0o2775, true, 0o2705),
            ("g=", 0o2775, false, 0o705),
            ("u=rw+x-w", 0o000, false, 0o500),
            ("=4755", 0o644, false, 0o4755),
            ("-022", 0o666, false, 0o644),
            ("+022", 0o644, false, 0o666),
            ("=755", 0o6755, true, 0o755),
            ("+7,u-x", 0o4755, false, 0o4657),
            ("=,+7", 0o4755, false, 0o7),
            ("=+7", 0o4755, false, 0o7),
        ];
        for (text, mode, directory, expected) in cases {
            let changed = ModeChange::parse(text).unwrap().apply(mode, directory, 0o022);
            assert_eq!(changed, expected, "{text} of {mode:o}: {changed:o}");
        }
        for wrong in
            ["", "8", "77777", "u", "z+x", "u+z", "u+x,", "+ur", "u+7", "+7+x", "+8", "+77777"]
        {
            assert!(ModeChange::parse(wrong).is_err(), "{wrong}");
        }
    }
}
