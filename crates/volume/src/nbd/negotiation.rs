//! What client and server agree on before requests: which export, and which parts of the protocol.

use std::io::{self, Read, Write};

use super::wire::{
    ALLOCATION, ALLOCATION_ID, MOST, MOST_OPTION, NBD_MAGIC, Number, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, breach, option, option_reply,
};

/// What is offered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) bytes: u64,
    pub(super) sector: u32,
    pub(super) read_only: bool,
}

/// What was agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) structured: bool,
    pub(super) block_status: bool,
}

impl Offer {
    /// Flags, flush, FUA, trim, write zeroes, do not fragment, several connections.
    fn flags(self) -> u16 {
        let always = 1 | 4 | 8 | 32 | 64 | 128 | 256;
        always | if self.read_only { 2 } else { 0 }
    }
}

/// Negotiates; `None` if the client has ended the connection in good order.
pub(super) fn negotiate(
    input: &mut impl Read,
    output: &mut impl Write,
    offer: Offer,
) -> io::Result<Option<Agreed>> {
    let mut hello = Vec::new();
    hello.extend(NBD_MAGIC.to_be_bytes());
    hello.extend(OPTION_MAGIC.to_be_bytes());
    // Fixed newstyle, and no zeroes behind the reply to EXPORT_NAME.
    hello.extend(3u16.to_be_bytes());
    output.write_all(&hello)?;
    output.flush()?;
    let flags = u32::read(input)?;
    if flags & !3 != 0 {
        return Err(breach(format!("client flags {flags:#x} are unknown")));
    }
    let mut agreed = Agreed::default();
    loop {
        if u64::read(input)? != OPTION_MAGIC {
            return Err(breach("an option without its magic number"));
        }
        let (option, length) = (u32::read(input)?, u32::read(input)?);
        let mut reply = |kind: u32, body: &[u8]| -> io::Result<()> {
            let mut bytes = Vec::with_capacity(20 + body.len());
            bytes.extend(OPTION_REPLY_MAGIC.to_be_bytes());
            bytes.extend(option.to_be_bytes());
            bytes.extend(kind.to_be_bytes());
            bytes.extend((body.len() as u32).to_be_bytes());
            bytes.extend(body);
            output.write_all(&bytes)?;
            output.flush()
        };
        if length > MOST_OPTION {
            let copied = io::copy(&mut input.by_ref().take(u64::from(length)), &mut io::sink())?;
            if copied < u64::from(length) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if option == option::EXPORT_NAME {
                return Err(breach("a name of an export that is too long"));
            }
            reply(option_reply::TOO_BIG, b"the option is too long")?;
            continue;
        }
        let mut data = vec![0; length as usize];
        input.read_exact(&mut data)?;
        match option {
            option::EXPORT_NAME => {
                if !data.is_empty() {
                    return Err(breach("no such export (there is one, without a name)"));
                }
                let mut bytes = Vec::new();
                bytes.extend(offer.bytes.to_be_bytes());
                bytes.extend(offer.flags().to_be_bytes());
                if flags & 2 == 0 {
                    bytes.extend([0; 124]);
                }
                output.write_all(&bytes)?;
                output.flush()?;
                return Ok(Some(agreed));
            }
            option::ABORT => {
                reply(option_reply::ACK, &[])?;
                return Ok(None);
            }
            option::LIST if data.is_empty() => {
                reply(option_reply::SERVER, &[0; 4])?;
                reply(option_reply::ACK, &[])?;
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                agreed.structured = true;
                reply(option_reply::ACK, &[])?;
            }
            option::LIST | option::STRUCTURED_REPLY => {
                reply(option_reply::INVALID, b"the option takes no data")?;
            }
            option::INFO | option::GO => match named(&data).filter(|(_, rest)| is_list(rest)) {
                None => reply(option_reply::INVALID, b"the option is malformed")?,
                Some((name, _)) if !name.is_empty() => {
                    reply(option_reply::UNKNOWN, b"there is one export, without a name")?;
                }
                Some(_) => {
                    let mut export = vec![0, 0];
                    export.extend(offer.bytes.to_be_bytes());
                    export.extend(offer.flags().to_be_bytes());
                    reply(option_reply::INFO, &export)?;
                    let mut sizes = vec![0, 3];
                    for size in [offer.sector, offer.sector.max(4096), MOST] {
                        sizes.extend(size.to_be_bytes());
                    }
                    reply(option_reply::INFO, &sizes)?;
                    reply(option_reply::ACK, &[])?;
                    if option == option::GO {
                        return Ok(Some(agreed));
                    }
                }
            },
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                let set = option == option::SET_META_CONTEXT;
                match named(&data).and_then(|(name, rest)| Some((name, queries(rest)?))) {
                    None => reply(option_reply::INVALID, b"the option is malformed")?,
                    Some(_) if set && !agreed.structured => {
                        reply(option_reply::INVALID, b"structured replies come first")?;
                    }
                    Some((name, _)) if !name.is_empty() => {
                        reply(option_reply::UNKNOWN, b"there is one export, without a name")?;
                    }
                    Some((_, queries)) => {
                        let all = !set && queries.is_empty();
                        let asks =
                            |query: &&[u8]| *query == ALLOCATION || !set && *query == b"base:";
                        let found = all || queries.iter().any(asks);
                        if set {
                            agreed.block_status = found;
                        }
                        if found {
                            let id = if set { ALLOCATION_ID } else { 0 };
                            let body = [&id.to_be_bytes()[..], ALLOCATION].concat();
                            reply(option_reply::META_CONTEXT, &body)?;
                        }
                        reply(option_reply::ACK, &[])?;
                    }
                }
            }
            _ => reply(option_reply::UNSUPPORTED, b"not supported")?,
        }
    }
}

/// A text that begins with its length, and what follows.
fn named(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_first_chunk()?;
    rest.split_at_checked(u32::from_be_bytes(*length) as usize)
}

/// Whether it is a number of information requests, and those.
fn is_list(data: &[u8]) -> bool {
    data.split_first_chunk()
        .is_some_and(|(count, rest)| rest.len() == 2 * usize::from(u16::from_be_bytes(*count)))
}

fn queries(data: &[u8]) -> Option<Vec<&[u8]>> {
    let (count, mut rest) = data.split_first_chunk()?;
    let mut queries = Vec::new();
    for _ in 0..u32::from_be_bytes(*count) {
        let (query, behind) = named(rest)?;
        queries.push(query);
        rest = behind;
    }
    rest.is_empty().then_some(queries)
}
