//! Writes the table. It has ids in ascending order and three columns of random values, without compression.

use std::io::Write;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use datafusion::error::Result;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;

/// The number of rows in one data page of a column.
pub const PAGE_ROWS: usize = 2048;
const GROUP_ROWS: usize = 256 * PAGE_ROWS;
/// The length of a text value in bytes.
const TEXT: usize = 40;

/// The id of a row. Only every third number is an id; the numbers between are not in the table.
#[must_use]
pub fn id(row: usize) -> i64 {
    3 * row as i64
}

/// A generator of random numbers (SplitMix64). The value is its state, which begins with the seed.
pub struct Random(pub u64);

impl Random {
    /// Returns the next number. It can be any 64-bit number.
    #[expect(clippy::should_implement_trait, reason = "the numbers have no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn text(&mut self) -> String {
        let words = [self.next(), self.next(), self.next()];
        let mut text = words.map(|word| format!("{word:016x}")).concat();
        text.truncate(TEXT);
        text
    }
}

fn page(first: usize, rows: usize, random: &mut Random) -> Result<RecordBatch> {
    let ids = Int64Array::from_iter_values((first..first + rows).map(id));
    let numbers = Int64Array::from_iter_values((0..rows).map(|_| random.next().cast_signed()));
    let fractions = (0..rows).map(|_| (random.next() >> 11) as f64 / (1_u64 << 53) as f64);
    let fractions = Float64Array::from_iter_values(fractions);
    let texts = StringArray::from_iter_values((0..rows).map(|_| random.text()));
    let columns: [(&str, ArrayRef); 4] = [
        ("id", Arc::new(ids)),
        ("number", Arc::new(numbers)),
        ("fraction", Arc::new(fractions)),
        ("text", Arc::new(texts)),
    ];
    Ok(RecordBatch::try_from_iter(columns)?)
}

/// Writes a table with this number of pages in each column. The same seed gives the same bytes.
///
/// # Errors
/// The errors of the writer.
pub fn write(into: impl Write + Send, pages: usize, seed: u64) -> Result<()> {
    let mut random = Random(seed);
    let properties = WriterProperties::builder()
        // All values are different, so a dictionary has no use. The writer would abandon it only after the first MiB.
        .set_dictionary_enabled(false)
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_write_batch_size(PAGE_ROWS)
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .build();
    let schema = page(0, 0, &mut random)?.schema();
    let mut writer = ArrowWriter::try_new(into, schema, Some(properties))?;
    for index in 0..pages {
        writer.write(&page(index * PAGE_ROWS, PAGE_ROWS, &mut random)?)?;
    }
    writer.close()?;
    Ok(())
}
