//! The whole way, on a dump made by hand.

use std::io;

use super::*;
use crate::content::Contents;
use crate::image::Place;
use crate::sample::{MANAGED, sample};
use crate::tables::Tables;

/// Gathers what is written.
#[derive(Default)]
struct Gathered(Vec<u8>);

impl Sink for Gathered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.extend(bytes);
        Ok(())
    }
    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        self.0.resize(self.0.len() + bytes as usize, 0);
        Ok(())
    }
}

fn complete(file: &[u8]) -> Result<(Survey, Vec<u8>, bool), Error> {
    let image = Image::open(file)?;
    let tables = Tables::find(&image)?;
    let contents = Contents { image: &image, tables: &tables, spill: None };
    let found = survey(&contents)?;
    let mut gathered = Gathered::default();
    let marked = write(&contents, &found, &mut gathered).expect("memory is not full");
    Ok((found, gathered.0, marked))
}

#[test]
fn every_kind_of_page_comes_back_and_what_does_not_cannot_be_read() {
    let sample = sample();
    let (found, file, marked) = complete(&sample.file).expect("a good dump");

    let image = Image::open(&file[..]).expect("a good dump");
    for (i, page) in (0..).zip(&sample.pages) {
        let at = MANAGED + i * PAGE;
        let mut content = [0xee; PAGE as usize];
        let there = image.read(at, &mut content).expect("memory");
        assert_eq!(there, page.wanted.is_some(), "{}", page.what);
        if let Some(wanted) = page.wanted {
            assert!(content == wanted, "{}", page.what);
        } else {
            assert_eq!(image.place(at), Place::Unmapped, "{}", page.what);
        }
    }
    assert!(marked);
    let pages = found.pages;
    assert_eq!((pages.compressed, pages.raw, pages.same, pages.staged), (2, 1, 1, 2));
    assert_eq!((pages.spilled, pages.zero, pages.arrived, pages.missing), (1, 1, 1, 2));
    // Side by side; one of them is a record beyond the end of the mapped file.
    let (start, end) = (MANAGED + 12 * PAGE, MANAGED + 14 * PAGE);
    assert_eq!(found.missing, [Missing { start, end, why: Lost::Damaged }]);
}

/// Completing twice changes nothing: what is missing stays so.
#[test]
fn a_completed_dump_is_complete() {
    let (_, once, _) = complete(&sample().file).expect("a good dump");
    let (found, twice, _) = complete(&once).expect("a good dump");
    assert_eq!(found.pages.restored(), 0);
    assert_eq!((found.pages.missing, found.pages.left_out), (2, 0));
    assert!(once == twice);
}

/// Wherever it is cut off.
#[test]
fn a_dump_that_is_cut_off_is_refused() {
    let file = sample().file;
    for len in (0..file.len()).step_by(97) {
        assert!(complete(&file[..len]).is_err(), "{len} of {} bytes", file.len());
    }
}

/// Whatever a byte of the tables or of the store is changed to: a page that was there stays as it
/// was.
#[test]
fn damaged_tables_do_no_harm_to_what_was_there() {
    let sample = sample();
    let image = Image::open(&sample.file[..]).expect("a good dump");
    let managed = image.segment(MANAGED).expect("managed memory").offset as usize;
    for at in (512..managed).step_by(41) {
        for value in [1, 0xff] {
            let mut file = sample.file.clone();
            file[at] = value;
            let Ok((_, completed, _)) = complete(&file) else { continue };
            let there = &completed[managed + PAGE as usize..][..PAGE as usize];
            assert!(there == sample.pages[1].there, "byte {at} is {value}");
        }
    }
}
