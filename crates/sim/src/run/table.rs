//! One table of results: typed columns, as CSV (readable during the run) or as Parquet (readable once the run has
//! ended, even if it failed).

use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

use crate::config::Format;

/// A column: its name, with the unit if it has one, and its type.
pub(super) type Column = (&'static str, Kind);

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    /// A signed 64-bit integer.
    Int,
    /// Microseconds, or a share: six decimal places in CSV, 64-bit floating point in Parquet.
    Float,
    /// An `Int` or no value.
    MaybeInt,
    /// A `Float` or no value.
    MaybeFloat,
}

/// One value of a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cell<'a> {
    Text(&'a str),
    Int(u64),
    Float(f64),
    Empty,
}

/// A file of rows.
pub(super) enum Table {
    Csv(BufWriter<File>),
    Parquet(Box<Parquet>),
}

impl Table {
    /// Creates the file, and removes the same table in the other format, left by an earlier run.
    pub(super) fn create(
        folder: &Path,
        name: &str,
        columns: &[Column],
        format: Format,
    ) -> Result<Table> {
        for other in Format::ALL.into_iter().filter(|&other| other != format) {
            let path = folder.join(format!("{name}.{}", other.name()));
            if path.exists() {
                std::fs::remove_file(path)?;
            }
        }
        let file = File::create(folder.join(format!("{name}.{}", format.name())))?;
        match format {
            Format::Csv => {
                let mut file = BufWriter::new(file);
                let names: Vec<&str> = columns.iter().map(|column| column.0).collect();
                writeln!(file, "{}", names.join(","))?;
                Ok(Table::Csv(file))
            }
            Format::Parquet => Ok(Table::Parquet(Box::new(Parquet::new(file, name, columns)?))),
        }
    }

    /// Adds a row; its cells have the columns' types.
    pub(super) fn row(&mut self, cells: &[Cell]) -> Result<()> {
        match self {
            Table::Csv(file) => {
                for (at, cell) in cells.iter().enumerate() {
                    let comma = if at == 0 { "" } else { "," };
                    match cell {
                        Cell::Text(text) => write!(file, "{comma}{text}")?,
                        Cell::Int(number) => write!(file, "{comma}{number}")?,
                        Cell::Float(number) => write!(file, "{comma}{number:.6}")?,
                        Cell::Empty => write!(file, "{comma}")?,
                    }
                }
                writeln!(file)
            }
            Table::Parquet(file) => file.row(cells),
        }
    }

    /// Writes buffered rows to the file (CSV). Parquet writes a group of rows once it is full.
    pub(super) fn flush(&mut self) -> Result<()> {
        match self {
            Table::Csv(file) => file.flush(),
            Table::Parquet(file) => file.writer.flush(),
        }
    }

    /// Writes the end of the file.
    pub(super) fn finish(self) -> Result<()> {
        match self {
            Table::Csv(mut file) => file.flush(),
            Table::Parquet(file) => file.finish(),
        }
    }
}

/// Rows as columns, in groups.
pub(super) struct Parquet {
    writer: SerializedFileWriter<File>,
    columns: Vec<Values>,
    rows: usize,
}

/// A column of the current group; for an optional column, also which rows have a value.
struct Values {
    held: Held,
    present: Option<Vec<i16>>,
}

enum Held {
    Text(Vec<ByteArray>),
    Int(Vec<i64>),
    Float(Vec<f64>),
}

/// Rows of a group: enough that its metadata is small beside it, few enough to buffer in memory.
const GROUP_ROWS: usize = 8192;

impl Parquet {
    fn new(file: File, name: &str, columns: &[Column]) -> Result<Parquet> {
        let fields = columns.iter().map(|&column| Ok(Arc::new(field(column)?)));
        let fields =
            fields.collect::<std::result::Result<Vec<_>, ParquetError>>().map_err(failed)?;
        let schema = Type::group_type_builder(name).with_fields(fields).build().map_err(failed)?;
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties));
        let columns = columns.iter().map(|column| Values::new(column.1)).collect();
        Ok(Parquet { writer: writer.map_err(failed)?, columns, rows: 0 })
    }

    fn row(&mut self, cells: &[Cell]) -> Result<()> {
        assert_eq!(cells.len(), self.columns.len(), "a row has a cell per column");
        self.columns.iter_mut().zip(cells).for_each(|(column, &cell)| column.push(cell));
        self.rows += 1;
        if self.rows == GROUP_ROWS { self.group().map_err(failed) } else { Ok(()) }
    }

    fn group(&mut self) -> std::result::Result<(), ParquetError> {
        self.rows = 0;
        let mut group = self.writer.next_row_group()?;
        for Values { held, present } in &mut self.columns {
            let mut column = group.next_column()?.expect("the schema has as many columns");
            let present_now = present.as_deref();
            match held {
                Held::Text(values) => {
                    column.typed::<ByteArrayType>().write_batch(values, present_now, None)?
                }
                Held::Int(values) => {
                    column.typed::<Int64Type>().write_batch(values, present_now, None)?
                }
                Held::Float(values) => {
                    column.typed::<DoubleType>().write_batch(values, present_now, None)?
                }
            };
            column.close()?;
            held.clear();
            present.iter_mut().for_each(Vec::clear);
        }
        group.close()?;
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        if self.rows > 0 {
            self.group().map_err(failed)?;
        }
        self.writer.close().map_err(failed)?;
        Ok(())
    }
}

impl Values {
    fn new(kind: Kind) -> Values {
        let held = match kind {
            Kind::Text => Held::Text(Vec::new()),
            Kind::Int | Kind::MaybeInt => Held::Int(Vec::new()),
            Kind::Float | Kind::MaybeFloat => Held::Float(Vec::new()),
        };
        let maybe = matches!(kind, Kind::MaybeInt | Kind::MaybeFloat);
        Values { held, present: maybe.then(Vec::new) }
    }

    fn push(&mut self, cell: Cell) {
        match (&mut self.held, cell) {
            (Held::Text(values), Cell::Text(text)) => values.push(text.into()),
            (Held::Int(values), Cell::Int(number)) => values.push(number as i64),
            (Held::Float(values), Cell::Float(number)) => values.push(number),
            (_, Cell::Empty) if self.present.is_some() => {}
            (_, cell) => panic!("{cell:?} is not of its column's kind"),
        }
        let there = i16::from(!matches!(cell, Cell::Empty));
        self.present.iter_mut().for_each(|present| present.push(there));
    }
}

impl Held {
    fn clear(&mut self) {
        match self {
            Held::Text(values) => values.clear(),
            Held::Int(values) => values.clear(),
            Held::Float(values) => values.clear(),
        }
    }
}

fn field((name, kind): Column) -> std::result::Result<Type, ParquetError> {
    let (physical, logical) = match kind {
        Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Kind::Int | Kind::MaybeInt => (Physical::INT64, None),
        Kind::Float | Kind::MaybeFloat => (Physical::DOUBLE, None),
    };
    let repetition = match kind {
        Kind::MaybeInt | Kind::MaybeFloat => Repetition::OPTIONAL,
        _ => Repetition::REQUIRED,
    };
    Type::primitive_type_builder(name, physical)
        .with_repetition(repetition)
        .with_logical_type(logical)
        .build()
}

fn failed(error: ParquetError) -> std::io::Error {
    std::io::Error::other(error)
}
