//! Replies of NBD servers. Some are correct replies to the client's reads, and some are arbitrary.

use arbitrary::Arbitrary;
use ironmap::device::nbd::fuzzing::take_replies;

/// Some reads of the client, and the server's replies to them.
#[derive(Arbitrary, Debug)]
pub struct Replies {
    form: u8,
    most: u16,
    /// The positions and lengths of the reads.
    reads: Vec<(u8, u16)>,
    parts: Vec<Part>,
}

#[derive(Arbitrary, Debug)]
enum Part {
    /// A chunk of the reply to one of the `reads`.
    Chunk { read: u8, flags: u8, kind: Kind, at: i16, len: u16 },
    /// The complete reply to one of the `reads`.
    Simple { read: u8, error: u8, len: u16 },
    Bytes(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
enum Kind {
    None,
    Data,
    Hole,
    Error(u8),
    Other(u16),
}

impl Replies {
    /// Passes the replies to the client.
    pub fn survive(&self) {
        let reads = self.reads.iter().map(|(at, len)| (u64::from(*at) << 9, *len));
        let reads: Vec<_> = reads.collect();
        let mut bytes = Vec::new();
        for part in &self.parts {
            part.put(self.form % 3 == 2, &reads, &mut bytes);
        }
        take_replies(self.form, usize::from(self.most), &reads, &bytes);
    }
}

/// A cookie in the client's format. It consists of a counter and an index.
fn cookie(read: u8) -> [u8; 8] {
    ((u64::from(read) + 1) << 32 | u64::from(read)).to_be_bytes()
}

impl Part {
    fn put(&self, extended: bool, reads: &[(u64, u16)], bytes: &mut Vec<u8>) {
        match self {
            Self::Bytes(any) => bytes.extend(any),
            Self::Simple { read, error, len } => {
                bytes.extend(0x6744_6698_u32.to_be_bytes());
                bytes.extend(u32::from(*error).to_be_bytes());
                bytes.extend(cookie(*read));
                bytes.resize(bytes.len() + usize::from(*len), 5);
            }
            Self::Chunk { read, flags, kind, at, len } => {
                let start = reads.get(usize::from(*read)).map_or(0, |read| read.0);
                let at = start.wrapping_add_signed(i64::from(*at)).to_be_bytes();
                let (kind, content) = match kind {
                    Kind::None => (0, Vec::new()),
                    Kind::Data => (1, [&at[..], &vec![7; usize::from(*len)]].concat()),
                    Kind::Hole => (2, [&at[..], &u32::from(*len).to_be_bytes()].concat()),
                    Kind::Error(number) => {
                        let (number, len) = (u32::from(*number).to_be_bytes(), usize::from(*len));
                        (1 << 15 | 1, [&number[..], &vec![b'e'; len]].concat())
                    }
                    Kind::Other(kind) => (*kind, at.to_vec()),
                };
                let magic: u32 = if extended { 0x6E8A_278C } else { 0x668E_33EF };
                bytes.extend(magic.to_be_bytes());
                bytes.extend(u16::from(*flags).to_be_bytes());
                bytes.extend(kind.to_be_bytes());
                bytes.extend(cookie(*read));
                if extended {
                    bytes.extend(at);
                    bytes.extend((content.len() as u64).to_be_bytes());
                } else {
                    bytes.extend((content.len() as u32).to_be_bytes());
                }
                bytes.extend(content);
            }
        }
    }
}
