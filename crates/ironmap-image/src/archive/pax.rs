//! Records of pax headers (POSIX.1-2008, pax), with the keywords of GNU tar and star.

use ironmap::fs::{Timestamp, Xattr};

/// The fields that extended headers set for a member.
#[derive(Clone, Default)]
pub(super) struct Overrides {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) modified: Option<Timestamp>,
    pub(super) accessed: Option<Timestamp>,
    pub(super) xattrs: Vec<Xattr>,
    /// Whether the member has an access control list in text form. Such a list is not read.
    pub(super) access_list: bool,
    pub(super) sparse: Sparse,
}

/// The fields that extended headers set for a sparse file of GNU tar.
#[derive(Clone, Default)]
pub(super) struct Sparse {
    /// The real path. If it is set, `path` is only a placeholder for programs that cannot read sparse files.
    pub(super) name: Option<Vec<u8>>,
    /// The major version of the format. In version 1.0, the map precedes the content.
    pub(super) major: Option<u32>,
    pub(super) size: Option<u64>,
    /// The offset and length of each range that is not a hole.
    pub(super) map: Option<Vec<(u64, u64)>>,
    /// The offset of a range whose length is in a later record.
    offset: Option<u64>,
}

/// The reason why a record is invalid.
pub(super) type Wrong = &'static str;

/// Parses a value that must be text.
fn parsed<T: std::str::FromStr>(value: &[u8], wrong: Wrong) -> Result<Option<T>, Wrong> {
    if value.is_empty() {
        return Ok(None);
    }
    let text = std::str::from_utf8(value).map_err(|_| wrong)?;
    text.parse().map(Some).map_err(|_| wrong)
}

/// Returns the bytes of a value. An empty value removes an earlier value.
fn bytes(value: &[u8]) -> Option<Vec<u8>> {
    (!value.is_empty()).then(|| value.to_vec())
}

impl Overrides {
    /// Adds the records of a header.
    pub(super) fn add(&mut self, mut records: &[u8]) -> Result<(), Wrong> {
        while !records.is_empty() {
            let (key, value, rest) =
                split(records).ok_or("a record of a pax header has a wrong length")?;
            self.set(key, value)?;
            records = rest;
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Wrong> {
        match key {
            b"path" => self.path = bytes(value),
            b"linkpath" => self.link = bytes(value),
            b"size" => self.size = parsed(value, "the size is not a number")?,
            b"uid" => self.uid = parsed(value, "the owner is not a 32-bit number")?,
            b"gid" => self.gid = parsed(value, "the group is not a 32-bit number")?,
            b"mtime" => self.modified = time(value)?,
            b"atime" => self.accessed = time(value)?,
            b"RHT.security.selinux" => {
                self.set_xattr(b"security.selinux", [value, &[0]].concat());
            }
            b"SCHILY.acl.access" | b"SCHILY.acl.default" => self.access_list = true,
            b"GNU.sparse.name" => self.sparse.name = bytes(value),
            b"GNU.sparse.major" => self.sparse.major = parsed(value, WRONG_SPARSE)?,
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => {
                self.sparse.size = parsed(value, WRONG_SPARSE)?;
            }
            b"GNU.sparse.offset" => self.sparse.offset = parsed(value, WRONG_SPARSE)?,
            b"GNU.sparse.numbytes" => {
                let len = parsed(value, WRONG_SPARSE)?.ok_or(WRONG_SPARSE)?;
                let offset = self.sparse.offset.take().ok_or(WRONG_SPARSE)?;
                self.sparse.map.get_or_insert_default().push((offset, len));
            }
            b"GNU.sparse.map" => self.sparse.map = Some(map(value)?),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.set_xattr(&decoded(name), value.to_vec());
                }
            }
        }
        Ok(())
    }

    fn set_xattr(&mut self, name: &[u8], value: Vec<u8>) {
        self.xattrs.retain(|xattr| xattr.name != name);
        self.xattrs.push(Xattr { name: name.to_vec(), value });
    }
}

/// Decodes the name of an extended attribute. GNU tar writes `=` as `%3D`, because `=` ends a keyword, and writes `%` as `%25`.
fn decoded(name: &[u8]) -> Vec<u8> {
    let (mut decoded, mut rest) = (Vec::with_capacity(name.len()), name);
    while let Some(first) = rest.first() {
        let (byte, len) = match rest.get(..3) {
            Some(b"%25") => (b'%', 3),
            Some(b"%3D") => (b'=', 3),
            _ => (*first, 1),
        };
        decoded.push(byte);
        rest = &rest[len..];
    }
    decoded
}

const WRONG_SPARSE: Wrong = "the map of a sparse file is wrong";

/// Splits off the first record, `LENGTH KEY=VALUE\n`. The length counts all bytes of the record, including its own digits.
fn split(records: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = records.iter().take(20).position(|byte| *byte == b' ')?;
    let len: usize = std::str::from_utf8(&records[..space]).ok()?.parse().ok()?;
    let body = records.get(space + 1..len)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|byte| *byte == b'=')?;
    Some((&body[..equals], &body[equals + 1..], &records[len..]))
}

fn map(value: &[u8]) -> Result<Vec<(u64, u64)>, Wrong> {
    if value.is_empty() {
        return Ok(Vec::new());
    }
    let numbers = value.split(|byte| *byte == b',');
    let numbers = numbers.map(|number| parsed(number, WRONG_SPARSE)?.ok_or(WRONG_SPARSE));
    let numbers = numbers.collect::<Result<Vec<u64>, Wrong>>()?;
    let (pairs, rest) = numbers.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(WRONG_SPARSE);
    }
    Ok(pairs.iter().map(|[offset, len]| (*offset, *len)).collect())
}

/// Parses seconds since 1970 with any number of decimals. Digits below a nanosecond are dropped.
fn time(value: &[u8]) -> Result<Option<Timestamp>, Wrong> {
    const WRONG: Wrong = "a time is not a number of seconds";
    let Some(text) = parsed::<String>(value, WRONG)? else { return Ok(None) };
    let (whole, decimals) = text.split_once('.').unwrap_or((&text, ""));
    let seconds: i64 = whole.parse().map_err(|_| WRONG)?;
    if !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(WRONG);
    }
    let digits = decimals.bytes().chain(std::iter::repeat(b'0')).take(9);
    let nanoseconds = digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'));
    // In the text of a negative time, the decimals count away from zero. In a timestamp, the nanoseconds always count upwards.
    if whole.starts_with('-') && nanoseconds > 0 {
        let seconds = seconds.checked_sub(1).ok_or(WRONG)?;
        return Ok(Some(Timestamp { seconds, nanoseconds: 1_000_000_000 - nanoseconds }));
    }
    Ok(Some(Timestamp { seconds, nanoseconds }))
}

/// Appends a record.
pub(crate) fn push(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    // The length includes its own digits.
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    records.extend_from_slice(len.to_string().as_bytes());
    records.extend([b" ", key, b"=", value, b"\n"].into_iter().flatten());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value may contain line breaks. The length of a record counts its own digits, even if this makes the length one digit longer.
    #[test]
    fn records_are_read_as_they_are_written() {
        for len in [0, 1, 2, 70, 71, 72, 73, 74, 75, 76, 77, 78, 79, 80, 960, 970, 979, 980] {
            let mut records = Vec::new();
            let value = vec![b'\n'; len];
            push(&mut records, b"SCHILY.xattr.user.a", &value);
            push(&mut records, b"uid", b"7");
            let mut found = Overrides::default();
            found.add(&records).unwrap();
            assert_eq!((found.xattrs[0].value.clone(), found.uid), (value, Some(7)), "{len}");
        }
    }

    #[test]
    fn times_before_1970_count_their_decimals_away_from_zero() {
        let at = |seconds, nanoseconds| Ok(Some(Timestamp { seconds, nanoseconds }));
        assert_eq!(time(b"12"), at(12, 0));
        assert_eq!(time(b"12.0000000019"), at(12, 1));
        assert_eq!(time(b"-1.25"), at(-2, 750_000_000));
        assert_eq!(time(b"-0.5"), at(-1, 500_000_000));
        for wrong in [&b"x"[..], b"1.-2", b"99999999999999999999", b"-9223372036854775808.5"] {
            assert!(time(wrong).is_err());
        }
    }

    #[test]
    fn wrong_records_are_errors() {
        for wrong in [
            &b"5 a=b"[..],
            b"99 a=b\n",
            b"0 a=b\n",
            b"2 a=b\n",
            b"x a=b\n",
            b"6 size\n",
            b"11 size=-1\n",
            b"21 GNU.sparse.map=1\n",
        ] {
            assert!(Overrides::default().add(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }
}
