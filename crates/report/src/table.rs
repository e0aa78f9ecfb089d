//! Tables of results for other programs: CSV, and Parquet for notebooks.
//!
//! Parquet is written column by column through the `parquet` crate's low-level
//! writer, without Arrow, which would cost more time to compile than all of
//! Terrace.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

/// The values of a column; what is missing is `None`.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Text.
    Text(Vec<Option<String>>),
    /// Whole numbers.
    Whole(Vec<Option<i64>>),
    /// Other numbers.
    Real(Vec<Option<f64>>),
}

/// A column.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its values, one a row.
    pub values: Values,
}

impl Values {
    fn len(&self) -> usize {
        match self {
            Self::Text(values) => values.len(),
            Self::Whole(values) => values.len(),
            Self::Real(values) => values.len(),
        }
    }

    fn text(&self, row: usize) -> String {
        match self {
            Self::Text(values) => values[row].clone().unwrap_or_default(),
            Self::Whole(values) => values[row].map(|n| n.to_string()).unwrap_or_default(),
            Self::Real(values) => values[row].map(|n| n.to_string()).unwrap_or_default(),
        }
    }
}

/// Writes columns as CSV, with their names in the first line.
pub fn write_csv(columns: &[Column], out: impl Write) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    writer.write_record(columns.iter().map(|column| column.name.as_str()))?;
    let rows = columns.first().map_or(0, |column| column.values.len());
    for row in 0..rows {
        writer.write_record(columns.iter().map(|column| column.values.text(row)))?;
    }
    writer.flush()
}

/// Writes columns as Parquet.
pub fn write_parquet(columns: &[Column], out: impl Write + Send) -> io::Result<()> {
    parquet_error(columns, out).map_err(io::Error::other)
}

fn parquet_error(columns: &[Column], out: impl Write + Send) -> Result<(), ParquetError> {
    let field = |column: &Column| {
        let (physical, logical) = match column.values {
            Values::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Values::Whole(_) => (Physical::INT64, None),
            Values::Real(_) => (Physical::DOUBLE, None),
        };
        Type::primitive_type_builder(&column.name, physical)
            .with_repetition(Repetition::OPTIONAL)
            .with_logical_type(logical)
            .build()
            .map(Arc::new)
    };
    let fields = columns.iter().map(field).collect::<Result<_, _>>()?;
    let schema = Type::group_type_builder("results").with_fields(fields).build()?;
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(out, Arc::new(schema), properties)?;
    let mut group = writer.next_row_group()?;
    for column in columns {
        let Some(mut out) = group.next_column()? else { break };
        match &column.values {
            Values::Text(values) => {
                let (levels, values) =
                    present(values, |text: &String| ByteArray::from(text.as_str()));
                out.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None)?;
            }
            Values::Whole(values) => {
                let (levels, values) = present(values, |&number| number);
                out.typed::<Int64Type>().write_batch(&values, Some(&levels), None)?;
            }
            Values::Real(values) => {
                let (levels, values) = present(values, |&number| number);
                out.typed::<DoubleType>().write_batch(&values, Some(&levels), None)?;
            }
        }
        out.close()?;
    }
    group.close()?;
    writer.close()?;
    Ok(())
}

/// Which values are there, and those.
fn present<T, U>(values: &[Option<T>], of: impl Fn(&T) -> U) -> (Vec<i16>, Vec<U>) {
    let levels = values.iter().map(|value| i16::from(value.is_some())).collect();
    (levels, values.iter().flatten().map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::{Field, RowAccessor as _};

    fn columns() -> Vec<Column> {
        let text = |values: &[Option<&str>]| {
            Values::Text(values.iter().map(|text| text.map(str::to_owned)).collect())
        };
        vec![
            Column { name: "policy".into(), values: text(&[Some("hemem"), Some("a,\"b\"")]) },
            Column { name: "time_ns".into(), values: Values::Whole(vec![Some(1 << 60), None]) },
            Column { name: "share".into(), values: Values::Real(vec![None, Some(0.25)]) },
        ]
    }

    #[test]
    fn csv_quotes_what_needs_it_and_leaves_out_what_is_missing() {
        let mut bytes = Vec::new();
        write_csv(&columns(), &mut bytes).expect("written");
        let text = String::from_utf8(bytes).expect("text");
        assert_eq!(
            text,
            "policy,time_ns,share\nhemem,1152921504606846976,\n\"a,\"\"b\"\"\",,0.25\n"
        );
    }

    #[test]
    fn parquet_is_read_back_as_it_was() {
        let mut bytes = Vec::new();
        write_parquet(&columns(), &mut bytes).expect("written");
        let reader = SerializedFileReader::new(parquet_bytes(bytes)).expect("a Parquet file");
        let rows: Vec<_> =
            reader.get_row_iter(None).expect("rows").map(|row| row.expect("a row")).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].get_string(0).expect("text"), "hemem");
        assert_eq!(rows[0].get_long(1).expect("a count"), 1 << 60);
        assert!(matches!(rows[0].get_column_iter().nth(2), Some((_, Field::Null))));
        assert!((rows[1].get_double(2).expect("a number") - 0.25).abs() < f64::EPSILON);
    }

    fn parquet_bytes(bytes: Vec<u8>) -> bytes::Bytes {
        bytes::Bytes::from(bytes)
    }
}
