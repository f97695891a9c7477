//! Small tables in files: traces and distributions.

use super::check::{ConfigError, read};

/// Lines of numbers between commas, with their line numbers; lines that begin with '#' or a letter are passed over.
pub(super) fn table(
    path: &std::path::Path,
    columns: usize,
) -> Result<Vec<(usize, Vec<f64>)>, ConfigError> {
    let text = read(path)?;
    let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.trim()));
    let lines = lines.filter(|(_, line)| {
        !line.is_empty() && !line.starts_with(|c: char| c == '#' || c.is_ascii_alphabetic())
    });
    let rows = lines.map(|(number, line)| {
        let row: Result<Vec<f64>, _> = line.split(',').map(|v| v.trim().parse::<f64>()).collect();
        let row =
            row.ok().filter(|r| r.len() == columns && r.iter().all(|v| v.is_finite() && *v >= 0.0));
        row.map(|row| (number, row)).ok_or_else(|| ConfigError::Syntax {
            file: path.display().to_string(),
            line: number,
            reason: format!("{line:?} is not {columns} numbers between commas"),
        })
    });
    rows.collect()
}
