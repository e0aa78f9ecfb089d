//! How accesses become bytes.
//!
//! A program's loops repeat themselves: after the same last few steps (distance
//! to the last address of a place, instructions in between, kind, size) mostly the same
//! step follows. A table remembers what followed, and where it is right again
//! an access costs one code, which the compressor behind makes into a few bits.
//! Other accesses are written as the distance to the nearest of the places that
//! were used last (stack, heap, data each have their own).

use crate::exact::Access;
use crate::exact::access::ADDRESSES;

/// Entries of the table of what followed.
const TABLE: usize = 1 << 14;
/// Places of which the last address is remembered.
const PLACES: usize = 8;
/// Addresses that are nearer than this belong to one place.
const NEAR: u64 = 1 << 22;

/// Codes: predicted; relative to a place, with the meta bits as predicted or
/// written out; a whole address.
const PREDICTED: u8 = 0;
const PLACE: u8 = 1;
const PLACE_META: u8 = PLACE + PLACES as u8;
const WHOLE: u8 = PLACE_META + PLACES as u8;

/// The bits of an access above its address.
const fn meta_of(access: Access) -> u16 {
    (access.bits() >> 48) as u16
}

/// How one access follows from those before: relative to which place, how far,
/// and its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Step {
    distance: i64,
    place: u8,
    meta: u16,
}

/// What both sides know: grows in step on both.
#[derive(Debug)]
struct Model {
    table: Vec<Step>,
    history: u64,
    /// The last address of each place, the place used last first.
    places: [u64; PLACES],
}

impl Model {
    fn new() -> Self {
        Self { table: vec![Step::default(); TABLE], history: 0, places: [0; PLACES] }
    }

    #[inline]
    fn slot(&self) -> usize {
        (self.history.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as usize % TABLE
    }

    #[inline]
    fn predicted(&self) -> Step {
        self.table[self.slot()]
    }

    #[inline]
    fn address(&self, step: Step) -> u64 {
        let base = self.places[usize::from(step.place) % PLACES];
        base.wrapping_add(step.distance as u64) % ADDRESSES
    }

    /// The step that leads to an address, if a place is near; else as if from
    /// the place used longest ago.
    #[inline]
    fn step(&self, address: u64, meta: u16) -> (Step, bool) {
        let near = self.places.iter().position(|place| address.abs_diff(*place) < NEAR);
        let place = near.unwrap_or(PLACES - 1);
        let distance = address.wrapping_sub(self.places[place]) as i64;
        (Step { distance, place: place as u8, meta }, near.is_some())
    }

    /// Enters a step and where it led.
    #[inline]
    fn learn(&mut self, step: Step, address: u64) {
        let slot = self.slot();
        self.table[slot] = step;
        let mixed =
            (step.distance as u64) << 20 ^ u64::from(step.meta) << 4 ^ u64::from(step.place);
        // Three steps stay in the history, the older the fainter.
        self.history = self.history << 21 ^ mixed.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 22;
        let place = usize::from(step.place) % PLACES;
        self.places[..=place].rotate_right(1);
        self.places[0] = address;
    }
}

/// Streams of a chunk, each compressed better by itself than mixed.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    pub(super) codes: Vec<u8>,
    pub(super) distances: Vec<u8>,
    pub(super) metas: Vec<u8>,
}

/// Accesses to bytes.
#[derive(Debug)]
pub(super) struct Encoder {
    model: Model,
    pub(super) streams: Streams,
}

impl Encoder {
    pub(super) fn new() -> Self {
        Self { model: Model::new(), streams: Streams::default() }
    }

    pub(super) fn push(&mut self, access: Access) {
        let (address, meta) = (access.address(), meta_of(access));
        let predicted = self.model.predicted();
        if self.model.address(predicted) == address && predicted.meta == meta {
            self.streams.codes.push(PREDICTED);
            self.model.learn(predicted, address);
            return;
        }
        let (step, near) = self.model.step(address, meta);
        if near {
            let base = if predicted.meta == meta { PLACE } else { PLACE_META };
            self.streams.codes.push(base + step.place);
            varint(&mut self.streams.distances, zigzag(step.distance));
            if base == PLACE_META {
                self.streams.metas.extend(meta.to_le_bytes());
            }
        } else {
            self.streams.codes.push(WHOLE);
            self.streams.distances.extend(&address.to_le_bytes()[..6]);
            self.streams.metas.extend(meta.to_le_bytes());
        }
        self.model.learn(step, address);
    }
}

/// Bytes to accesses.
#[derive(Debug)]
pub(super) struct Decoder<'a> {
    model: Model,
    codes: &'a [u8],
    distances: &'a [u8],
    metas: &'a [u8],
}

impl<'a> Decoder<'a> {
    pub(super) fn new(codes: &'a [u8], distances: &'a [u8], metas: &'a [u8]) -> Self {
        Self { model: Model::new(), codes, distances, metas }
    }

    fn meta(&mut self) -> Option<u16> {
        let (bytes, rest) = self.metas.split_first_chunk::<2>()?;
        self.metas = rest;
        Some(u16::from_le_bytes(*bytes))
    }

    /// The next access; `None` where the streams do not fit together.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Access> {
        let (&code, rest) = self.codes.split_first()?;
        self.codes = rest;
        let predicted = self.model.predicted();
        let (step, address) = match code {
            PREDICTED => (predicted, self.model.address(predicted)),
            PLACE..WHOLE => {
                let place = (code - PLACE) % PLACES as u8;
                let distance = unzigzag(read_varint(&mut self.distances)?);
                let meta = if code >= PLACE_META { self.meta()? } else { predicted.meta };
                let step = Step { distance, place, meta };
                (step, self.model.address(step))
            }
            WHOLE => {
                let (bytes, rest) = self.distances.split_first_chunk::<6>()?;
                self.distances = rest;
                let mut address = [0; 8];
                address[..6].copy_from_slice(bytes);
                let address = u64::from_le_bytes(address);
                let meta = self.meta()?;
                let place = PLACES as u8 - 1;
                let distance = address.wrapping_sub(self.model.places[PLACES - 1]) as i64;
                (Step { distance, place, meta }, address)
            }
            _ => return None,
        };
        self.model.learn(step, address);
        Some(Access::from_bits(address | u64::from(step.meta) << 48))
    }

    /// Whether everything was used.
    pub(super) fn is_empty(&self) -> bool {
        self.codes.is_empty() && self.distances.is_empty() && self.metas.is_empty()
    }
}

const fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Writes a number in groups of seven bits.
pub(super) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads such a number.
#[inline]
pub(super) fn read_varint(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = from.split_first()?;
        *from = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(accesses: &[Access]) -> (Vec<Access>, usize) {
        let mut encoder = Encoder::new();
        for &access in accesses {
            encoder.push(access);
        }
        let Streams { codes, distances, metas } = &encoder.streams;
        let mut decoder = Decoder::new(codes, distances, metas);
        let back = accesses.iter().map(|_| decoder.next().expect("as many as went in")).collect();
        assert!(decoder.is_empty());
        (back, distances.len() + metas.len())
    }

    proptest! {
        /// A trace that decodes to other accesses would give other results.
        #[test]
        fn what_goes_in_comes_out(
            bits in prop::collection::vec(any::<u64>(), 0..300),
            steps in prop::collection::vec((0u64..5, 0u64..4), 0..300),
        ) {
            let mut accesses: Vec<Access> = bits.into_iter().map(Access::from_bits).collect();
            let mut address = 0x7fff_0000;
            for (step, gap) in steps {
                address += step * 8;
                accesses.push(Access::load(address).after(gap));
                accesses.push(Access::store(0x5555_0000_0000 - step));
            }
            prop_assert_eq!(round_trip(&accesses).0, accesses);
        }
    }

    /// The reason for the table: a loop costs nothing but codes.
    #[test]
    fn a_loop_is_predicted() {
        let accesses: Vec<Access> = (0..10_000u64)
            .flat_map(|i| {
                [
                    Access::load(0x1000_0000 + i * 8).after(3),
                    Access::load(0x7000_0000 + i % 4 * 8),
                    Access::store(0x2000_0000 + i * 8).after(1),
                ]
            })
            .collect();
        let (_, bytes) = round_trip(&accesses);
        // What alternates in fours is longer than the history of three steps.
        assert!(bytes < 6_000, "{bytes} bytes beside codes for 30 000 accesses");
    }
}
