//! The content of a page that is absent.

use terrace_live::spill::batch::find;
use terrace_live::spill::location::{HEADER, LONGEST, Location};
use terrace_live::store::codec::{self, PageBytes};

use crate::image::Image;
use crate::source::Source;
use crate::survey::Lost;
use crate::tables::Tables;
use crate::{Error, PAGE};

/// In front of a blob of the store: its length, 2 bytes.
const LENGTH: usize = 2;

/// Where a page's content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// In the store, compressed, at this address.
    Compressed(u64),
    /// In the store, as it is.
    Raw(u64),
    /// In the store: one word, which it repeats.
    Same(u64),
    /// In a staging slot, at this address.
    Staged(u64),
    /// In the spill file.
    Spilled(Location),
}

/// What contents are read from.
pub struct Contents<'a, S: Source + ?Sized> {
    /// The dump.
    pub image: &'a Image<'a, S>,
    /// Its tables.
    pub tables: &'a Tables,
    /// The spill file, if it could be opened.
    pub spill: Option<&'a dyn Source>,
}

impl<S: Source + ?Sized> Contents<'_, S> {
    /// Fills a page in, or says why it is lost.
    pub fn read(&self, from: From, page: &mut PageBytes) -> Result<Result<(), Lost>, Error> {
        let whole = match from {
            From::Compressed(at) => {
                let mut room = [0; LENGTH + LONGEST];
                self.blob(at, &mut room)?.is_some_and(|bytes| codec::unpack(bytes, page))
            }
            From::Raw(at) => {
                let mut room = [0; LENGTH + LONGEST];
                fill(page, self.blob(at, &mut room)?)
            }
            From::Same(at) => {
                let mut room = [0; LENGTH + LONGEST];
                let word = self.blob(at, &mut room)?.and_then(|bytes| bytes.try_into().ok());
                word.is_some_and(|word| {
                    codec::fill(page, u64::from_le_bytes(word));
                    true
                })
            }
            From::Staged(at) => self.image.read(at, page)?,
            From::Spilled(location) => return self.spilled(location, page),
        };
        Ok(if whole { Ok(()) } else { Err(Lost::Damaged) })
    }

    /// A blob's bytes.
    fn blob<'r>(
        &self,
        at: u64,
        room: &'r mut [u8; LENGTH + LONGEST],
    ) -> Result<Option<&'r [u8]>, Error> {
        let there = self.image.read_up_to(at, room)?;
        let Some((len, bytes)) = room[..there].split_first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        Ok(bytes.get(..usize::from(u16::from_le_bytes(*len))))
    }

    /// A record of the spill file.
    fn spilled(&self, location: Location, page: &mut PageBytes) -> Result<Result<(), Lost>, Error> {
        if location.is_empty() || location.len() > LONGEST {
            return Ok(Err(Lost::Damaged));
        }
        let mut room = [0; HEADER + LONGEST];
        let record = &mut room[..HEADER + location.len()];
        let there = match (self.tables.mapped, self.spill) {
            (Some((at, len)), _) => {
                let end = location.at().checked_add(record.len() as u64);
                let address = at.checked_add(location.at());
                match address.filter(|_| end.is_some_and(|end| end <= len)) {
                    Some(address) => self.image.read(address, record)?,
                    None => return Ok(Err(Lost::Damaged)),
                }
            }
            (None, Some(file)) => file.read_at(location.at(), record).is_ok(),
            (None, None) => false,
        };
        if !there {
            return Ok(Err(Lost::Spilled));
        }
        // A file that goes on being written may have something else there by now.
        let Some(bytes) = find(record, location.at(), location) else {
            return Ok(Err(Lost::Spilled));
        };
        let whole =
            if location.is_raw() { fill(page, Some(bytes)) } else { codec::unpack(bytes, page) };
        Ok(if whole { Ok(()) } else { Err(Lost::Damaged) })
    }
}

/// Takes bytes that are a page.
fn fill(page: &mut PageBytes, bytes: Option<&[u8]>) -> bool {
    let whole = bytes.filter(|bytes| bytes.len() as u64 == PAGE);
    whole.is_some_and(|bytes| {
        page.copy_from_slice(bytes);
        true
    })
}
