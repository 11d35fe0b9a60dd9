//! Tests with valid replies and with replies that violate the protocol. The replies have every form and order, and arrive in pieces of
//! arbitrary length.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice, IoSliceMut};

use super::super::wire::Headers;
use super::*;
use crate::bio::Buffer;

/// A stream whose other end is the test. Each call transfers only a few bytes.
#[derive(Default)]
struct Wire {
    sent: RefCell<Vec<u8>>,
    replies: RefCell<VecDeque<u8>>,
    part: Cell<usize>,
}

impl Stream for Wire {
    fn send(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let all: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        // One call of `send` accepts only a few bytes, so requests are sent in pieces.
        let count = all.len().min(1 + self.part.get() * 7);
        self.sent.borrow_mut().extend(&all[..count]);
        Ok(count)
    }

    fn receive(&self, bufs: &mut [IoSliceMut<'_>], _wait: bool) -> io::Result<usize> {
        let mut replies = self.replies.borrow_mut();
        let mut left = replies.len().min(1 + self.part.get());
        if left == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut count = 0;
        for buf in bufs {
            let now = buf.len().min(left);
            replies.drain(..now).zip(buf.iter_mut()).for_each(|(byte, place)| *place = byte);
            (left, count) = (left - now, count + now);
        }
        Ok(count)
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

/// A request that the test has received.
struct Asked {
    command: u16,
    cookie: u64,
    at: u64,
    len: usize,
    data: Vec<u8>,
}

/// Parses the requests that a connection has sent.
fn requests(headers: Headers, mut bytes: &[u8]) -> Vec<Asked> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let u64_at = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
        let (len, end) = match headers {
            Headers::Extended => (u64_at(24) as usize, 32),
            _ => ((u64_at(20) & 0xFFFF_FFFF) as usize, 28),
        };
        let (command, cookie, at) = (u16_at(6), u64_at(8), u64_at(16));
        let data = if command == Command::Write as u16 { len } else { 0 };
        assert_eq!(u16_at(4) >> 5 & 1 == 1, data > 0 && headers == Headers::Extended);
        let data = bytes[end..end + data].to_vec();
        bytes = &bytes[end + data.len()..];
        found.push(Asked { command, cookie, at, len, data });
    }
    found
}

fn chunk(headers: Headers, asked: &Asked, last: bool, kind: u16, content: &[u8]) -> Vec<u8> {
    let (flags, cookie) = (u16::from(last).to_be_bytes(), asked.cookie.to_be_bytes());
    let kind = kind.to_be_bytes();
    let head = if headers == Headers::Extended {
        let (at, len) = (asked.at.to_be_bytes(), (content.len() as u64).to_be_bytes());
        [&0x6E8A_278C_u32.to_be_bytes()[..], &flags, &kind, &cookie, &at, &len].concat()
    } else {
        let len = (content.len() as u32).to_be_bytes();
        [&0x668E_33EF_u32.to_be_bytes()[..], &flags, &kind, &cookie, &len].concat()
    };
    [head, content.to_vec()].concat()
}

fn simple(asked: &Asked, error: u32, data: &[u8]) -> Vec<u8> {
    let error = error.to_be_bytes();
    [&0x6744_6698_u32.to_be_bytes()[..], &error, &asked.cookie.to_be_bytes(), data].concat()
}

/// Returns the byte at a position on the export. Every third range of 512 bytes is a hole.
fn byte(at: u64) -> u8 {
    if at / 512 % 3 == 2 { 0 } else { (at % 251) as u8 }
}

/// Returns a valid reply as a list of parts in random order. The data of a read are split at random positions.
fn reply(headers: Headers, asked: &Asked, random: &mut Random) -> Vec<Vec<u8>> {
    let is_read = asked.command == Command::Read as u16;
    let data: Vec<u8> = (asked.at..).take(asked.len).map(byte).collect();
    if headers == Headers::Simple {
        return vec![simple(asked, 0, if is_read { &data } else { &[] })];
    }
    if !is_read {
        return match (headers, random.below(2)) {
            (Headers::Structured, 0) => vec![simple(asked, 0, &[])],
            _ => vec![chunk(headers, asked, true, 0, &[])],
        };
    }
    let mut parts = Vec::new();
    let mut start = 0;
    while start < asked.len {
        let here = &data[start..];
        let zeros = here.iter().take_while(|byte| **byte == 0).count();
        let at = (asked.at + start as u64).to_be_bytes();
        if zeros > 1 {
            parts.push((2, [&at[..], &(zeros as u32).to_be_bytes()].concat()));
            start += zeros;
        } else {
            let len = 1 + random.below(here.len().min(900));
            parts.push((1, [&at[..], &here[..len]].concat()));
            start += len;
        }
    }
    for at in (1..parts.len()).rev() {
        parts.swap(at, random.below(at + 1));
    }
    let ends_alone = random.below(2) == 0;
    let count = parts.len();
    let mut chunks: Vec<_> = (1..)
        .zip(parts)
        .map(|(number, (kind, content))| {
            chunk(headers, asked, number == count && !ends_alone, kind, &content)
        })
        .collect();
    if ends_alone {
        chunks.push(chunk(headers, asked, true, 0, &[]));
    }
    chunks
}

fn memory(len: usize, random: &mut Random) -> Memory {
    let at = random.below(len);
    if at == 0 {
        return Memory::Flat(Buffer::from(vec![0xEE; len]));
    }
    Memory::Vectored(vec![Buffer::from(vec![0xEE; at]), Buffer::from(vec![0xEE; len - at])])
}

fn some_requests(random: &mut Random) -> Vec<Request> {
    (0..12)
        .map(|_| {
            let command =
                [Command::Read, Command::Read, Command::Write, Command::Flush][random.below(4)];
            let len = if command == Command::Flush { 0 } else { 1 + random.below(3000) };
            let memory = if len > 0 { memory(len, random) } else { Memory::Vectored(Vec::new()) };
            let nothing = Request::without_data(command);
            Request { at: random.below(10_000) as u64, len: len as u32, memory, ..nothing }
        })
        .collect()
}

/// Sends requests, and returns the parts of all replies in random order. The parts of one reply stay in order.
fn send_all(
    connection: &mut Connection<Wire, usize>,
    headers: Headers,
    random: &mut Random,
) -> Vec<Vec<u8>> {
    for (number, request) in some_requests(random).into_iter().enumerate() {
        connection.push(request, number);
    }
    connection.send().unwrap();
    let asked = requests(headers, &connection.stream.sent.take());
    assert_eq!(asked.len(), 12);
    assert!(asked.iter().all(|asked| asked.data.iter().all(|byte| *byte == 0xEE)));
    let mut queues: Vec<VecDeque<_>> =
        asked.iter().map(|asked| reply(headers, asked, random).into()).collect();
    let mut mixed = Vec::new();
    while !queues.is_empty() {
        let at = random.below(queues.len());
        match queues[at].pop_front() {
            Some(part) => mixed.push(part),
            None => drop(queues.swap_remove(at)),
        }
    }
    mixed
}

const ALL: [Headers; 3] = [Headers::Simple, Headers::Structured, Headers::Extended];

#[test]
fn replies_of_every_form_give_the_data() {
    for seed in 1..400 {
        let mut random = Random(seed);
        let headers = ALL[random.below(3)];
        let mut connection = Connection::new(Wire::default(), headers);
        connection.stream.part.set(random.below(3000));
        for part in send_all(&mut connection, headers, &mut random) {
            connection.stream.replies.borrow_mut().extend(part);
        }
        while connection.receive(false).unwrap() {}
        let mut seen = 0;
        while let Some(Answered { request, result, .. }) = connection.pop() {
            assert_eq!(result, Ok(()), "seed {seed}");
            if request.command == Command::Read {
                let buffers = request.memory.buffers().iter();
                let found: Vec<u8> = buffers.flat_map(|buffer| buffer.iter().copied()).collect();
                assert!((request.at..).zip(found).all(|(at, found)| found == byte(at)));
            }
            seen += 1;
        }
        assert_eq!((seen, connection.in_flight()), (12, 0), "seed {seed}");
    }
}

/// Damaged replies never lose a request. Each request is either answered or sent again later.
#[test]
fn damaged_replies_lose_no_request() {
    let mut refused = 0;
    for seed in 1..3000 {
        let mut random = Random(seed);
        let headers = ALL[random.below(3)];
        let mut connection = Connection::new(Wire::default(), headers);
        connection.stream.part.set(random.below(3000));
        let mut parts = send_all(&mut connection, headers, &mut random);
        match random.below(4) {
            0 => {
                let twice = parts[random.below(parts.len())].clone();
                parts.insert(random.below(parts.len()), twice);
            }
            1 => drop(parts.remove(random.below(parts.len()))),
            _ => {
                for _ in 0..=random.below(3) {
                    let part = random.below(parts.len());
                    let at = random.below(parts[part].len().min(44));
                    parts[part][at] ^= 1 << random.below(8);
                }
            }
        }
        parts.into_iter().for_each(|part| connection.stream.replies.borrow_mut().extend(part));
        let end = loop {
            match connection.receive(false) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(lost) => break Err(lost),
            }
        };
        refused += usize::from(end.is_err());
        let mut numbers: Vec<usize> =
            std::iter::from_fn(|| connection.pop()).map(|answered| answered.tag).collect();
        numbers.extend(connection.into_unanswered().into_iter().map(|(_, number)| number));
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..12), "seed {seed}");
    }
    assert!(refused > 1000, "{refused} were refused");
}

/// If a server violates a rule of the protocol, the error names the rule.
#[test]
fn violated_rules_have_names() {
    let structured = Headers::Structured;
    let data = |at: u64, len: usize| [&at.to_be_bytes()[..], &vec![1; len]].concat();
    let hole = |at: u64, len: u32| [&at.to_be_bytes()[..], &len.to_be_bytes()].concat();
    let other = |asked: &Asked| Asked { cookie: asked.cookie + 1, data: Vec::new(), ..*asked };
    type Reply<'a> = &'a dyn Fn(&Asked) -> Vec<u8>;
    let cases: [(&str, Reply<'_>); 14] = [
        ("magic number", &|_| vec![7; 16]),
        ("no request waits for this reply", &|asked| {
            chunk(structured, &other(asked), true, 0, &[])
        }),
        ("before all data were sent", &|asked| chunk(structured, asked, true, 0, &[])),
        ("before all data were sent", &|asked| chunk(structured, asked, true, 1, &data(4096, 511))),
        ("outside the range of the read", &|asked| {
            chunk(structured, asked, true, 1, &data(4095, 512))
        }),
        ("outside the range of the read", &|asked| {
            chunk(structured, asked, true, 1, &data(4097, 512))
        }),
        ("outside the range of the read", &|asked| {
            chunk(structured, asked, true, 2, &hole(0, 512))
        }),
        ("wrong length", &|asked| chunk(structured, asked, true, 1, &data(4096, 513))),
        ("wrong length", &|asked| chunk(structured, asked, true, 1, &data(4096, 0))),
        ("a hole chunk has a wrong length", &|asked| {
            chunk(structured, asked, true, 2, &hole(4096, u32::MAX))
        }),
        ("the same range twice", &|asked| {
            let first = chunk(structured, asked, false, 1, &data(4096, 300));
            [first, chunk(structured, asked, false, 2, &hole(4395, 10))].concat()
        }),
        ("unknown type", &|asked| chunk(structured, asked, true, 9, &[])),
        ("the error number 0", &|asked| chunk(structured, asked, true, 1 << 15 | 1, &[0; 6])),
        ("a read needs a structured reply", &|asked| simple(asked, 0, &[1; 512])),
    ];
    for (rule, reply) in cases {
        let mut connection = Connection::new(Wire::default(), structured);
        connection.stream.part.set(9000);
        let memory = Memory::Flat(Buffer::from(vec![0; 512]));
        let nothing = Request::without_data(Command::Read);
        connection.push(Request { at: 4096, len: 512, memory, ..nothing }, ());
        connection.send().unwrap();
        let asked = requests(structured, &connection.stream.sent.take());
        connection.stream.replies.borrow_mut().extend(reply(&asked[0]));
        let error = connection.receive(false).unwrap_err().to_string();
        assert!(error.contains(rule), "{rule}: {error}");
        assert_eq!(connection.into_unanswered().len(), 1, "{rule}");
    }
}

/// Sends a request, and receives a reply of one chunk of this kind. `expected` describes the result. `Ok` contains the numbers at the start
/// of the request's memory, or only zeros if the request fails. `Err` contains a part of the text of the connection's error.
#[track_caller]
fn receive_status(
    command: Command,
    (headers, kind): (Headers, u16),
    content: &[u8],
    expected: Result<[u64; 4], &str>,
) {
    let connection = Connection::new(Wire::default(), headers);
    let mut connection = connection.with_allocation(Some(7));
    connection.stream.part.set(9000);
    let len = if command == Command::Read { 8192 } else { 2 * STATUS };
    // The memory already contains a part of an answer that an earlier connection received.
    let memory = Memory::Flat(Buffer::from(vec![0xEE; len]));
    let nothing = Request::without_data(command);
    connection.push(Request { at: 4096, len: 8192, memory, ..nothing }, ());
    connection.send().unwrap();
    let asked = &requests(headers, &connection.stream.sent.take())[0];
    let mut reply = chunk(headers, asked, true, kind, content);
    // If the test expects an error, the bytes of another reply follow, in case the tested reply is too short.
    if expected.is_err() {
        reply.extend([0; 64]);
    }
    connection.stream.replies.borrow_mut().extend(reply);
    let received = loop {
        match connection.receive(false) {
            Ok(true) if expected.is_ok() => {}
            received => break received.map_err(|lost| lost.to_string()),
        }
    };
    match expected {
        Ok(words) => {
            let answered = connection.pop().unwrap();
            let result = if words[0] == 0 { Err(Errno::EINVAL) } else { Ok(()) };
            assert_eq!(answered.result, result, "{content:?}");
            if words[0] == 0 {
                return;
            }
            let Memory::Flat(bytes) = answered.request.memory else { unreachable!() };
            assert_eq!(bytes[..], words.map(u64::to_be_bytes).concat(), "{content:?}");
        }
        Err(rule) => {
            let error = received.unwrap_err();
            assert!(error.contains(rule), "{content:?}: {error}");
            assert_eq!(connection.into_unanswered().len(), 1, "{rule}");
        }
    }
}

/// Extents of block status are stored as lengths and context bits. Replies with 32 bits and replies with 64 bits are stored in the same
/// form, as far as the memory permits. A reply without extents makes the request fail. A reply to a request that was not sent is refused.
#[test]
fn a_status_is_a_list_of_ranges() {
    let structured = |len: u32, bits: u32| [7, len, bits].map(u32::to_be_bytes).concat();
    let extended = |count: u32, len: u64, bits: u64| {
        let [context, count] = [7, count].map(u32::to_be_bytes);
        [&context[..], &count, &len.to_be_bytes(), &bits.to_be_bytes()].concat()
    };
    const ONES: u64 = 0x0101_0101;
    let structured_cases = [
        (structured(4096, 3), Ok([4096, 3, 0, 0])),
        (structured(8192, 0), Ok([8192, 0, 0, 0])),
        ([structured(512, 1), vec![0; 80]].concat(), Ok([0; 4])),
        ([structured(512, 1), vec![1; 8]].concat(), Ok([512, 1, ONES, ONES])),
        // The memory has no space for the third and the later extents.
        ([structured(512, 1), vec![1; 4 << 20]].concat(), Ok([512, 1, ONES, ONES])),
        ([structured(512, 1), vec![1; 80]].concat(), Ok([512, 1, ONES, ONES])),
        ([structured(512, 1), vec![1; 7]].concat(), Err("a wrong length")),
        (structured(0, 0), Ok([0; 4])),
        // The server answers in a metadata context that the client has not requested.
        ([8, 512, 2].map(u32::to_be_bytes).concat(), Ok([0; 4])),
        (structured(1, 0)[..4].to_vec(), Err("a wrong length")),
        (vec![0; 2 << 20], Err("a wrong length")),
    ];
    let asks = Command::BlockStatus;
    for (content, expected) in structured_cases {
        receive_status(asks, (Headers::Structured, 5), &content, expected);
    }
    let other = Err("a request of another type");
    for (command, reply, content, expected) in [
        (asks, (Headers::Structured, 0), Vec::new(), Ok([0; 4])),
        (asks, (Headers::Structured, 1), vec![0; 20], Err("a request that is not a read")),
        (asks, (Headers::Extended, 6), extended(1, 8192, 2), Ok([8192, 2, 0, 0])),
        (asks, (Headers::Extended, 6), extended(1, u64::MAX, 2), Ok([u64::MAX, 2, 0, 0])),
        (Command::Read, (Headers::Structured, 5), structured(512, 0), other),
        (Command::Flush, (Headers::Extended, 6), extended(1, 512, 0), other),
    ] {
        receive_status(command, reply, &content, expected);
    }
}

/// An error in a reply becomes the result of the request. The client still receives the remaining parts of the reply.
#[test]
fn errors_are_given_on() {
    let structured = Headers::Structured;
    let mut connection = Connection::new(Wire::default(), structured);
    connection.stream.part.set(9000);
    let memory = Memory::Flat(Buffer::from(vec![0; 512]));
    let nothing = Request::without_data(Command::Read);
    connection.push(Request { at: 0, len: 512, memory, ..nothing }, ());
    connection.send().unwrap();
    let asked = &requests(structured, &connection.stream.sent.take())[0];
    let content = [&28_u32.to_be_bytes()[..], &4_u16.to_be_bytes(), b"full"].concat();
    let error = chunk(structured, asked, false, 1 << 15 | 1, &content);
    let part = [&0_u64.to_be_bytes()[..], &[1; 100]].concat();
    let last = chunk(structured, asked, true, 1, &part);
    connection.stream.replies.borrow_mut().extend([error, last].concat());
    while connection.receive(false).unwrap() {}
    assert_eq!(connection.pop().unwrap().result, Err(Errno::ENOSPC));
    // An error number that announces the server's shutdown ends the connection, and is not the result of the request.
    connection.push(Request::without_data(Command::Flush), ());
    connection.send().unwrap();
    let asked = &requests(structured, &connection.stream.sent.take())[0];
    connection.stream.replies.borrow_mut().extend(simple(asked, 108, &[]));
    assert!(matches!(connection.receive(false), Err(Lost::Shutdown)));
    assert_eq!(connection.into_unanswered().len(), 1);
}
