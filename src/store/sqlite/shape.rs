//! Which columns of `tasks` a row needs written.
//!
//! A row has some fifty columns and most transitions change five. What a statement names is copied, checked and looked for in
//! indexes even where nothing changes: writing all of it for each start and each end of a task cost a third of what SQLite did. So
//! there are statements for the columns that nearly all rows need, and one for all columns, which takes every row.
//!
//! What differs is found by laying both rows out column by column, so no second list says which field lies in which column.

use super::ladder::Ladder;
use crate::store::sql::value::Bind;

/// A set of columns, by their places in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mask(u64);

impl Mask {
    pub(super) const NONE: Mask = Mask(0);

    pub(super) fn with(self, other: Mask) -> Mask {
        Mask(self.0 | other.0)
    }

    /// The columns of `list` that `names` names. Both are program text.
    fn of(list: &str, names: &str) -> Mask {
        let named = |column: &str| names.split(',').any(|name| name.trim() == column);
        let places = list.split(',').enumerate().filter(|(_, column)| named(column.trim()));
        Mask(places.fold(0, |mask, (place, _)| mask | bit(place)))
    }

    fn has(self, place: usize) -> bool {
        self.0 & bit(place) != 0
    }

    fn holds(self, other: Mask) -> bool {
        other.0 & !self.0 == 0
    }
}

/// Lists have fewer columns than this has bits; a test says so.
fn bit(place: usize) -> u64 {
    u32::try_from(place).ok().and_then(|place| 1_u64.checked_shl(place)).unwrap_or(0)
}

/// The mark of a column that is NULL.
const NULL: u8 = b'n';

/// The columns of a row, one after the other.
#[derive(Debug, Default)]
pub(super) struct Image {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Image {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn column(&mut self, kind: u8, bytes: &[u8]) -> &mut Image {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        self
    }

    fn columns(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| self.bytes.get(start..*end).unwrap_or_default())
    }

    /// The columns that are not NULL.
    pub(super) fn given(&self) -> Mask {
        let given = self.columns().enumerate().filter(|(_, column)| *column != [NULL]);
        Mask(given.fold(0, |mask, (place, _)| mask | bit(place)))
    }

    /// The columns that are not the same in `other`, or not there.
    pub(super) fn differs_from(&self, other: &Image) -> Mask {
        let mut others = other.columns();
        let differing = self.columns().enumerate().filter(|(_, column)| others.next() != Some(*column));
        Mask(differing.fold(0, |mask, (place, _)| mask | bit(place)))
    }
}

impl Bind for Image {
    fn word(&mut self, text: &str) -> &mut Image {
        self.column(b't', text.as_bytes())
    }

    fn null(&mut self) -> &mut Image {
        self.column(NULL, &[])
    }

    fn number(&mut self, number: Option<i64>) -> &mut Image {
        match number {
            Some(number) => self.column(b'i', &number.to_le_bytes()),
            None => self.null(),
        }
    }

    fn real(&mut self, number: Option<f64>) -> &mut Image {
        match number {
            Some(number) => self.column(b'r', &number.to_le_bytes()),
            None => self.null(),
        }
    }

    fn bytes(&mut self, bytes: Option<&[u8]>) -> &mut Image {
        match bytes {
            Some(bytes) => self.column(b'b', bytes),
            None => self.null(),
        }
    }
}

/// Lets through the columns of a mask.
pub(super) struct Sieve<'b, B> {
    binds: &'b mut B,
    mask: Mask,
    place: usize,
}

impl<B: Bind> Sieve<'_, B> {
    fn pass(&mut self, bind: impl FnOnce(&mut B)) -> &mut Self {
        if self.mask.has(self.place) {
            bind(self.binds);
        }
        self.place += 1;
        self
    }
}

impl<B: Bind> Bind for Sieve<'_, B> {
    fn word(&mut self, text: &str) -> &mut Self {
        self.pass(|binds| _ = binds.word(text))
    }

    fn null(&mut self) -> &mut Self {
        self.pass(|binds| _ = binds.null())
    }

    fn number(&mut self, number: Option<i64>) -> &mut Self {
        self.pass(|binds| _ = binds.number(number))
    }

    fn real(&mut self, number: Option<f64>) -> &mut Self {
        self.pass(|binds| _ = binds.real(number))
    }

    fn bytes(&mut self, bytes: Option<&[u8]>) -> &mut Self {
        self.pass(|binds| _ = binds.bytes(bytes))
    }
}

/// A statement for some columns of a list.
pub(super) struct Shape {
    mask: Mask,
    pub(super) ladder: Ladder,
}

impl Shape {
    /// The statement that `ladder` makes for the columns of `list` that `names` names.
    pub(super) fn new(list: &str, names: &str, ladder: impl FnOnce(&str) -> Ladder) -> Shape {
        let mask = Mask::of(list, names);
        let columns = list.split(',').map(str::trim).enumerate().filter(|(place, _)| mask.has(*place));
        let columns: Vec<&str> = columns.map(|(_, column)| column).collect();
        Shape { mask, ladder: ladder(&columns.join(", ")) }
    }

    /// Whether it writes all that differs.
    pub(super) fn fits(&self, differing: Mask) -> bool {
        self.mask.holds(differing)
    }

    /// What lets through the columns that it writes.
    pub(super) fn sieve<'b, B: Bind>(&self, binds: &'b mut B) -> Sieve<'b, B> {
        Sieve { binds, mask: self.mask, place: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "a, b, c, d";

    fn row(binds: &mut impl Bind, a: i64, b: Option<&str>, d: &[u8]) {
        binds.integer(a).optional_text(b).real(Some(0.5)).bytes(Some(d));
    }

    fn image(a: i64, b: Option<&str>, d: &[u8]) -> Image {
        let mut image = Image::default();
        row(&mut image, a, b, d);
        image
    }

    #[test]
    fn a_row_differs_in_the_columns_that_hold_something_else_and_from_one_that_is_not_known_in_all() {
        let one = image(1, Some("x"), b"z");
        assert_eq!(image(1, Some("x"), b"z").differs_from(&one), Mask::NONE);
        assert_eq!(image(2, Some("x"), b"z").differs_from(&one), Mask::of(LIST, "a"));
        assert_eq!(image(1, None, b"").differs_from(&one), Mask::of(LIST, "b, d"));
        assert_eq!(image(1, Some(""), b"z").differs_from(&image(1, None, b"z")), Mask::of(LIST, "b"));
        // Neither runs into its neighbour.
        assert_eq!(image(1, Some("xy"), b"z").differs_from(&image(1, Some("x"), b"yz")), Mask::of(LIST, "b, d"));
        assert_eq!(one.differs_from(&Image::default()), Mask::of(LIST, LIST));
        assert_eq!(image(1, None, b"n").given(), Mask::of(LIST, "a, c, d"));
    }

    #[test]
    fn a_statement_fits_what_differs_only_in_its_columns_and_gets_only_those() {
        let shape = Shape::new(LIST, "d, b", |columns| {
            assert_eq!(columns, "b, d", "in the order of the list, which is that of the values");
            Ladder::update("t", "a", columns)
        });
        assert!(shape.fits(Mask::NONE) && shape.fits(Mask::of(LIST, "d")) && shape.fits(Mask::of(LIST, "b, d")));
        assert!(!shape.fits(Mask::of(LIST, "c")) && !shape.fits(Mask::of(LIST, LIST)));
        let mut bound = Image::default();
        row(&mut shape.sieve(&mut bound), 1, None, b"z");
        let mut expected = Image::default();
        expected.null().bytes(Some(b"z"));
        assert_eq!(bound.differs_from(&expected), Mask::NONE);
        assert_eq!(bound.ends.len(), 2);
    }
}
