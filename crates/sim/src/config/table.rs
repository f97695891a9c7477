//! Small tables in files: traces and distributions.

use std::path::Path;

use super::source::{ConfigError, read};

/// Lines of `columns` cells between commas, each read by `row`; errors name file and line. Skips empty lines, lines
/// that begin with '#', and a first line with names in place of numbers.
pub(super) fn table<T>(
    path: &Path,
    columns: usize,
    mut row: impl FnMut(&[&str]) -> Result<T, String>,
) -> Result<Vec<T>, ConfigError> {
    let text = read(path, TABLE_MAX)?;
    let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.trim()));
    let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).peekable();
    let is_name = |cell: &str| {
        cell.trim().starts_with(char::is_alphabetic) && cell.trim().parse::<f64>().is_err()
    };
    let is_header = |line: &str| line.split(',').all(is_name);
    lines.next_if(|(_, line)| is_header(line));
    let rows = lines.map(|(line, text)| {
        let cells: Vec<&str> = text.split(',').map(str::trim).collect();
        let row = match cells.len() == columns {
            true => row(&cells),
            false => Err(format!("{text:?} is not {columns} numbers between commas")),
        };
        row.map_err(|reason| ConfigError::Syntax { file: path.display().to_string(), line, reason })
    });
    rows.collect()
}

/// A non-negative number.
pub(super) fn number(cell: &str) -> Result<f64, String> {
    let number = cell.parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0);
    number.ok_or_else(|| format!("{cell:?} is not a number from 0 on"))
}

/// A non-negative integer; also as "1e6" or "100.0", if that is exact.
pub(super) fn whole(cell: &str) -> Result<u64, String> {
    let exact = |v: f64| (v.fract() == 0.0 && v <= EXACT_MAX).then_some(v as u64);
    let whole = cell.parse().ok().or_else(|| number(cell).ok().and_then(exact));
    whole.ok_or_else(|| format!("{cell:?} is not a whole number from 0 on"))
}

/// Maximum size of a table: 20 million lines, or a device that never ends.
const TABLE_MAX: u64 = 1 << 30;
/// 2⁵³: up to here floating-point numbers represent every integer.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
